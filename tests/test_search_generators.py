"""The generated worlds of HotpotQA and fields of paper search: true answers, more than one search, nothing shared."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from agent_gym.envs.hotpotqa.embedded import SPLIT_SIZES, WORLDS, GeneratedQuestions
from agent_gym.envs.hotpotqa.embedded.world import SIZES, get_world
from agent_gym.envs.names import MOST_WORLDS
from agent_gym.envs.papersearch.embedded import (
    FIELDS,
    FIRST_YEAR,
    LAST_YEAR,
    QUESTIONS,
    WORDING,
    GeneratedQueries,
    get_field,
)

each_split = pytest.mark.parametrize("split", SPLIT_SIZES)
each_split_of_papers = pytest.mark.parametrize("split", FIELDS)


@functools.cache
def some(generator: Any, split: str) -> list[dict[str, Any]]:
    return list(generator(split, 300))


def engines(documents: dict[int, Any]) -> dict[int, Any]:
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever

    return {number: BM25Retriever(found) for number, found in documents.items()}


def facts_of(row: dict[str, Any]) -> list[tuple[str, str]]:
    context = dict(row["context"])
    return [(title, context[title][n]) for title, n in row["supporting_facts"]]


def test_no_name_is_in_two_worlds_or_fields_and_no_world_or_field_in_two_splits() -> None:
    seen: set[str] = set()
    for number in [0, 1, 2, 79, *WORLDS["validation"], *WORLDS["test"]]:
        world = get_world(number)
        assert {kind: len(titles) for kind, titles in world.by_kind.items()} == SIZES and len(world.documents) == 405
        names = set(world.entities) | {v for e in world.entities.values() for r, v in e.facts.items() if r != "year"}
        assert not names & seen
        seen |= names
    seen.clear()
    for number in [0, 1, 2, 79, *FIELDS["validation"], *FIELDS["test"]]:
        names = {name for draft in get_field(number).drafts for name in draft.names.values()}
        assert len(names) > 150 and not names & seen
        seen |= names
    for splits in (FIELDS, {split: WORLDS[split] for split in ("train", "validation", "test")}):
        numbers = [number for part in splits.values() for number in part]
        assert len(set(numbers)) == len(numbers) and max(numbers) < MOST_WORLDS


# HotpotQA


@each_split
def test_a_context_is_ten_paragraphs_of_its_world_that_a_search_finds(split: str) -> None:
    for row in some(GeneratedQuestions, split)[:100]:
        context, world = dict(row["context"]), get_world(row["world"])
        assert len(row["context"]) == 10 == len(context)
        gold = {title for title, _ in facts_of(row)}
        documents = {document.title: document.text for document in world.documents}
        for title, (first, *rest) in row["context"]:
            assert documents[title] == "".join([first, *rest])
            assert not first.startswith(" ") and all(sentence.startswith(" ") for sentence in rest)
        near = [title for title in world.rank(row["question"], 20) if title not in gold]
        assert set(near[:3]) <= set(context)
    kinds = {(row["type"], row["level"]) for row in some(GeneratedQuestions, split)}
    assert kinds == {("bridge", "easy"), ("bridge", "medium"), ("comparison", "medium"), ("comparison", "hard")}


@each_split
def test_answers_follow_from_the_supporting_facts_alone(split: str) -> None:
    """Read the gold sentences as a person would and find the answer again."""
    for row in some(GeneratedQuestions, split):
        facts = facts_of(row)
        for (start, first), (end, _) in zip(facts[::2], facts[1::2], strict=True):
            assert start in row["question"] and end not in row["question"] and end in first
        if row["type"] == "bridge":
            assert row["answer"] in facts[1][1]
            assert row["answer"] not in "".join(dict(row["context"])[facts[0][0]]), "one paragraph is enough"
        elif row["level"] == "medium":
            years = {title: int(re.findall(r"\d{4}", text)[0]) for title, text in facts[1::2]}
            assert len(set(years.values())) == 2 and row["answer"] == min(years, key=years.__getitem__)
        else:
            names = [set(re.findall(r"[A-Z]\w+", text)) - {"The", *title.split()} for title, text in facts[1::2]]
            assert row["answer"] == ("yes" if names[0] & names[1] else "no")
        # In the text itself, and not only in the table it is made from.
        asked = {name for name, words in (("validation", r"teacher|publisher"), ("test", r"mayor|river"))
                 if re.search(words, row["question"])}  # fmt: skip
        assert asked == {split} - {"train", "unseen_entities", "unseen_entities_dev"}
    hard = [row["answer"] for row in GeneratedQuestions(split, 200, ["hard"])]
    assert 60 < hard.count("yes") < 140


@each_split
def test_three_hops(split: str) -> None:
    rows = list(GeneratedQuestions(split, 60, ["easy", "medium"], hops=3))
    searching = engines({row["world"]: get_world(row["world"]).documents for row in rows})
    for row in rows:
        (start, first), (second, between), (end, last) = facts_of(row)
        assert len({start, second, end}) == 3 and row["type"] == "bridge"
        assert start in row["question"] and second not in row["question"] and end not in row["question"]
        assert second in first and end in between and row["answer"] in last
        assert row["answer"] not in "".join("".join(dict(row["context"])[title]) for title in (start, second))
        (found,) = searching[row["world"]].search([row["question"]], 10)
        assert not {second, end} & {hit.document.title for hit in found}


@each_split
def test_one_search_with_the_question_is_not_enough_and_titles_are(split: str) -> None:
    searching = engines({number: get_world(number).documents for number in WORLDS[split][:8]})
    rows = [row for row in GeneratedQuestions(split, 2000 if split == "train" else 300) if row["world"] in searching]
    assert len(rows) > 100
    for row in rows:
        engine, gold = searching[row["world"]], list(dict.fromkeys(title for title, _ in row["supporting_facts"]))
        found, *by_title = engine.search([row["question"], *gold], 10)
        assert not set(gold) <= {hit.document.title for hit in found}
        assert [hits[0].document.title for hits in by_title] == gold


# Paper search


@pytest.mark.parametrize("number", [0, 1, 79, 80, 95])
def test_papers_cite_older_papers_of_the_field(number: int) -> None:
    papers = get_field(number).library
    assert 150 < len(papers.papers) < 230
    assert list(papers.papers) == [f"w{number}-{i}" for i in range(len(papers.papers))]
    years = [paper.year for paper in papers.papers.values()]
    assert years == sorted(years) and FIRST_YEAR <= years[0] and years[-1] <= LAST_YEAR
    for paper in papers.papers.values():
        assert paper.authors and not re.search(r"[{}]|  |\s$", paper.title + paper.abstract)
        assert len(set(paper.references)) == len(paper.references) and papers.cites[paper.id] == list(paper.references)
        assert all(papers.papers[cited].year < paper.year for cited in paper.references)
        assert papers.around(paper.id) == [*paper.references, *papers.citing[paper.id]]
    assert len({paper.title for paper in papers.papers.values()}) == len(papers.papers)


def test_what_a_paper_does_not_name_it_cites() -> None:
    """And it does not name it by the way either: not in its title, and not by the name of another paper."""
    veiled = {kind: 0 for kind in WORDING["veiled"]}
    drafts = [draft for number in range(3) for draft in get_field(number).drafts if draft.kind == "application"]
    for draft in drafts:
        paper = get_field(int(draft.id[1:].split("-")[0])).library.papers[draft.id]
        text = f"{paper.title} {paper.abstract}"
        for kind, introduced in draft.about.items():
            assert introduced.id in paper.references
            assert (draft.names[kind] in text) == (kind in draft.named)
            assert any(words in text for words in WORDING["veiled"][kind]) == (kind not in draft.named)
            veiled[kind] += kind not in draft.named
    assert all(0.4 < n / len(drafts) < 0.6 for n in veiled.values())


@each_split_of_papers
def test_papers_asked_for_can_be_read_off_the_citations(split: str) -> None:
    """Find them as a reader would: what applies something, cites both papers asked about, and is of the right time."""
    rows = some(GeneratedQueries, split)
    assert {row["type"] for row in rows} == {"-".join(kinds) for kinds in QUESTIONS}
    bounds = [re.search(r"from (before|after) (\d{4})", row["question"]) for row in rows]
    assert 0.3 < sum(bound is not None for bound in bounds) / len(rows) < 0.5
    for row, bound in zip(rows, bounds, strict=True):
        assert row["field"] in FIELDS[split] and 2 <= len(row["papers"]) <= 6
        papers = get_field(row["field"]).library
        for name, hub in zip(row["searches"], row["expands"], strict=True):
            first = papers.papers[hub].title + papers.papers[hub].abstract
            assert name in row["question"] and name in first
            assert re.search("introduc|presents|pose|defines|release|describes", first)
        both = set(papers.citing[row["expands"][0]]) & set(papers.citing[row["expands"][1]])
        applied = {paper for paper in both if re.search(r"appli(es|ed)", papers.papers[paper].abstract)}
        year, least, most = int(bound[2]) if bound else 0, FIRST_YEAR, LAST_YEAR
        if bound:
            least, most = (least, year - 1) if bound[1] == "before" else (year + 1, most)
        answer = [paper for paper in papers.papers if paper in applied and least <= papers.papers[paper].year <= most]
        assert answer == row["papers"] and (not bound or len(answer) < len(applied))


@each_split_of_papers
def test_searching_is_not_enough_and_citations_are(split: str) -> None:
    searching = engines({number: get_field(number).library.documents for number in FIELDS[split][:8]})
    rows = [row for row in GeneratedQueries(split, 2000 if split == "train" else 300) if row["field"] in searching]
    assert len(rows) > 100
    by_question, by_names = [], []
    for row in rows:
        engine, gold, library = searching[row["field"]], set(row["papers"]), get_field(row["field"]).library
        (found,) = engine.search([row["question"]], 5)
        named = engine.search(row["searches"], 20)
        assert [hits[0].document.id for hits in named] == row["expands"], "a name finds first what introduced it"
        shown = {hit.document.id for hits in named for hit in hits}
        assert not gold <= shown, "names find all of the answer"
        assert all(gold <= set(library.around(hub)) for hub in row["expands"])
        by_question.append(len(gold & {hit.document.id for hit in found}) / len(gold))
        by_names.append(len(gold & shown) / len(gold))
    means = [sum(shares) / len(rows) for shares in (by_question, by_names)]
    assert 0.2 < means[0] < 0.35 and max(by_question) < 1 and 0.5 < means[1] < 0.65
