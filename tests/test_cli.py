"""The commands as a user types them: what they print, what they write, and how they fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from cli_tools import complaint
from toy_envs import CountingEnv

from agent_gym import Reply
from agent_gym.cli.main import COMMANDS, main
from agent_gym.rollout import read_trajectories, replay

ENV_ID = "AgentR1/GSM8K-v0"
EVAL = f"eval {ENV_ID}"


def command(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own."""
    words = [sys.executable, "-m", "agent_gym", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


# All commands.


def test_help_explains_every_flag_and_loads_no_training_stack() -> None:
    code = (
        "import sys\nfrom agent_gym.cli.main import COMMANDS, main\n"
        "for name in ['', *COMMANDS]:\n"
        "    print('=====', name, flush=True)\n"
        "    try: assert main([name, '--help'] if name else []) == 0\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'trl', 'transformers', 'vllm', 'datasets', 'matplotlib', 'faiss'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names, *parts = done.stdout.split("===== ")[1:]
    shown = dict(part.split("\n", 1) for part in parts)
    assert list(shown) == list(COMMANDS) and all(name in names for name in COMMANDS)
    for name, text in shown.items():
        # Behind a flag and its value stands the help, on the same line or on the next one, further to the right.
        flags = re.findall(r"^  (-.*?)(?:  +(\S.*)|\n {10,}(\S.*))?$", text, re.MULTILINE)
        assert flags and not [flag for flag, same, following in flags if not (same or following)], name


def test_training_without_trl_names_the_extra(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    assert "pip install 'agentic-gym[train]'" in complaint(capsys, "grpo", ENV_ID)


def test_a_mistake_is_one_line_without_a_traceback() -> None:
    done = command("rollout", "AgentR1/GSM8-v0", "--expert", code=2)
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert "unknown environment 'AgentR1/GSM8-v0'; did you mean AgentR1/GSM8K-v0" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evall", "unknown command 'evall'; did you mean eval"),
        ("list --jsn", "unknown argument '--jsn'; did you mean --json?"),
        (f"{EVAL} --expert --episodes 0", "must be at least 1, got 0"),
        (f"play {ENV_ID} --seed -1", "must be at least 0, got -1"),
        (f"chat {ENV_ID} --model m --seed -1", "must be at least 0, got -1"),
        ("rollout --expert --agent_command it's", 'agent_command is "it\'s": No closing quotation'),
        (f"{EVAL} --policy exprt", "has no policy 'exprt'; did you mean expert?"),
        (f"{EVAL} --expert --split tset", "unknown split 'tset'"),
        (f"{EVAL} --model m --samples 2", "are all the same"),
        *[(f"{EVAL} --engine transformers --model {name}", name) for name in ("./runs/n", "runs/nope", ".")],
        (f"{EVAL} --config episode.yaml", "unknown key 'episode'; did you mean episodes"),
        (f"{EVAL} --config many.yaml", "expected a whole number, got 'many'"),
        (f"{EVAL} --config list.yaml", "it holds a list"),
        (f"{EVAL} --config broken.yaml", "not valid yaml"),
        (f"{EVAL} --config quoted.yaml", "quoted.yaml: expert is 'no'; allowed: True, False"),
        ("view --config file.yaml", "no trajectory file at a.jsonl"),
        ("view --config day.yaml", "not valid yaml: month must be in 1..12"),
        ("view --config none.yaml", "the following arguments are required"),
        ("runs --config number.yaml", "no folder at 3"),
        ("view missing.jsonl", "no trajectory file at"),
        ("view rows.jsonl", "format None"),
        ("view empty", "holds no .jsonl file"),
        (f"rollout {ENV_ID} --expert --output rows.jsonl/x.jsonl", "cannot write"),
        ("serve model empty", "without config.json"),
        ("prepare gsm8k --index lucene", "invalid choice: 'lucene'"),
    ],
)
def test_a_mistake_names_what_is_wrong(words: str, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    files = {
        "rows.jsonl": '{"q": "x", "answer": "#### 1"}\n',
        "episode.yaml": "episode: 3",
        "many.yaml": "episodes: many",
        "list.yaml": "- 1",
        "broken.yaml": "a: [1",
        "quoted.yaml": "expert: 'no'",
        "file.yaml": "files: a.jsonl\ntitle: 2026-11-28",  # which yaml reads as a date
        "day.yaml": "title: 2026-13-28",
        "none.yaml": "files: []",
        "number.yaml": "folder: 3",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert message in complaint(capsys, *words.split())


@pytest.mark.parametrize("words", [("list", "--json"), ("--version",)])
def test_output_whose_reader_is_gone_is_no_crash(words: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == ("", 141)
    process.stderr.close()


def test_list_shows_every_environment(capsys: Any) -> None:
    assert main(["list"]) == 0
    table = " ".join(capsys.readouterr().out.split())  # long texts are wrapped
    assert main(["list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {entry["id"] for entry in entries} >= {ENV_ID, "AgentR1/GSM8K-NoTool-v0"}
    assert all(entry["id"] in table and entry["summary"] in table for entry in entries)


# rollout, view


def test_the_experts_trajectories_replay_and_become_a_page(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    output, page = tmp_path / "new" / "expert.jsonl", tmp_path / "page.html"
    assert main(["rollout", ENV_ID, "--expert", "--episodes", "3", "--group-size=2", "--output", str(output)]) == 0
    report = capsys.readouterr().out
    assert "success: 100.0%" in report and "tokens/s" in report and str(output) in report
    records = list(read_trajectories(output))
    assert len(records) == 6 and all(record["success"] for record in records)
    assert replay(records[0]) == []
    assert main(["view", str(output.parent), "--output", str(page)]) == 0
    assert page.stat().st_size > 20_000 and capsys.readouterr().out.strip() == str(page)
    before = output.read_bytes()
    assert "holds episodes, which would be lost" in complaint(capsys, "view", str(output), "--output", str(output))
    assert "holds episodes, which would be lost" in complaint(capsys, "export", "tasks", "gsm8k", str(output))
    (tmp_path / "kind.yaml").write_text("what: tasks\n")
    assert "name what comes first: " in complaint(capsys, "export", "--config", str(tmp_path / "kind.yaml"))
    assert output.read_bytes() == before
    # A page of a folder stands beside it, under its whole name.
    folder = tmp_path / "exp-0.1"
    (folder / "other").mkdir(parents=True)
    output.rename(folder / "a.jsonl")
    for given, place in ((".", folder), ("..", folder / "other"), ("exp-0.1", tmp_path)):
        monkeypatch.chdir(place)
        assert main(["view", given]) == 0
        (tmp_path / "exp-0.1.html").unlink()


# eval


def test_eval_reports_several_environments_with_intervals(capsys: Any) -> None:
    ids = [ENV_ID, "AgentR1/GSM8K-NoTool-v0"]
    assert main(["eval", *ids, "--expert", "--episodes", "20"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["policy", "GSM8K", "GSM8K-NoTool"]
    assert row.split("  ") == ["expert", "100.0% [83.9%, 100.0%]", "100.0% [83.9%, 100.0%]"]
    assert main(["eval", *ids, "--expert", "--episodes", "20", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["env_id"] for result in results] == ids
    success = results[0]["measures"]["episode/success"]
    assert results[0]["episodes"] == 20 and success["low"] == pytest.approx(0.839, abs=1e-3)


def test_a_yaml_file_is_read_and_the_command_line_wins(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "eval.yaml"
    config.write_text(
        f"env_id: {ENV_ID}\nmodel: {tiny_model}\nengine: transformers\nepisodes: 50\nmax_turn_tokens: 8\n"
        "env_kwargs: {max_turns: 1}\nexpert: false\njson: true\n"
    )
    assert main(["eval", "--config", str(config), "--episodes", "3", "--samples", "2", "--temperature", "1"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["results"][0]["episodes"] == 6 and "pass@2" in content["results"][0]["measures"]
    assert content["settings"]["env_kwargs"] == {"max_turns": 1} and content["settings"]["max_turn_tokens"] == 8


def test_eval_plays_the_data_there_is(tmp_path: Path, capsys: Any) -> None:
    """One file, whatever it is called; and a folder without a split to train on."""
    row = json.dumps({"question": "q", "answer": "#### 1"}) + "\n"
    one, folder = tmp_path / "train.jsonl", tmp_path / "folder"
    folder.mkdir()
    for path in (one, folder / "valid_unseen.jsonl", folder / "validation.jsonl"):
        path.write_text(row)

    def evaluate(data: Path, *words: str) -> list[str]:
        return ["eval", ENV_ID, "--expert", "--env_kwargs", json.dumps({"data": str(data)}), *words]

    assert main(evaluate(folder, "--split", "valid_unseen")) == 0
    assert ": 1 task" in capsys.readouterr().out
    asked = complaint(capsys, *evaluate(folder))
    assert "'test'; AgentR1/GSM8K-v0 has: validation, valid_unseen; choose one by" in asked
    assert main(evaluate(one, "--json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["split"] == "train" and content["results"][0]["tasks"] == 1


@pytest.mark.vllm
def test_eval_with_vllm(tiny_model: str, capfd: Any) -> None:
    limits = ["--episodes", "4", "--max_turn_tokens", "8", "--max_tokens", "1024"]
    assert main(["eval", ENV_ID, "--model", tiny_model, "--engine", "vllm", *limits]) == 0
    printed = capfd.readouterr().out
    assert "95% interval" in printed and ": 4 tasks" in printed


def test_a_measure_that_no_environment_has_is_named_behind_the_report(tiny_model: str, capsys: Any) -> None:
    words = ["eval", ENV_ID, "--expert", "--episodes", "2", "--tokenizer", tiny_model, "--metrics"]
    assert main([*words, "reward/formt"]) == 2
    out, err = capsys.readouterr()
    assert "100.0%" in out and "--metrics reward/formt: no environment here has such a measure; did you mean" in err
    assert main([*words, "reward/format"]) == 0


class Flaky(CountingEnv):
    """Raises in three steps of ten."""

    def respond(self, action: str) -> Reply:
        if self.np_random.random() < 0.3:
            raise RuntimeError("backend gone")
        return super().respond(action)


def test_failures_are_counted(tmp_path: Path, capsys: Any) -> None:
    gymnasium.register("Flaky/Flaky-v0", entry_point=Flaky)
    words = ["Flaky/Flaky-v0", "--expert", "--episodes", "12", "--split", "train", "--output"]
    assert main(["rollout", *words, str(tmp_path / "a.jsonl")]) == 0
    report = capsys.readouterr().out
    failed = sum(record["failure"] is not None for record in read_trajectories(tmp_path / "a.jsonl"))
    assert 2 < failed < 12 and f"failed episodes: {failed}" in report
    line = f"  {failed} x RuntimeError, the first: RuntimeError: backend gone ("
    assert line in report and "test_cli.py:" in report
    assert main(["eval", *words, str(tmp_path / "b.jsonl")]) == 0
    assert f"{failed} failed episodes left out\n{line}" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 0
    assert f"{failed} episodes of b failed and are left out\n{line}" in capsys.readouterr().out
    del gymnasium.registry["Flaky/Flaky-v0"]
