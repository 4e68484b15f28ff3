"""`agent-gym recipe`, and docs/agent_r1.md, whose commands, settings, classes and numbers are those that exist."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from cli_tools import complaint  # noqa: E402
from prepare_tools import multi_hop_rows, word_problems, write_lines  # noqa: E402
from test_docs import ROOT, flags_of  # noqa: E402

from agent_gym.cli import recipe  # noqa: E402
from agent_gym.cli.main import COMMANDS, main  # noqa: E402
from agent_gym.trainers import AgentPPOConfig  # noqa: E402
from agent_gym.trainers.run_file import FILE, read, write  # noqa: E402

PAGE = (ROOT / "docs" / "agent_r1.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
TABLE = recipe.RECIPES
SMALL = "--train_tasks 8 --eval_strategy no --eval_on_start false --max_steps 1 --per_device_train_batch_size 4 "
SMALL += "--steps_per_generation 1 --num_generations 2 --max_turn_tokens 8 --max_episode_tokens 2048 --use_vllm false "
SMALL += "--use_cpu true --report_to none"
DRY = ["grpo", "ppo", "prepare", "recipe", "speedrun"]


def words_of(line: str) -> list[str]:
    return shlex.split(line.partition("  # ")[0])[1:]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rows in the official forms, by recipe."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("hotpotqa", "gsm8k"):
        (folder / name).mkdir()
    (folder / "hotpotqa" / "hotpot_train_v1.1.json").write_text(json.dumps(multi_hop_rows(40)))
    (folder / "hotpotqa" / "hotpot_dev_distractor_v1.json").write_text(json.dumps(multi_hop_rows(10, start=100)))
    for split, count in (("train", 40), ("test", 10)):
        write_lines(folder / "gsm8k" / f"{split}.jsonl", word_problems(count))
    return {name: folder / name for name in ("hotpotqa", "gsm8k")}


# The command.


@pytest.mark.parametrize("name", sorted(TABLE))
def test_each_command_of_a_recipe_is_a_run(
    name: str, source: dict[str, Path], tiny_model: str, tmp_path: Path, capsys: Any
) -> None:
    given = ["--from", str(source[name]), "--data", str(tmp_path / "data")] if name in source else []
    given += ["--model", tiny_model, "--output_dir", str(tmp_path / "out"), "--dry_run"]
    assert main(["recipe", name, *given, "--", "--train_tasks", "32", "--eval_tasks", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "data").exists() and not (tmp_path / "out").exists()
    if name in source:
        assert main(words_of(lines[0])) == 0 and lines.pop(0).startswith(f"agent-gym prepare {name} --from ")
        assert f"--split {TABLE[name]['settings']['eval_split']} " in capsys.readouterr().out
    assert [line.split()[1] for line in lines] == [part["command"] for part in TABLE[name]["parts"].values()]
    for line, part in zip(lines, TABLE[name]["parts"].values(), strict=True):
        assert line.endswith("  # not begun")
        assert main([*words_of(line), "--dry_run"]) == 0
        plan = capsys.readouterr().out
        assert f"# tasks      32 of {TABLE[name]['env_id']}" in plan
        group, size = part.get("num_generations", TABLE[name]["settings"].get("num_generations", 1)), 1
        size *= TABLE[name]["settings"]["per_device_train_batch_size"] * part.get("steps_per_generation", 1)
        assert f"# a rollout  {size} episodes ({size // group} tasks x {group} attempts)" in plan


def test_the_mistakes_of_a_recipe_are_found_before_it_begins(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    words = ["recipe", "hotpotqa", "--model", tiny_model, "--output_dir", str(tmp_path / "out")]
    assert "invalid choice: 'hotpot'; did you mean hotpotqa?" in complaint(capsys, "recipe", "hotpot")
    assert "flags of the trainings follow --" in complaint(capsys, *words, "--max_steps", "3")
    assert "ppo: unknown argument '--max_stepz'; did you mean --max_steps" in complaint(
        capsys, *words, "--", "--max_stepz", "3"
    )
    assert "/nothing" in complaint(capsys, "recipe", "gsm8k", "--model", "/nothing")
    line = complaint(capsys, "recipe", "sokoban", "--model", tiny_model, "--data", str(tmp_path))
    assert "sokoban generates its tasks and prepares nothing; leave out --from and --data" in line
    place = tmp_path / "out" / "grpo"
    place.mkdir(parents=True)
    write(place / FILE, {"command": "grpo", "argv": ["gsm8k"], "cwd": "/", "status": "done"})
    assert f"{place} is a run of `grpo gsm8k`, and this is" in complaint(capsys, *words)
    assert not (tmp_path / "out" / "ppo").exists() and not (tmp_path / "out" / FILE).exists()


@pytest.mark.slow
def test_a_recipe_prepares_trains_in_a_row_and_continues(
    source: dict[str, Path], tiny_model: str, tmp_path: Path, capfd: Any
) -> None:
    out = tmp_path / "out"
    words = ["recipe", "hotpotqa", "--from", str(source["hotpotqa"]), "--data", str(tmp_path / "data")]
    words += ["--model", tiny_model, "--output_dir", str(out), "--", *SMALL.split()]
    # The first is killed within its first part, and begun again.
    process = subprocess.Popen([sys.executable, "-m", "agent_gym", *words], start_new_session=True)
    while not (out / "ppo" / FILE).exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130 and read(out / FILE)["status"] == "interrupted"
    assert not (out / "grpo").exists()
    assert main(words) == 0
    table = [line.split()[:3] for line in capfd.readouterr().out.splitlines()[-4:]]
    parts = [[name, command, "done"] for name, command in (("ppo", "ppo"), ("grpo", "grpo"), ("rpp", "grpo"))]
    assert table == [[str(out), "recipe", "done"], *parts]
    # What is done is left alone; a part with a checkpoint is resumed from it.
    before = {part: read(out / part / FILE) for part in ("ppo", "grpo", "rpp")}
    write(out / "grpo" / FILE, {**before["grpo"], "status": "failed"})
    assert main(words) == 0
    assert {part: read(out / part / FILE) for part in ("ppo", "rpp")} == {p: before[p] for p in ("ppo", "rpp")}
    again = read(out / "grpo" / FILE)
    assert again["status"] == "done" and again["argv"][-2:] == ["--resume_from_checkpoint", "true"]
    # A part that fails does not stop the next one, and is told.
    shutil.rmtree(out / "ppo")
    shutil.rmtree(out / "rpp")
    (out / "ppo").mkdir()
    (out / "ppo" / "checkpoint-7").mkdir()  # of nothing
    assert main(words) == 1
    assert read(out / "rpp" / FILE)["status"] == "done" and read(out / "ppo" / FILE).get("status") != "done"


# The page.

COMMANDS_THERE = re.findall(r"`((?:agent-gym|\./speedrun\.sh) [^`]+)`", SECTIONS["Commands"])


def test_the_page_has_the_commands_of_all_four() -> None:
    assert len(COMMANDS_THERE) >= 28
    assert {line.split()[1] for line in COMMANDS_THERE} >= {"ppo", "grpo", "recipe", "prepare", "chat", "eval"}


@pytest.mark.parametrize("line", dict.fromkeys(COMMANDS_THERE))
def test_each_command_of_the_page_runs(
    line: str, source: dict[str, Path], tiny_model: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    words = line.replace("./speedrun.sh", "agent-gym speedrun").split()[1:]
    command = words[0]
    assert command in COMMANDS
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    words = [tiny_model if word in ("M", "RUN") else word for word in words]
    if command == "prepare" and words[1] in source:
        words += ["--from", str(source[words[1]]), "--output", "data"]
    if command == "prepare" and words[1] not in source:  # their rows come from a hub
        assert words[1] in ("multihopqa", "retool")
        return
    if command == "recipe":
        words += ["--model", tiny_model]
    if command == "eval":
        words += "--episodes 1 --engine transformers --max_turn_tokens 4 --max_turns 1".split()
    if command in ("chat", "eval"):
        words += ["--engine", "transformers"] if command == "chat" else []
        assert main(words) == 0
        return
    if command not in DRY:  # servers, and what reads a finished run
        assert not set(re.findall(r"--\w+", line)) - flags_of(command), line
        return
    assert main([*words, "--dry_run"]) == 0, capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_the_settings_of_the_page_are_settings() -> None:
    known = {one.name for one in dataclasses.fields(AgentPPOConfig)} | flags_of("ppo")
    known |= {flag.removeprefix("--") for flag in known}
    section = SECTIONS["Options"]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[2:]
    assert len(rows) >= 22
    from agent_gym.trainers.estimators import ESTIMATORS

    for _, ours in rows:
        for name in re.findall(r"`(\w+)(?:=[^`]*)?`", ours):
            assert name in known or name in ESTIMATORS, name


def test_the_classes_of_the_page_exist() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \|$", SECTIONS["Classes"], re.MULTILINE)[2:]
    package = [importlib.import_module(f"agent_gym{name}") for name in ("", ".tools", ".rollout")]
    for _, ours in rows:
        for name in re.findall(r"`([A-Z]\w+)`", ours):
            assert any(hasattr(module, name) for module in package), name


def test_the_numbers_of_the_page_are_those_of_the_cards() -> None:
    rows = {cells[0]: cells[1:] for line in re.findall(r"^\| (\w.+) \|$", SECTIONS["Numbers"], re.MULTILINE)
            if (cells := line.split(" | "))}  # fmt: skip
    published = json.loads((ROOT / "registry" / "published.json").read_text(encoding="utf-8"))
    found = 0
    for column, env in enumerate(("GSM8K", "HotpotQA", "ALFWorld", "WebShop")):
        for _, model, what, number, source in published[f"AgentR1/{env}-v0"]:
            if source == "docs/experiments.md of AgentR1/Agent-R1":
                method = "ReAct, untrained" if "untrained" in model else model.removeprefix("Qwen3-4B, ")
                first, *second = rows[method][column].split(", ")
                place = second[0] if what.startswith(("valid_unseen", "success")) else first
                assert float(place) == float(number), (env, model, what)
                found += 1
    assert found == 30 and len(rows) == 6
