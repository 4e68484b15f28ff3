"""`agent-gym prepare` as a user types it; the lines that it prints must work as they stand."""

from __future__ import annotations

import io
import re
import shlex
import sys

import pytest

pytest.importorskip("pyarrow")

from cli_tools import complaint
from prepare_tools import multi_hop_rows, write_list
from search_tools import hotpotqa_sample

from agent_gym.cli.main import main
from agent_gym.prepare import RECIPES
from agent_gym.registry import ENVS


@pytest.fixture
def try_lines(tmp_path, monkeypatch, capsys, tiny_model):
    """Run the lines that were printed, in another folder, because paths must be whole."""

    def run(printed: str) -> None:
        _, imports, make, commands = printed.strip().split("\n\n")
        play, evaluate = map(shlex.split, commands.splitlines())
        assert [play[:2], evaluate[:2]] == [["agent-gym", "play"], ["agent-gym", "eval"]]
        monkeypatch.chdir(tmp_path)
        exec(f"{imports}\n{make}\nassert env.reset(seed=0)[0] and env.unwrapped.expert_action()", {})
        monkeypatch.setattr(sys, "stdin", io.StringIO("/expert\n" * 20))
        assert main(play[1:]) == 0 and "done: solved" in capsys.readouterr().out
        quick = ["--episodes", "2", "--max_turn_tokens", "4", "--engine", "transformers"]
        assert (
            main([tiny_model if word == "Qwen/Qwen2.5-1.5B-Instruct" else word for word in evaluate[1:]] + quick) == 0
        )
        assert f"\n{evaluate[2]}, {tiny_model}: 2 tasks" in capsys.readouterr().out

    return run


def test_real_word_problems(tmp_path, gsm8k_folder, try_lines, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "a cache"))
    assert main(["prepare", "gsm8k", "--from", str(gsm8k_folder)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"data/train\.parquet +7,473 +[\d,]+  written", printed)
    assert re.search(r"data/test\.parquet +1,319 +[\d,]+  written", printed)
    try_lines(printed)
    assert main(["prepare", "gsm8k"]) == 0
    assert capsys.readouterr().out.count("already there, checksums agree") == 2


@pytest.mark.parametrize("index", ["bm25", "none"])
def test_the_lines_for_real_questions_work(tmp_path, index, capsys, try_lines):
    folder = tmp_path / "Who's"  # with a quote and a blank, for the shell
    arguments = ["prepare", "hotpotqa", "--from", str(hotpotqa_sample()), "--index", index, "--output", f"{folder} out"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"data/all\.parquet +60 ", printed) and re.search(r"corpus +600 ", printed)
    try_lines(printed)


def test_the_lines_for_a_split_without_train_work(tmp_path, capsys, try_lines):
    source = write_list(tmp_path / "hotpot_dev_distractor_v1.json", multi_hop_rows(3))
    for recipe in ("hotpotqa", "multihopqa"):
        assert main(["prepare", recipe, "--from", str(source), "--output", str(tmp_path / recipe)]) == 0
        try_lines(capsys.readouterr().out)


def test_every_recipe_is_for_an_environment_and_in_the_help(capsys):
    known = {entry.id for entry in ENVS}
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    text = capsys.readouterr().out
    for recipe in RECIPES.values():
        assert f"\n  {recipe.name} " in text
        assert recipe.env_id in known


def test_a_dry_run_prints_bytes_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    assert main(["prepare", "hotpotqa", "--dry-run", "--index", "flat"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"fetch +hotpotqa/hotpot_qa \(distractor\) +359,239,231 ", printed)
    assert re.search(r"write +dense-bge-large-en-v1\.5/flat\.faiss +4,008,017,920 ", printed)
    assert "to fetch: 359,239,231 bytes" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gsm9k", "invalid choice: 'gsm9k'"),
        ("gsm8k", "cannot load openai/gsm8k (main) from the Hugging Face hub"),
        ("gsm8k --from ./none", "no such file: 'none'"),
        ("gsm8k --form x", "unknown argument '--form'; did you mean --from"),
        ("gsm8k --index flat", "gsm8k has nothing to search"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    assert message in complaint(capsys, "prepare", *words.split())
