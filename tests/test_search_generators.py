"""The generated worlds of HotpotQA and fields of paper search: true answers, more than one search, nothing shared."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest

from agent_gym.envs.hotpotqa.embedded import WORLDS, GeneratedQuestions
from agent_gym.envs.hotpotqa.embedded.world import SIZES, get_world
from agent_gym.envs.names import MOST_WORLDS
from agent_gym.envs.papersearch.embedded import QUESTIONS, GeneratedQueries
from agent_gym.envs.papersearch.embedded.field import (
    FIELDS,
    FIRST_YEAR,
    LADDER,
    LAST_YEAR,
    WORDING,
    Field,
    get_field,
)
from agent_gym.envs.papersearch.tools import Paper

each_split = pytest.mark.parametrize("split", GeneratedQuestions.SIZES)
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
    for number in [0, 1, 2, 71, *FIELDS["validation"], *FIELDS["test"]]:
        names = {name for draft in get_field(number).drafts for name in draft.names.values() if name.istitle()}
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


@pytest.mark.parametrize("hops", [3, 4])
@each_split
def test_longer_chains_of_paragraphs(split: str, hops: int) -> None:
    rows = list(GeneratedQuestions(split, 30, ["easy", "medium"], hops=hops))
    searching = engines({row["world"]: get_world(row["world"]).documents for row in rows})
    for row in rows:
        titles, texts = zip(*facts_of(row), strict=True)
        assert len(set(titles)) == hops and row["type"] == "bridge" and titles[0] in row["question"]
        assert all(title not in row["question"] for title in titles[1:])
        assert all(title in text for title, text in zip(titles[1:], texts, strict=False)) and row["answer"] in texts[-1]
        assert row["answer"] not in "".join("".join(dict(row["context"])[title]) for title in titles[:-1])
        (found,) = searching[row["world"]].search([row["question"]], 10)
        assert not set(titles[1:]) & {hit.document.title for hit in found}


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


@pytest.mark.parametrize("number", [0, 71, 72, 84, 95])
def test_papers_cite_older_papers_of_the_field(number: int) -> None:
    papers = get_field(number).library
    assert 220 < len(papers.papers) < 270
    assert list(papers.papers) == [f"w{number}-{i}" for i in range(len(papers.papers))]
    years = [paper.year for paper in papers.papers.values()]
    assert years == sorted(years) and FIRST_YEAR <= years[0] and years[-1] <= LAST_YEAR
    for paper in papers.papers.values():
        assert paper.authors and not re.search(r"[{}]|  |\s$", paper.title + paper.abstract)
        assert len(set(paper.references)) == len(paper.references) and papers.cites[paper.id] == list(paper.references)
        assert all(papers.papers[cited].year < paper.year for cited in paper.references)
        assert papers.around(paper.id) == [*paper.references, *papers.citing[paper.id]]
    assert len({paper.title for paper in papers.papers.values()}) == len(papers.papers)


CALLED = r"[Tt]he (?:method|task|data) of \w+(?: et al[.])? \(\d+\)"
PHRASE = rf"(?:{CALLED}|(?:[Aa]n?|[Tt]he) \w+ \w+|[Pp]ublic data|[A-Z]\w+)"
SLOTS = {"system": "[A-Z][a-z]+", "n": "[0-9]+", **dict.fromkeys(("method", "task", "dataset", "rival"), PHRASE)}


@functools.cache
def readings(split: str) -> list[tuple[re.Pattern[str], str]]:
    """Every abstract of an application as a pattern, with what its rivals are rivals of."""
    opening, testing, _ = WORDING["abstracts"]["application"]
    openings = [("", text) for text in opening]
    openings += [(one, text) for one in ("method", "task") for text in WORDING["held_out"][f"rival {one}"][split]]
    tests = [("", text) for text in testing]
    tests += [("dataset", text.replace("rival", "other")) for text in WORDING["held_out"]["rival dataset"][split]]
    found = []
    for (one, first), (other, second) in itertools.product(openings, tests):
        pattern = re.escape(f"{first}{second} ").replace(r"\{", "{").replace(r"\}", "}")
        slots = {name: f"(?P<{name}>{words})" for name, words in {**SLOTS, "other": PHRASE}.items()}
        used: set[str] = set()
        for name in re.findall(r"{(\w+)}", pattern):
            pattern = pattern.replace(f"{{{name}}}", f"(?P={name})" if name in used else slots[name], 1)
            used.add(name)
        found.append((re.compile(pattern), f"{one} {other}"))
    return found


def applied(field: Field, paper: Paper, split: str) -> dict[str, str]:
    """Read an abstract: kind of thing to the paper that introduced what is applied; empty where nothing is."""
    matches = [(found, rivals) for one, rivals in readings(split) if (found := one.match(paper.abstract))]
    if not matches:
        return {}
    ((found, rivals),) = matches
    introduced = {
        draft.id: draft for draft in field.drafts if draft.kind in draft.about and draft.id in paper.references
    }
    result = {}
    for kind in ("method", "task", "dataset"):
        phrase, known = found[kind], [one for one in introduced.values() if one.kind == kind]
        rival = found["other" if kind == "dataset" else "rival"].lower() if kind in rivals.split() else None
        called = {one.id: {one.names[name].lower() for name in (kind, "other", "after")} for one in known}
        # What is not applied is called something; what is left is what is applied, and it alone.
        (result[kind],) = (one for one, names in called.items() if rival not in names)
        assert phrase.lower() in called[result[kind]] | set(WORDING["veiled"][kind])
    return result


@pytest.mark.parametrize("difficulty", LADDER)
@each_split_of_papers
def test_papers_asked_for_can_be_found_by_reading_and_not_by_citations_alone(split: str, difficulty: int) -> None:
    rows = list(GeneratedQueries(split, 25, difficulty))
    assert {row["type"] for row in rows} == {"-".join(kinds) for kinds in QUESTIONS}
    share = []
    for row in rows:
        field = get_field(row["field"], difficulty)
        papers, bound = field.library, re.search(r"from (before|after) (\d{4})", row["question"])
        assert row["field"] in FIELDS[split] and 2 <= len(row["papers"]) <= 6
        for name, hub in zip(row["searches"], row["expands"], strict=True):
            first = papers.papers[hub].title + papers.papers[hub].abstract
            assert name in row["question"] and re.search(rf"{name}\b", first)
            assert re.search("introduc|presents|pose|defines|release|describes", first)
        least, most = FIRST_YEAR, LAST_YEAR
        if bound:
            least, most = (least, int(bound[2]) - 1) if bound[1] == "before" else (int(bound[2]) + 1, most)
        both = set(papers.citing[row["expands"][0]]) & set(papers.citing[row["expands"][1]])
        both = {one for one in both if least <= papers.papers[one].year <= most}
        about = dict(zip(row["type"].split("-"), row["expands"], strict=True))
        answer = {one for one in both if about.items() <= applied(field, papers.papers[one], split).items()}
        assert answer == set(row["papers"]) and both - answer == set(row["related"])
        share.append(len(both - answer) / len(answer))
    assert 0 < sum("from" in row["question"] for row in rows) < len(rows)
    assert min(share) >= LADDER[difficulty].decoys and (difficulty > 2) == (max(share) > 0)


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
    assert 0.03 < means[0] < 0.12 and max(by_question) < 1 and 0.2 < means[1] < 0.3
