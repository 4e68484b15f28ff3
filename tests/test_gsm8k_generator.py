"""The generated problems: GSM8K's shape, right arithmetic, the same everywhere, and truly unseen sentences held out."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from agent_gym.envs.gsm8k.calculator import calculate
from agent_gym.envs.gsm8k.embedded import (
    BOXES,
    FAMILIES,
    ITEMS,
    NAMES,
    SIZES,
    SPLITS,
    WHEN,
    GeneratedProblems,
)
from agent_gym.errors import ConfigError

ANNOTATION = re.compile(r"(\S+) = <<([^=<>]+)=([^<>]+)>>(\S+)")


def skeletons(text: str) -> set[str]:
    """The sentences of a question without what fills their slots and without the time they begin with."""
    for slot, words in (("NAME", NAMES), ("ITEM", ITEMS), ("BOX", BOXES), ("NUMBER", ["[0-9]+"])):
        text = re.sub(rf"\b(?:{'|'.join(words)})\b", slot, text)
    opening = re.compile(rf"^(?:{'|'.join(when for when in WHEN if when)}) ")
    return {opening.sub("", sentence).lower() for sentence in re.split(r"(?<=[.?])\s+", text) if sentence}


def words_of(split: str) -> list[str]:
    """Every word of every question among the first 2000, repeated as often as it is said."""
    return [word for row in GeneratedProblems(split, 2000) for word in re.findall("[a-z]+", row["question"].lower())]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_have_gsm8ks_shape_and_right_arithmetic(split: str) -> None:
    steps_seen = set()
    for row in GeneratedProblems(split, 2000):
        assert list(row) == ["question", "answer"]
        assert "{" not in row["question"] + row["answer"] and "  " not in row["question"]
        assert row["question"].endswith(("?", ".")) and row["question"][0].isupper() | row["question"][0].isdigit()
        *worked, last = row["answer"].splitlines()
        found = [ANNOTATION.search(line) for line in worked]
        assert all(found)
        values = []
        for match in found:
            assert match is not None
            shown, expression, value, repeated = match.groups()
            assert shown == expression and repeated == value == calculate(expression)
            assert value.isdigit() and 1 < int(value) < 3000  # exact, positive, and worth a plural
            values.append(value)
        assert last == f"#### {values[-1]}"
        steps_seen.add(len(worked))
    assert steps_seen == {1, 2, 3, 4}


@pytest.mark.parametrize("split", SPLITS)
def test_every_number_of_a_calculation_is_in_the_question_or_was_calculated(split: str) -> None:
    for row in GeneratedProblems(split, 500):
        known = set(re.findall(r"[0-9]+", row["question"])) | {"2"}  # "half" and "twice" say 2 without a digit
        for _, expression, value, _ in ANNOTATION.findall(row["answer"]):
            assert set(re.findall(r"[0-9]+", expression)) <= known
            known.add(value)


def test_no_sentence_occurs_in_two_splits() -> None:
    seen: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for row in GeneratedProblems(split, 4000):
            seen[split] |= skeletons(row["question"])
    assert len(seen["train"]) > 150 and len(seen["validation"]) > 40 and len(seen["test"]) > 60
    for split, other in [("train", "validation"), ("train", "test"), ("validation", "test")]:
        assert not seen[split] & seen[other]


def test_every_pattern_is_used_and_known_by_its_id() -> None:
    for split in SPLITS:
        problems = GeneratedProblems(split, 4000)
        used = {pattern for index in range(len(problems)) for pattern in problems.patterns(index)}
        assert used == {f"{f.name}/{split}/{k}" for f in FAMILIES for k in range(len(f.wordings[split]))}


def test_every_family_has_wordings_in_every_split_and_all_differ() -> None:
    wordings = [wording for family in FAMILIES for split in SPLITS for wording in family.wordings[split]]
    assert len(wordings) > 250 and len({wording.removeprefix("{when} ") for wording in wordings}) == len(wordings)
    assert all(family.wordings[split] for family in FAMILIES for split in SPLITS)


def test_most_held_out_words_are_known_from_training() -> None:
    known = set(words_of("train"))
    for split in ("validation", "test"):
        said = words_of(split)
        assert sum(word in known for word in said) / len(said) > 0.99


def test_a_problem_is_the_same_in_any_process_and_at_any_size() -> None:
    program = (
        "from agent_gym.envs.gsm8k.embedded import GeneratedProblems as G; "
        "print([G(split, 100)[i] for split in ('train', 'validation', 'test') for i in (0, 7, 99)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1234")
    }
    here = [GeneratedProblems(split, 10**9)[i] for split in SPLITS for i in (0, 7, 99)]
    assert told == {f"{here}\n"}


def test_it_is_a_sequence() -> None:
    problems = GeneratedProblems("test", 10)
    assert len(problems) == 10 and len(list(problems)) == 10
    assert problems[-1] == problems[9] and problems[2:8:3] == [problems[2], problems[5]]
    assert problems[3] in problems and problems.patterns(-1) == problems.patterns(9)
    for index in (10, -11):
        with pytest.raises(IndexError):
            problems[index]
    assert len(GeneratedProblems("train")) == SIZES["train"]


def test_problems_hardly_repeat() -> None:
    assert len({row["question"] for row in GeneratedProblems("train", 5000)}) > 4950


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="'dev'.*train, validation, test"):
        GeneratedProblems("dev")
    with pytest.raises(ConfigError, match="0"):
        GeneratedProblems("train", 0)
