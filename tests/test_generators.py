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
from property_tools import FULL

import agent_gym
from agent_gym import ConfigError
from agent_gym.envs.alfworld import embedded as alfworld
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
        hotpotqa.GeneratedQuestions.SIZES,
        "_id question answer type level supporting_facts context world",
        "question",
    ),
    "papersearch": Generator(
        papersearch.GeneratedQueries,
        papersearch.GeneratedQueries.SIZES,
        "query_id question papers related type searches expands field difficulty",
        "question",
    ),
    "retool": Generator(
        retool.RetoolProblems, retool.RetoolProblems.SIZES, "problem answer program kind level", "problem"
    ),
}
WORDED = ("train", "validation", "test")
"""The splits that have sentences of their own."""
each_generator = pytest.mark.parametrize("name", GENERATORS)


@each_generator
@pytest.mark.property
def test_rows_are_whole_and_splits_apart(name: str) -> None:
    make, sizes, columns, question = GENERATORS[name]
    seen: dict[str, str] = {}
    for split, size in sizes.items():
        n = min(size, 1000 if FULL else 250)
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
    hotpotqa = {"levels": ("easy", "medium"), "hops": 4, "alone": True}
    more = {"retool": {"level": 2}, "hotpotqa": hotpotqa, "gsm8k": {"difficulty": 5}, "papersearch": {"difficulty": 5}}
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
        ("papersearch", {"difficulty": 6}, "difficulty is 6.*1 to 5"),
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


# What decides the answer, by world: no two splits may share it, at any two difficulties.


def game(name: str) -> Any:
    """The room, the task, and where everything lies: what the opening says of them several games have in common."""
    source, split, index = name.split("/")
    receptacles = int(source.removeprefix("embedded-")) if "-" in source else None
    setting = alfworld.generate(split, int(index), receptacles=receptacles).setting
    lies = sorted((setting.objects[thing], place) for thing, place in setting.inside.items())
    task = setting.task_type, setting.thing, setting.place
    return setting.plan.number, sorted(setting.plan.receptacles), task, lies


CONTENT: dict[str, Callable[[Any], Any]] = {
    "GSM8K-v0": lambda row: (sorted(skeletons(row["question"])), re.findall(r"\d+", row["question"])),
    "HotpotQA-v0": lambda row: (row["supporting_facts"], row["answer"]),  # entities, relations, and what is asked
    "ReTool-v0": lambda row: (row["kind"], sorted(re.findall(r"\d+", row["problem"]))),  # numbers in any order
    "PaperSearch-v1": lambda row: row["query_id"],  # the two papers that introduced what is named, and the years
    "ALFWorld-v0": game,
    "WebShop-v0": lambda goal: (goal["asin"], goal["attributes"], goal["goal_options"]),
    "VisualMaze-v0": lambda layout: (layout.size, sorted(layout.walls), layout.start, layout.goal),
    "Bisect-v0": lambda task: task,  # how many commits, and the culprit
    "Support-v0": lambda row: row["task_key"],  # the customer's name, and all requests
    "Bargain-v0": lambda row: row["deal_key"],  # the pool, the role, and what it reads of the values
    "Sokoban-v0": lambda row: row["board"],
    "FrozenLake-v0": lambda row: row["map"],
    "Bandit-v0": lambda row: row["arms"],
    "Countdown-v0": lambda row: (sorted(row["nums"]), row["target"]),
}
RESTATED = {"HotpotQA-v0": 0.02, "WebShop-v0": 0.03, "GSM8K-v0": 0.03, "ReTool-v0": 0.2}
"""Share of an evaluation that asks for the same in other words, or with other names and things, at most."""


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.property
def test_splits_share_neither_text_nor_content_and_evaluations_repeat_nothing(name: str) -> None:
    pytest.importorskip("math_verify" if name == "ReTool-v0" else "bm25s")
    texts: dict[str, str] = {}
    contents: dict[str, str] = {}
    for difficulty in (None, 1, 2, 3, 4, 5) if FULL else (None, 1, 5):
        env: Any = agent_gym.make(f"AgentR1/{name}", difficulty=difficulty)
        for split in ("train", "validation", "test"):
            size = (100 if difficulty is None else 15) * (1 + (split == "train"))
            tasks = list(itertools.islice(env.tasks[split], size))
            opened = [str(env.reset(seed=0, options={"task": task})[1]["messages"][-1]["content"]) for task in tasks]
            decides = [repr(CONTENT[name](task)) for task in tasks]
            assert [text for text in opened if texts.setdefault(text, split) != split] == []
            assert [one for one in decides if contents.setdefault(one, split) != split] == []
            if split != "train":
                assert len(set(decides)) >= (1 - RESTATED.get(name, 0)) * len(tasks)
                assert len(set(zip(opened, decides, strict=True))) == len(tasks)
                assert name in ("ALFWorld-v0", "Bisect-v0") or len(set(opened)) == len(tasks)
        env.close()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Bisect-v0", {"difficulty": 2, "size": 64}, "difficulty=2 sets size, and size is 64; leave one out"),
        ("VisualMaze-v0", {"difficulty": 1, "max_turns": 5}, "sets max_turns"),
        ("ALFWorld-v0", {"difficulty": 4, "receptacles": 6}, "sets receptacles"),
        ("ReTool-v0", {"difficulty": 1, "level": 1}, "sets level"),
        ("HotpotQA-v0", {"difficulty": 1, "levels": ["easy"]}, "sets levels"),
        ("WebShop-v0", {"difficulty": 1, "data": "embedded-easy"}, "only data='embedded'"),
        ("GSM8K-v0", {"difficulty": 1, "data": "openai/gsm8k"}, "only data='embedded'"),
        ("MultiHopQA-v0", {"difficulty": 1, "data": ["a.json"]}, "only data='embedded'"),
        ("PaperSearch-v1", {"difficulty": 1, "data": "folder"}, "only data='embedded'"),
        ("GSM8K-v0", {"difficulty": 0}, "difficulty is 0; it must be a whole number from 1 to 5"),
        ("WebShop-v0", {"difficulty": "hard"}, "difficulty is 'hard'"),
    ],
)
def test_a_difficulty_is_1_to_5_of_generated_tasks_and_says_alone_what_it_sets(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        agent_gym.make(f"AgentR1/{name}", **arguments)


# GSM8K

ANNOTATION = re.compile(r"(\S+) = <<([^=<>]+)=([^<>]+)>>(\S+)")


@pytest.mark.parametrize("difficulty", [None, 1, 3, 5])
@pytest.mark.parametrize("split", gsm8k.SPLITS)
def test_the_arithmetic_of_gsm8k_is_right_and_starts_from_the_question(split: str, difficulty: int | None) -> None:
    lengths = set()
    for row in gsm8k.GeneratedProblems(split, 2000 if difficulty is None else 500, difficulty):
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
        told = len(re.findall(r"[0-9]+", row["question"]))
        assert difficulty is None or told >= len(worked) * (difficulty < 3) + (difficulty - 2) * (difficulty > 2)
    assert lengths == ({1, 2, 3, 4} if difficulty is None else {difficulty})


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
        used = set[str]().union(*(gsm8k.problem(split, index)[1] for index in range(4000)))
        assert used == {wording for family in gsm8k.FAMILIES for wording in family.wordings[split]}
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
    for split in WORDED:
        rows = sorted(retool.RetoolProblems(split, 300, level), key=lambda row: row["kind"])
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
        texts = [text for split in WORDED for text in splits[split]]
        slots = {frozenset(name for _, name, *_ in string.Formatter().parse(text) if name) for text in texts}
        assert len(slots) == 1, f"the wordings of {kind} have different slots: {slots}"
        assert all(splits[split] for split in WORDED) and not seen & set(texts)
        assert len(set(texts)) == len(texts)
        seen |= set(texts)


def test_no_problem_of_retools_training_comes_again_in_any_sentence() -> None:
    """Nor with its numbers in another order; and each split has all kinds, and no answer that is easily guessed."""

    def asked(row: dict[str, str]) -> tuple[str, str, str]:
        return row["kind"], " ".join(sorted(re.findall(r"\d+", row["problem"]))), row["answer"]

    train = {asked(row) for row in retool.RetoolProblems("train", retool.RetoolProblems.SIZES["train"])}
    for split in retool.SPLITS.keys() - {"train"}:
        rows = list(retool.RetoolProblems(split, retool.RetoolProblems.SIZES[split]))
        assert [row["problem"] for row in rows if asked(row) in train] == []
        assert len({row["problem"] for row in rows}) == len(rows) == retool.RetoolProblems.SIZES[split]
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
        rows = retool.RetoolProblems(split, 40, level, (kind,))
        problems = [row["problem"] for row in rows]
        assert 1 <= len(rows) == len(problems) <= 40
        assert split == "train" or len(set(problems)) == len(problems)
    with pytest.raises(IndexError):
        rows[40]


def test_unseen_numbers_of_retool_have_the_sentences_of_training() -> None:
    def sentences(split: str, size: int) -> set[str]:
        rows = retool.RetoolProblems(split, size, 1, ("modular-power", "multiples", "coprime-count"))
        return {re.sub(r"\d+( when divided by)?", "N", row["problem"]) for row in rows}

    known = sentences("train", 20_000)
    for split in retool.SPLITS:
        found = sentences(split, 300)
        assert found <= known if split.startswith(("unseen_numbers", "train")) else not found & known
