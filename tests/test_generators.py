"""What all generated data promises (whole rows, the same everywhere, splits apart), and what GSM8K's and ReTool's do.

The worlds and fields that are searched are in test_search_generators.py.
"""

from __future__ import annotations

import itertools
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

from agent_gym import ConfigError
from agent_gym.envs.gsm8k import embedded as gsm8k
from agent_gym.envs.hotpotqa import embedded as hotpotqa
from agent_gym.envs.papersearch import embedded as papersearch
from agent_gym.envs.retool import embedded as retool
from agent_gym.envs.retool.embedded.kinds import KINDS, LEVELS
from agent_gym.sandbox import shared_sandbox


class Generator(NamedTuple):
    make: Callable[..., Sequence[dict[str, Any]]]
    sizes: dict[str, int]
    columns: str
    question: str


GENERATORS = {
    "gsm8k": Generator(
        gsm8k.GeneratedProblems, {"train": 7473, "validation": 500, "test": 1319}, "question answer", "question"
    ),
    "hotpotqa": Generator(
        hotpotqa.GeneratedQuestions,
        hotpotqa.SPLIT_SIZES,
        "_id question answer type level supporting_facts context world",
        "question",
    ),
    "papersearch": Generator(
        papersearch.GeneratedQueries,
        papersearch.SPLIT_SIZES,
        "query_id question papers type searches expands field",
        "question",
    ),
    "retool": Generator(retool.GeneratedProblems, retool.SIZES, "problem answer program kind level", "problem"),
}
each_generator = pytest.mark.parametrize("name", GENERATORS)


@each_generator
def test_rows_are_whole_and_splits_apart(name: str) -> None:
    make, sizes, columns, question = GENERATORS[name]
    seen: dict[str, str] = {}
    for split, size in sizes.items():
        n = min(size, 1000)
        rows = list(make(split, n))
        assert len(rows) == n and json.loads(json.dumps(rows)) == rows
        for row in rows:
            assert " ".join(row) == columns
            assert re.fullmatch(r"[A-Z0-9][^{}]*[?.]", row[question]) and "  " not in row[question]
            assert len(row[question]) < 1000 and seen.setdefault(row[question], split) == split
        different = len({row[question] for row in rows})
        assert different > (0.9 * n if split == "train" else 0.99 * n), (split, different)


@each_generator
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_row_is_the_same_at_any_size(name: str, split: str) -> None:
    more = {"retool": {"level": 2}, "hotpotqa": {"levels": ("easy", "medium"), "hops": 3}}
    for kwargs in ({}, more.get(name, {})):
        few, many = (GENERATORS[name].make(split, size, **kwargs) for size in (100, 200 if name == "gsm8k" else 10**9))
        assert [few[i] for i in (99, 7, 0)] == [
            many[i] for i in (99, 7, 0)
        ]  # the large ones are never drawn to the end


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        *((name, {"split": "dev"}, "'dev'.*train, validation, test") for name in ("hotpotqa", "papersearch", "retool")),
        ("papersearch", {"size": 0}, "size is 0"),
        ("hotpotqa", {"levels": ["easier"]}, "easier.*medium"),
        ("hotpotqa", {"levels": []}, r"\[\]"),
        ("hotpotqa", {"levels": ["easy", "hard"], "hops": 3}, "hops is 3"),
        ("retool", {"kinds": "coins"}, "kinds is 'coins'.*some of divisor-sum"),
        ("retool", {"level": 4}, "level is 4.*1, 2, 3"),
    ],
)
def test_wrong_arguments_are_named(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GENERATORS[name].make(**{"split": "train", "size": 5, **arguments})


# GSM8K

ANNOTATION = re.compile(r"(\S+) = <<([^=<>]+)=([^<>]+)>>(\S+)")


@pytest.mark.parametrize("split", gsm8k.SPLITS)
def test_the_arithmetic_of_gsm8k_is_right_and_starts_from_the_question(split: str) -> None:
    lengths = set()
    for row in gsm8k.GeneratedProblems(split, 2000):
        *worked, last = row["answer"].splitlines()
        known = {*re.findall(r"[0-9]+", row["question"]), "2"}  # "half" and "twice" mean 2 without a digit
        value = ""
        for line in worked:
            shown, expression, value, repeated = ANNOTATION.search(line).groups()  # type: ignore[union-attr]
            assert shown == expression and repeated == value and eval(expression) == int(value)
            assert 1 < int(value) < 3000  # exact, positive, and worth a plural
            assert set(re.findall(r"[0-9]+", expression)) <= known
            known.add(value)
        assert last == f"#### {value}"
        lengths.add(len(worked))
    assert lengths == {1, 2, 3, 4}


def skeletons(text: str) -> set[str]:
    """The sentences of a question without what fills their slots and without the time they begin with."""
    for slot, words in (
        ("NAME", gsm8k.NAMES), ("ITEM", gsm8k.ITEMS), ("BOX", gsm8k.BOXES), ("NUMBER", ["[0-9]+"])
    ):  # fmt: skip
        text = re.sub(rf"\b(?:{'|'.join(words)})\b", slot, text)
    opening = re.compile(rf"^(?:{'|'.join(when for when in gsm8k.WHEN if when)}) ")
    return {opening.sub("", sentence).lower() for sentence in re.split(r"(?<=[.?])\s+", text) if sentence}


def test_each_split_of_gsm8k_has_sentences_of_its_own_all_of_them_used_in_known_words() -> None:
    sentences: dict[str, set[str]] = {split: set() for split in gsm8k.SPLITS}
    words: dict[str, list[str]] = {split: [] for split in gsm8k.SPLITS}
    for split in gsm8k.SPLITS:
        used = {pattern for index in range(4000) for pattern in gsm8k.problem(split, index)[1]}
        assert used == {f"{f.name}/{split}/{k}" for f in gsm8k.FAMILIES for k in range(len(f.wordings[split]))}
        for row in gsm8k.GeneratedProblems(split, 4000):
            sentences[split] |= skeletons(row["question"])
            words[split] += re.findall("[a-z]+", row["question"].lower())
    assert len(sentences["train"]) > 150 and len(sentences["validation"]) > 40 and len(sentences["test"]) > 60
    assert not any(sentences[a] & sentences[b] for a, b in itertools.combinations(gsm8k.SPLITS, 2))
    known = set(words["train"])
    for split in ("validation", "test"):
        assert sum(word in known for word in words[split]) / len(words[split]) > 0.99


# ReTool


@pytest.mark.parametrize("level", LEVELS)
def test_the_programs_of_retool_print_the_answers(level: int) -> None:
    """Answer and program go different ways to the same number: some of each kind, with the text of each split."""
    sandbox = shared_sandbox()
    for split in retool.WORDED:
        rows = sorted(retool.GeneratedProblems(split, 300, level), key=lambda row: row["kind"])
        found = {kind: list(some)[:3] for kind, some in itertools.groupby(rows, key=lambda row: row["kind"])}
        assert found.keys() == KINDS.keys()
        for row in itertools.chain(*found.values()):
            execution = sandbox.run(row["program"])
            assert execution.stdout == row["answer"] + "\n", row
            assert execution.cpu_seconds < 1.5 and len(row["program"]) < 400, "far below any sandbox's limit"


def test_every_wording_of_retool_has_all_the_numbers_and_one_split() -> None:
    assert retool.WORDINGS.keys() == KINDS.keys()
    seen: set[str] = set()
    for kind, splits in retool.WORDINGS.items():
        texts = [text for split in retool.WORDED for text in splits[split]]
        slots = {frozenset(name for _, name, *_ in string.Formatter().parse(text) if name) for text in texts}
        assert len(slots) == 1, f"the wordings of {kind} have different slots: {slots}"
        assert all(splits[split] for split in retool.WORDED) and not seen & set(texts)
        assert len(set(texts)) == len(texts)
        seen |= set(texts)


def test_no_problem_of_retools_training_comes_again_in_any_sentence() -> None:
    """Nor with its numbers in another order; and each split has all kinds, and no answer that is easily guessed."""

    def asked(row: dict[str, str]) -> tuple[str, str, str]:
        return row["kind"], " ".join(sorted(re.findall(r"\d+", row["problem"]))), row["answer"]

    train = {asked(row) for row in retool.GeneratedProblems("train", retool.SIZES["train"])}
    for split in retool.SPLITS.keys() - {"train"}:
        rows = list(retool.GeneratedProblems(split, retool.SIZES[split]))
        assert [row["problem"] for row in rows if asked(row) in train] == []
        assert len({row["problem"] for row in rows}) == len(rows) == retool.SIZES[split]
        kinds = Counter(row["kind"] for row in rows)
        assert kinds.keys() == KINDS.keys() and min(kinds.values()) >= 20, kinds
        for row in rows:
            value = Fraction(row["answer"])
            assert str(value) == row["answer"] and (value.denominator > 1 or abs(value) >= retool.SMALLEST)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_each_split_of_retool_has_numbers_of_each_kind_and_level(kind: str, level: int) -> None:
    """And has as many problems as its length, where there are fewer than asked for."""
    for split in retool.SPLITS:
        rows = retool.GeneratedProblems(split, 40, level, (kind,))
        problems = [row["problem"] for row in rows]
        assert 1 <= len(rows) == len(problems) <= 40
        assert split == "train" or len(set(problems)) == len(problems)
    with pytest.raises(IndexError):
        rows[40]


def test_unseen_numbers_of_retool_have_the_sentences_of_training() -> None:
    def sentences(split: str, size: int) -> set[str]:
        rows = retool.GeneratedProblems(split, size, 1, ("modular-power", "multiples", "coprime-count"))
        return {re.sub(r"\d+( when divided by)?", "N", row["problem"]) for row in rows}

    known = sentences("train", 20_000)
    for split in retool.SPLITS:
        found = sentences(split, 300)
        assert found <= known if split.startswith(("unseen_numbers", "train")) else not found & known
