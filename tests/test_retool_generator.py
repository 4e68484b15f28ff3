"""The generated problems: answers that the programs confirm, sentences held apart, and the same problems everywhere."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from fractions import Fraction

import pytest

from agent_gym import ConfigError
from agent_gym.envs.retool.generator import KINDS, SIZES, SMALLEST, SPLITS, GeneratedProblems
from agent_gym.envs.retool.kind import LEVELS
from agent_gym.envs.retool.wording import SPLITS as WORDED
from agent_gym.envs.retool.wording import WORDINGS
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
            assert len(rows) >= 3, kind
            for row in rows[:2]:
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


def test_no_sentence_occurs_in_two_splits() -> None:
    """Without the numbers, and without the terms of a linear system."""
    said = {split: {_skeleton(row["problem"]) for row in GeneratedProblems(split, 3000)} for split in WORDED}
    assert len(said["train"]) >= 3 * len(KINDS)
    for split, other in [("train", "validation"), ("train", "test"), ("validation", "test")]:
        assert not said[split] & said[other]


def test_levels_grow() -> None:
    """In the digits of their numbers."""

    def digits(level: int) -> float:
        return sum(len(re.sub("[^0-9]", "", row["problem"])) for row in GeneratedProblems("train", 500, level))

    assert digits(1) < digits(2) < digits(3)
    assert {row["level"] for row in GeneratedProblems("train", 50)} == set(LEVELS)


def test_problems_rarely_repeat() -> None:
    assert len({row["problem"] for row in GeneratedProblems("train", 2000)}) > 1800


def test_a_problem_is_the_same_in_any_process_and_at_any_size() -> None:
    program = (
        "from agent_gym.envs.retool.generator import GeneratedProblems as G; "
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
        GeneratedProblems(split, 10**9, level)[i]
        for split in (*WORDED, "unseen_numbers")
        for level in (None, 2)
        for i in (0, 99)
    ]
    assert told == {f"{here}\n"}


def test_unseen_numbers_are_unseen_and_their_sentences_are_not() -> None:
    kinds = ("modular-power", "multiples", "coprime-count")

    def numbers(row: dict[str, str]) -> tuple[str, ...]:
        # As the program has them: sentences have numbers of their own, such as "from 1 to".
        return row["kind"], *re.findall(r"\d+", row["program"])

    train = list(GeneratedProblems("train", SIZES["train"], 1, kinds))
    seen, said = {numbers(row) for row in train}, {_skeleton(row["problem"]) for row in train}
    asked = {split: list(GeneratedProblems(split, 300, 1, kinds)) for split in SPLITS}
    for split, rows in asked.items():
        unseen = split.startswith("unseen_numbers")
        assert any(numbers(row) in seen for row in rows) != unseen
        assert {_skeleton(row["problem"]) in said for row in rows} == {unseen or split == "train"}
    assert asked["unseen_numbers"] != asked["unseen_numbers_dev"]
    with pytest.raises(ConfigError, match="training has all numbers of the kinds reciprocal-sum at the level 1"):
        GeneratedProblems("unseen_numbers", 10, 1, ("reciprocal-sum",))[0]


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
