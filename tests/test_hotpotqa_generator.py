"""The generated worlds and questions: HotpotQA's form, true answers, two searches needed, nothing shared by splits."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from agent_gym.envs.hotpotqa.embedded import (
    LEVELS,
    SPLIT_SIZES,
    WORLDS,
    GeneratedQuestions,
)
from agent_gym.envs.hotpotqa.embedded.world import SIZES, get_world
from agent_gym.envs.names import MOST_WORLDS
from agent_gym.errors import ConfigError

every_split = pytest.mark.parametrize("split", SPLIT_SIZES)


@functools.cache
def some(split: str, size: int = 300) -> list[dict[str, Any]]:
    return list(GeneratedQuestions(split, size))


def gold_titles(row: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(title for title, _ in row["supporting_facts"]))


@every_split
def test_rows_have_hotpotqas_shape(split: str) -> None:
    for row in some(split):
        assert list(row)[:7] == ["_id", "question", "answer", "type", "level", "supporting_facts", "context"]
        assert json.loads(json.dumps(row)) == row
        assert row["question"].endswith("?") and not re.search(r"[{}]|  ", row["question"] + row["answer"])
        assert len(row["context"]) == 10 == len({title for title, _ in row["context"]})
        context = dict(row["context"])
        assert all(0 <= n < len(context[title]) for title, n in row["supporting_facts"])
        documents = {document.title: document.text for document in get_world(row["world"]).documents}
        for title, (first, *rest) in row["context"]:
            assert documents[title] == "".join([first, *rest])
            assert not first.startswith(" ") and all(sentence.startswith(" ") for sentence in rest)
    kinds = {(row["type"], row["level"]) for row in some(split)}
    assert kinds == {("bridge", "easy"), ("bridge", "medium"), ("comparison", "medium"), ("comparison", "hard")}


@every_split
def test_answers_follow_from_the_supporting_facts_alone(split: str) -> None:
    """Read the gold sentences as a person would and find the answer again."""
    for row in some(split):
        context = dict(row["context"])
        said = [(title, context[title][n]) for title, n in row["supporting_facts"]]
        for (start, _), (end, _) in zip(said[::2], said[1::2], strict=True):
            assert start in row["question"] and end not in row["question"]
        for (_, first), (end, _) in zip(said[::2], said[1::2], strict=True):
            assert end in first, "the first fact names what the second is about"
        if row["type"] == "bridge":
            assert row["answer"] in said[1][1]
            assert row["answer"] not in "".join(context[said[0][0]]), "one paragraph would have been enough"
        elif row["level"] == "medium":
            years = {title: int(re.findall(r"\d{4}", text)[0]) for title, text in said[1::2]}
            assert len(set(years.values())) == 2 and row["answer"] == min(years, key=years.__getitem__)
        else:
            names = [set(re.findall(r"[A-Z]\w+", text)) - {"The", *title.split()} for title, text in said[1::2]]
            assert row["answer"] == ("yes" if names[0] & names[1] else "no")
    hard = [row["answer"] for row in GeneratedQuestions(split, 200, ["hard"])]
    assert 60 < hard.count("yes") < 140


def test_no_entity_is_in_two_worlds_and_no_world_in_two_splits() -> None:
    seen: dict[str, int] = {}
    for number in [0, 1, 2, 79, *WORLDS["validation"], *WORLDS["test"]]:
        world = get_world(number)
        assert {kind: len(titles) for kind, titles in world.by_kind.items()} == SIZES
        names = set(world.entities) | {v for e in world.entities.values() for r, v in e.facts.items() if r != "year"}
        assert len(world.documents) == 405
        assert not names & set(seen), "a name belongs to one world"
        seen |= dict.fromkeys(names, number)
    assert not set(WORLDS["train"]) & {*WORLDS["validation"], *WORLDS["test"]}
    assert not set(WORLDS["validation"]) & set(WORLDS["test"])
    assert max(WORLDS["test"]) < MOST_WORLDS


@every_split
def test_questions_ask_for_the_relations_of_their_split(split: str) -> None:
    """In the text itself, and not only in the table it is made from."""
    words = {"validation": r"teacher|publisher", "test": r"mayor|river"}
    for row in some(split):
        asked = "train" if split.startswith("unseen_entities") else split
        assert {name for name, pattern in words.items() if re.search(pattern, row["question"])} == {asked} - {"train"}


@every_split
def test_one_search_with_the_question_is_not_enough_and_titles_are(split: str) -> None:
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever

    engines = {number: BM25Retriever(get_world(number).documents) for number in WORLDS[split][:8]}
    rows = [row for row in GeneratedQuestions(split, 2000 if split == "train" else 300) if row["world"] in engines]
    assert len(rows) > 100
    for row in rows:
        engine, gold = engines[row["world"]], gold_titles(row)
        (found,) = engine.search([row["question"]], 10)
        assert not set(gold) <= {hit.document.title for hit in found}
        by_title = engine.search(gold, 3)
        assert [hits[0].document.title for hits in by_title] == gold


@every_split
def test_distractors_are_what_a_search_finds(split: str) -> None:
    for row in some(split, 300)[:50]:
        world, shown = get_world(row["world"]), {title for title, _ in row["context"]}
        near = [title for title in world.rank(row["question"], 20) if title not in gold_titles(row)]
        assert set(near[:3]) <= shown


def test_a_question_is_the_same_in_any_process_and_at_any_size() -> None:
    program = (
        "from agent_gym.envs.hotpotqa.embedded import GeneratedQuestions as G; "
        "print([G(split, 100)[i] for split in ('test', 'train') for i in (99, 7, 0)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1234")
    }
    here = [GeneratedQuestions(split, 10**9)[i] for split in ("test", "train") for i in (99, 7, 0)]
    assert told == {f"{here}\n"}


def test_levels() -> None:
    for level in LEVELS:
        assert {row["level"] for row in GeneratedQuestions("train", 20, [level])} == {level}
    assert {row["level"] for row in GeneratedQuestions("train", 60, ("hard", "easy"))} == {"easy", "hard"}
    numbers = [row["answer"] for row in GeneratedQuestions("train", 60, ["easy"]) if row["answer"].isdigit()]
    assert numbers == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("dev",), "'dev'.*train, validation, test"), (("train", 0), "0"), (("train", 5, ["easier"]), "easier.*medium")]
    + [(("train", 5, "easy"), "'easy'"), (("train", 5, []), r"\[\]")],
)
def test_wrong_arguments_are_named(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GeneratedQuestions(*arguments)
