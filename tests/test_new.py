"""`agent-gym new env`: what it writes works at once, by module, by test, installed or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_gym.cli.main import main


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["new", "env", "guess_it"]) == 0
    assert "agent-gym speedrun --env guess_it:Mine/GuessIt-v0" in capsys.readouterr().out
    return tmp_path / "guess_it"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The command's own file is what starts here, not `python -m`, which would find the folder by itself.
    code = "import sys; sys.path = [p for p in sys.path if p]; from agent_gym.cli.main import main; sys.exit(main())"
    words = (sys.executable, "-c", code, *words) if words[0] != "pytest" else (sys.executable, "-m", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ})


def test_its_tests_and_ruff_pass_and_commands_find_it(made: Path) -> None:
    done = run(made, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr
    done = run(made, "rollout", "guess_it:Mine/GuessIt-v0", "--expert", "--episodes", "8", "--output", "t.jsonl")
    assert done.returncode == 0, done.stderr
    assert (made / "t.jsonl").read_text().count("\n") == 8 and "success" in done.stdout
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,B", str(made)]
    assert subprocess.run(ruff, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env", "Guess-It"], "cannot name a package"),
        (["env", "json"], "'json' is installed already"),
        (["env", "guess_it"], "exists already"),
        (["env", "other", "--namespace", "a/b"], "--namespace"),
        (["tool", "other"], "invalid choice"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    made: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(made.parent.rglob("*"))
    assert main(["new", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(made.parent.rglob("*")) == before


def test_questions_become_an_environment_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"problem": f"How many letters has {word}?", "answer": str(len(word))} for word in "a bc def ghij k".split()
    ]
    lines = [  # "!" and half of a surrogate pair, as of an emoji that was cut
        json.dumps(row) + "\n"
        for row in [*rows, rows[0], *({**row, "problem": f"{row['problem']}!\ud83d"} for row in rows)]
    ]
    Path("mine.jsonl").write_text("".join(lines))
    assert main(["new", "env", "letters", "--from", "mine.jsonl"]) == 0
    capsys.readouterr()
    files = {file.stem: file.read_text().splitlines() for file in (tmp_path / "letters/letters/data").iterdir()}
    assert {name: len(found) for name, found in files.items()} == {"train": 8, "validation": 1, "test": 1}
    done = run(tmp_path / "letters", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


TOOLS = '''
"""Tools of a shop."""

from typing import Literal


def price(item: Literal["pen", "book", "lamp"], count: int = 1) -> str:
    """Tell the price of some items."""
    if item == "lamp":
        raise KeyError(item)
    return str({"pen": 2, "book": 11}[item] * count)


def _hidden() -> str:
    return "no tool"
'''


def test_tools_become_an_environment_whose_expert_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("shop_tools.py").write_text(TOOLS)
    assert main(["new", "env", "shop", "--tools", "shop_tools.py"]) == 0
    rows = [json.loads(line) for line in Path("shop/shop/data/train.jsonl").read_text().splitlines()]
    assert {row["call"]["arguments"]["item"] for row in rows} == {"pen", "book"}, "a call that fails makes no question"
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,B", "shop"]
    assert subprocess.run(ruff, timeout=60).returncode == 0
    capsys.readouterr()
    code = """
import agent_gym, shop
from agent_gym.testing import check_text_env, expert_episode
env = agent_gym.make("Mine/Shop-v0")
log = expert_episode(env, seed=0)
assert [call["name"] for call in log[1][-1]["tool_calls"]] == ["price"] and log[-1][-1]["is_success"]
check_text_env(lambda: agent_gym.make("shop:Mine/Shop-v0"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "shop", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "nope.jsonl"], "no such file or folder: 'nope.jsonl'"),
        (["--tools", "nope.py"], "cannot read nope.py"),
        (["--tools", "rows.jsonl"], "takes a Python file"),
        (["--tools", "none.py"], "defines no public function"),
        (["--tools", "broken.py"], "broken.py cannot be imported: ZeroDivisionError"),
        (["--tools", "exits.py"], "exits.py cannot be imported: SystemExit: 3"),
        (["--tools", "near.py"], "near.py imports 'none' beside it, which would not come along; write it into the"),
        (["--tools", "picky.py"], "no tool answered a made-up call"),
        (["--from", "rows.jsonl"], "no column 'answer'"),
        (["--from", "null.jsonl"], "null.jsonl, line 2: it names no answer: answer is empty; leave such rows out."),
        (["--from", "lists.jsonl"], "lists.jsonl, line 1: the question is no text but list: ['x']"),
        (["--folder", "none.py/other"], "cannot write none.py/other/"),
    ],
)
def test_what_makes_no_environment_is_refused_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"question": "x"}\n')
    Path("null.jsonl").write_text('{"question": "x", "answer": 1}\n{"question": "x", "answer": null}\n')
    Path("lists.jsonl").write_text('{"question": ["x"], "answer": 1}\n')
    Path("none.py").write_text("def _f() -> str:\n    return ''\n")
    Path("broken.py").write_text("1 / 0\n")
    Path("exits.py").write_text("raise SystemExit(3)\n")
    Path("near.py").write_text("from none import _f\n\n\ndef f() -> str:\n    'No.'\n    return _f()\n")
    Path("picky.py").write_text('def f(a: int) -> str:\n    """No."""\n    raise ValueError(a)\n')
    assert main(["new", "env", "other", *words]) == 2
    assert message in capsys.readouterr().err and not Path("other").exists()


def test_rows_are_told_apart_by_all_that_is_shown_and_what_is_left_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    last = {"role": "user", "content": "What is my number?"}
    rows = [{"prompt": [{"role": "user", "content": f"It is {n}."}, {"role": "assistant", "content": "Fine."}, last],
             "answer": str(n)} for n in range(10)]  # fmt: skip
    built = ((n, f"It was built in {n}.") for n in range(1990, 2000))
    rows += [{"question": "When was it built?", "context": told, "answer": n} for n, told in built]
    rows += [rows[0], {**rows[1], "answer": "another"}, {"question": "bad", "answer": None}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["new", "env", "told", "--from", "mine.jsonl"]) == 2
    assert "mine.jsonl, line 23: it names no answer" in capsys.readouterr().err
    assert main(["new", "env", "told", "--from", "mine.jsonl", "--skip_bad"]) == 0
    out, err = capsys.readouterr()
    assert "rows: left out 1 rows that repeat another" in out and "1 rows that ask what another asks" in out
    assert "dealt 16 rows to train, 2 rows to validation, 2 rows to test" in out
    assert "the question shows context" in err and "1 of 23 rows are left out" in err
    code = "import agent_gym, told; env = agent_gym.make('Mine/Told-v0'); print(env.reset(seed=0)[1]['messages'])"
    done = subprocess.run([sys.executable, "-c", code], cwd="told", capture_output=True, text=True, timeout=120)
    assert "What is my number?" in done.stdout or "It was built in" in done.stdout, done.stderr


def test_columns_can_be_named_and_one_row_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("ask,right,question\nHow many?,4,no\n")
    assert main(["new", "env", "named", "--from", "mine.csv", "--columns", "question=ask,answer=right"]) == 0
    assert "nothing is left to test on" in capsys.readouterr().out
    (row,) = map(json.loads, Path("named/named/data/train.jsonl").read_text().splitlines())
    assert (row["question"], row["answer"]) == ("How many?", "4")
    assert main(["new", "env", "other", "--from", "mine.csv", "--columns", "quest=ask"]) == 2
    assert "columns names 'quest'; known: question, answer, choices, context" in capsys.readouterr().err
    for split in ("dev", "test"):
        Path("splits").mkdir(exist_ok=True)
        Path(f"splits/{split}.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    assert main(["new", "env", "other", "--from", "splits"]) == 2
    assert "has the splits dev, test, and none to train on" in capsys.readouterr().err
