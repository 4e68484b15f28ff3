"""The generated problems: answers that the programs confirm, sentences held apart, and the same problems everywhere."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from agent_gym import ConfigError
from agent_gym.envs.retool.embedded import (
    SIZES,
    SMALLEST,
    SPLITS,
    WORDED,
    WORDINGS,
    GeneratedProblems,
)
from agent_gym.envs.retool.embedded.kinds import KINDS, LEVELS
from agent_gym.sandbox import shared_sandbox


def by_kind(split: str, level: int, size: int = 300) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {kind: [] for kind in KINDS}
    for row in GeneratedProblems(split, size, level):
        found[row["kind"]].append(row)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_the_programs_print_the_answers(level: int) -> None:
    """Answer and program go different ways to the same number: some of each kind, with the text of each split."""
    sandbox = shared_sandbox()
    for split in WORDED:
        for kind, rows in by_kind(split, level).items():
            assert rows, kind  # of some there are two, since none comes back
            for row in rows[:3]:
                execution = sandbox.run(row["program"])
                assert execution.stdout == row["answer"] + "\n", row
                assert execution.cpu_seconds < 1.5, "far below any sandbox's limit"


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_whole(split: str) -> None:
    for row in GeneratedProblems(split, 1000):
        assert list(row) == ["problem", "answer", "program", "kind", "level"]
        assert "{" not in row["problem"] and "  " not in row["problem"] and len(row["problem"]) < 300
        assert row["problem"].endswith(("?", ".")) and len(row["program"]) < 400
        value = Fraction(row["answer"])
        assert value.denominator > 1 or abs(value) >= SMALLEST, "no answer that is easily guessed"
        assert str(value) == row["answer"], "in lowest terms"


def test_every_wording_has_all_the_numbers_and_one_split() -> None:
    assert WORDINGS.keys() == KINDS.keys()
    seen: set[str] = set()
    for kind, splits in WORDINGS.items():
        slots = {frozenset(_slots(text)) for texts in splits.values() for text in texts}
        assert len(slots) == 1, f"the wordings of {kind} say different things: {slots}"
        assert all(splits[split] for split in WORDED)
        for texts in splits.values():
            assert not seen & set(texts)
            seen |= set(texts)


def asked(row: dict[str, str]) -> tuple[str, str, str]:
    """Kind, numbers in any order, answer: what is left of a problem without its sentence."""
    return row["kind"], " ".join(sorted(re.findall(r"\d+", row["problem"]))), row["answer"]


def test_no_problem_of_training_is_asked_again() -> None:
    """In any sentence and with its numbers in any order; and each split has all kinds."""
    train = {asked(row) for row in GeneratedProblems("train", SIZES["train"])}
    for split in SPLITS.keys() - {"train"}:
        rows = list(GeneratedProblems(split, SIZES[split]))
        assert [row["problem"] for row in rows if asked(row) in train] == []
        assert len({row["problem"] for row in rows}) == len(rows) == SIZES[split]
        kinds = Counter(row["kind"] for row in rows)
        assert kinds.keys() == KINDS.keys() and min(kinds.values()) >= 20, kinds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_each_split_has_numbers_of_each_kind_and_level(kind: str, level: int) -> None:
    """And says how many problems there are, where there are fewer than asked for."""
    for split in SPLITS:
        rows = GeneratedProblems(split, 40, level, (kind,))
        problems = [row["problem"] for row in rows]
        assert 1 <= len(rows) == len(problems) <= 40
        if split != "train":
            assert len(set(problems)) == len(problems)
    with pytest.raises(IndexError):
        rows[40]


def test_a_problem_is_the_same_in_any_process_and_at_any_size() -> None:
    program = (
        "from agent_gym.envs.retool.embedded import GeneratedProblems as G; "
        "print([G(split, 100, level)[i] for split in ('train', 'validation', 'test', 'unseen_numbers') "
        "for level in (None, 2) for i in (0, 99)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1234")
    }
    here = [
        GeneratedProblems(split, 10**9, level)[i]  # which nobody draws to the end
        for split in (*WORDED, "unseen_numbers")
        for level in (None, 2)
        for i in (0, 99)
    ]
    assert told == {f"{here}\n"}


def test_unseen_numbers_have_the_sentences_of_training() -> None:
    kinds = ("modular-power", "multiples", "coprime-count")
    said = {_skeleton(row["problem"]) for row in GeneratedProblems("train", SIZES["train"], 1, kinds)}
    for split in SPLITS:
        rows = GeneratedProblems(split, 300, 1, kinds)
        assert {_skeleton(row["problem"]) in said for row in rows} == {split.startswith(("unseen_numbers", "train"))}


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="kinds is 'coins'.*some of divisor-sum"):
        GeneratedProblems("train", 10, kinds="coins")
    with pytest.raises(ConfigError, match="'dev'.*train, validation, test"):
        GeneratedProblems("dev", 10)
    with pytest.raises(ConfigError, match="level is 4.*1, 2, 3"):
        GeneratedProblems("train", 10, 4)
    with pytest.raises(ConfigError, match="size is 0"):
        GeneratedProblems("train", 0)


def _slots(text: str) -> list[str]:
    return [name for _, name, *_ in string.Formatter().parse(text) if name]


def _skeleton(text: str) -> str:
    terms = re.sub(r"-?\d*[xyz]( [-+] \d*[xyz])+ = -?\d+", "EQUATION", text)
    return re.sub(r"\d+( when divided by)?", "N", terms)
