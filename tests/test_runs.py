"""Runs on disk: their list, going on with one, several seeds; and what `--dry_run` says of one that is to come."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("trl")

from cli_tools import complaint
from process_tools import until

from agent_gym import ConfigError
from agent_gym.cli import launch, runs
from agent_gym.cli.main import main
from agent_gym.evaluate import Measure
from agent_gym.evaluate.report import with_interval
from agent_gym.trainers.run_file import FILE, note, read, recorded, write

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "examples").glob("*.yaml"))
QUICK = "--num_generations 2 --per_device_train_batch_size 4 --train_tasks 8 --max_turn_tokens 4".split()
QUICK += "--max_episode_tokens 900 --use_vllm false --report_to none --max_steps 1".split()


def finished(folder: Path, **about: Any) -> Path:
    folder.mkdir(parents=True)
    known = {"command": "grpo", "argv": ["gsm8k"], "cwd": str(folder.parent), "status": "done", "host": platform.node()}
    write(folder / FILE, {**known, "pid": os.getpid(), "started": 1.0, **about})
    return folder


def test_a_run_is_recorded_with_its_end_and_its_numbers(tmp_path: Path) -> None:
    with recorded("grpo", ["gsm8k"], tmp_path / "a"):
        note(tmp_path / "a", 3, 10, {"reward": 0.5, "other": 1})
        note(tmp_path / "a", 4, 10, {"eval_success": 0.25})
        assert read(tmp_path / "a" / FILE)["status"] == "running"
    about = read(tmp_path / "a" / FILE)
    assert about["max_steps"] == 10
    assert (about["status"], about["step"], about["numbers"]) == ("done", 4, {"reward": 0.5, "eval_success": 0.25})
    with recorded("grpo", [], tmp_path / "b") as outcome:
        outcome["code"] = 1
    with pytest.raises(KeyboardInterrupt), recorded("grpo", [], tmp_path / "c"):
        raise KeyboardInterrupt
    assert [read(tmp_path / name / FILE)["status"] for name in "bc"] == ["failed", "interrupted"]
    with recorded("sft", [], tmp_path / "d"):
        note(tmp_path / "d", 3, 10**9, {"loss": 1.0})
    assert "max_steps" not in read(tmp_path / "d" / FILE), "it ends by seconds"
    note(tmp_path, 1, 2, {"reward": 1.0})
    assert not (tmp_path / FILE).exists(), "a run of a Python program has no such file, and gets none"


def test_the_list_names_what_was_killed(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    finished(tmp_path / "runs" / "killed", status="running", pid=gone.pid, step=2, max_steps=9, numbers={"reward": 0.5})
    finished(tmp_path / "runs" / "seeds" / "seed_0", started=2.0)
    (tmp_path / "runs" / "killed" / "checkpoint-2").mkdir()
    assert main(["runs"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["runs/seeds/seed_0", "grpo", "done", "-"]
    assert second.split()[:7] == ["runs/killed", "grpo", "killed", "2/9", "0.500", "-", "2"]
    assert main(["runs", "--json"]) == 0
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == ["done", "killed"]
    for name, content in (("list", "[1]"), ("other", json.dumps({"status": "running", "host": platform.node()}))):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / FILE).write_text(content)  # what another program calls run.json
    assert main(["runs"]) == 0 and len(capsys.readouterr().out.splitlines()) == 3
    assert "no folder at nope" in complaint(capsys, "runs", "nope")


def test_what_cannot_be_gone_on_with_says_why(tmp_path: Path, capsys: Any) -> None:
    assert "holds no run.json" in complaint(capsys, "resume", str(tmp_path))
    assert "still running" in complaint(capsys, "resume", str(finished(tmp_path / "a", status="running")))
    assert "no checkpoint yet" in complaint(capsys, "resume", str(finished(tmp_path / "b", status="failed")))
    assert "starts from the beginning each time" in complaint(
        capsys, "resume", str(finished(tmp_path / "c", command="speedrun"))
    )
    folder = finished(tmp_path / "my run")
    (folder / "checkpoint-1").mkdir()
    assert f"to train on: agent-gym resume '{folder}' --max_steps N" in complaint(capsys, "resume", str(folder))
    assert "name the run's folder before --config" in complaint(capsys, "resume", "--config", "f.yaml")
    # Of another machine one cannot see whether it is gone: the user says so.
    about = {"host": "node-7", "pid": 12, "status": "running", "cwd": str(tmp_path / "gone")}
    folder = finished(tmp_path / "it's away", **about)
    (folder / "checkpoint-1").mkdir()
    line = complaint(capsys, "resume", str(folder))
    assert "was running on node-7, as process 12, and two processes must not" in line
    words = shlex.split(line.partition("agent-gym resume ")[2])
    assert "make that folder again" in complaint(capsys, "resume", *words)


def test_a_run_goes_on_from_any_folder_and_has_our_card(
    tiny_model: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["grpo", "gsm8k", "--model_name_or_path", tiny_model, "--output_dir", "out", *QUICK, "--save_steps", "1"]
    assert main(words) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.count("AgentGRPOTrainer") == 1 and "time machine" not in card and "| AgentR1/GSM8K-v0 |" in card
    monkeypatch.chdir(tmp_path.parent)
    assert main(["resume", str(tmp_path / "out"), "--max_steps", "2"]) == 0
    about = read(tmp_path / "out" / FILE)
    assert (about["status"], about["step"], about["max_steps"]) == ("done", 2, 2) and "reward" in about["numbers"]
    assert "agent-gym: " not in capsys.readouterr().err.replace("agent-gym: importing", "")


@pytest.mark.slow
def test_several_seeds_make_a_table_and_what_is_done_is_not_run_again(
    tiny_model: str, tmp_path: Path, capfd: Any
) -> None:
    words = ["grpo", "gsm8k", "--model_name_or_path", tiny_model, *QUICK, "--output_dir", str(tmp_path / "out")]
    assert main([*words, "--seeds", "0,1"]) == 0
    table = capfd.readouterr().out.splitlines()
    assert [line.split()[:3] for line in table[-3:-1]] == [["0", "done", "1"], ["1", "done", "1"]]
    found = json.loads((tmp_path / "out" / "seeds.json").read_text())
    assert [row["seed"] for row in found["runs"]] == [0, 1] and "reward" in found["mean"]
    before = read(tmp_path / "out" / "seed_0" / FILE)
    assert main([*words, "--seeds", "0,1"]) == 0 and read(tmp_path / "out" / "seed_0" / FILE) == before


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"command": "ppo"}, "is a run of `ppo gsm8k --max_steps 9`, and this is `grpo gsm8k --max_steps 9`"),
        ({"argv": ["gsm8k", "--max_steps", "5"]}, "`grpo gsm8k --max_steps 5`, and this is .* another --output_dir"),
        ({"status": "running"}, "seed_1 is still running, as process .*stop it first"),
        (
            {"status": "running", "host": "elsewhere"},
            "of elsewhere: if that is gone, add --resume_from_checkpoint true",
        ),
        ({}, ""),
        ({"argv": [*"gsm8k --max_steps 9".split(), *2 * ["--resume_from_checkpoint", "true"]]}, ""),
    ],
)
def test_a_seed_that_is_kept_is_of_the_same_command(tmp_path: Path, about: dict[str, Any], message: str) -> None:
    own = ["--seed", "1", "--output_dir", "o", "--resume_from_checkpoint", "true"]
    finished(tmp_path / "seed_1", **{"argv": ["gsm8k", "--max_steps", "9", *own], **about})
    words, started = ["gsm8k", "--output_dir", "x", "--max_steps", "9"], list[Any]()
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        runs.over_seeds("grpo", words, [1, 1], tmp_path, started.append)
    assert not started


def test_a_seed_that_is_interrupted_has_the_time_to_end(tmp_path: Path, monkeypatch: Any) -> None:
    program, ready, saved = (tmp_path / name for name in ("program", "ready", "saved"))
    lines = ["import pathlib, time", "try:", f"    pathlib.Path({str(ready)!r}).touch()", "    time.sleep(60)"]
    lines += ["except KeyboardInterrupt:", "    time.sleep(1)", f"    pathlib.Path({str(saved)!r}).touch()"]
    program.write_text("\n".join([f"#!{sys.executable}", *lines]))
    program.chmod(0o700)

    def interrupt() -> None:
        until(ready.exists)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sys, "executable", str(program))
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        runs.over_seeds("grpo", [], [0], tmp_path / "out", launch.run_to_its_end)
    assert saved.exists()


def test_an_interval_needs_two_seeds() -> None:
    assert with_interval("loss", None) == "-" and with_interval("loss", Measure(0.5, None, None)) == "0.5"
    assert with_interval("loss", Measure(0.5, 0.25, 0.75)) == "0.5 [0.25, 0.75]"


# Before a run.


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_examples_are_settings_of_a_run(path: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    command = path.read_text().partition(" --config")[0].split()[-1]
    folder = str(tmp_path / "out")
    given = ["--env_kwargs", "{}", "--output_dir", folder, "--report_to", "none", "--train_tasks", "640"]
    monkeypatch.setattr("agent_gym.models.model_source", lambda model: model)  # smollm2 need not be prepared
    assert main([command, "--config", str(path), *given, "--dry_run"]) == 0
    text = capsys.readouterr().out
    settings, wanted = yaml.safe_load(text), yaml.safe_load(path.read_text())
    changed = {"env_kwargs", "output_dir", "accelerate_config", "num_processes", "report_to"}
    assert {name: settings[name] for name in wanted.keys() - changed} == {
        name: value for name, value in wanted.items() if name not in changed
    }
    assert f"# steps      {wanted['max_steps']}, " in text and f"# writes     {folder}: the model" in text
    assert ("# processes  accelerate launch" in text) == ("accelerate_config" in wanted)
    assert list(tmp_path.iterdir()) == []


def test_printed_settings_are_a_config_file(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    words = ["--env_kwargs", '{"max_turns": 2}', "--output_dir", str(tmp_path / "out"), "--report_to", "none"]
    words += ["--learning_rate", "1e-4", "--loss_type", "cispo", "--epsilon_high", "5"]
    assert main(["grpo", "gsm8k", "--model_name_or_path", tiny_model, *words, "--print_config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(text)
    assert main(["grpo", "--config", str(tmp_path / "again.yaml"), "--print_config"]) == 0
    assert capsys.readouterr().out == text and "loss_type: cispo" in text and "epsilon_high: 5.0" in text
