"""The invented fields and their questions: citations in time, answers that follow from them and no search finds."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from agent_gym.envs.names import MOST_WORLDS
from agent_gym.envs.papersearch.embedded import (
    FIELDS,
    FIRST_YEAR,
    LAST_YEAR,
    QUESTIONS,
    SPLIT_SIZES,
    WORDING,
    GeneratedQueries,
    get_field,
)
from agent_gym.envs.papersearch.tools import Library
from agent_gym.errors import ConfigError

every_split = pytest.mark.parametrize("split", SPLIT_SIZES)


@functools.cache
def some(split: str, size: int = 300) -> list[dict[str, Any]]:
    return list(GeneratedQueries(split, size))


def library(row: dict[str, Any]) -> Library:
    return get_field(row["field"]).library


def text(papers: Library, paper: str) -> str:
    return f"{papers.papers[paper].title} {papers.papers[paper].abstract}"


# Fields.


@pytest.mark.parametrize("number", [0, 1, 79, 80, 95])
def test_papers_cite_older_papers_of_the_field(number: int) -> None:
    papers = get_field(number).library
    assert 150 < len(papers.papers) < 230
    assert list(papers.papers) == [f"w{number}-{i}" for i in range(len(papers.papers))]
    years = [paper.year for paper in papers.papers.values()]
    assert years == sorted(years) and FIRST_YEAR <= years[0] and years[-1] <= LAST_YEAR
    for paper in papers.papers.values():
        assert paper.authors and not re.search(r"[{}]|  |\s$", paper.title + paper.abstract)
        assert len(set(paper.references)) == len(paper.references) == len(papers.references(paper.id))
        assert all(papers.papers[cited].year < paper.year for cited in paper.references)
        assert all(paper.id in papers.citing(cited) for cited in paper.references)
        assert papers.around(paper.id) == [*papers.references(paper.id), *papers.citing(paper.id)]
    assert len({paper.title for paper in papers.papers.values()}) == len(papers.papers)


def test_what_a_paper_does_not_name_it_cites() -> None:
    """And it does not say it by the way either: not in its title, and not by the name of another paper."""
    veiled = {kind: 0 for kind in WORDING["veiled"]}
    drafts = [draft for number in range(3) for draft in get_field(number).drafts if draft.kind == "application"]
    for draft in drafts:
        papers = get_field(int(draft.id[1:].split("-")[0])).library
        said = text(papers, draft.id)
        for kind, introduced in draft.about.items():
            assert introduced.id in papers.papers[draft.id].references
            assert (draft.names[kind] in said) == (kind in draft.named)
            assert any(words in said for words in WORDING["veiled"][kind]) == (kind not in draft.named)
            veiled[kind] += kind not in draft.named
    assert all(0.4 < n / len(drafts) < 0.6 for n in veiled.values())


def test_no_name_is_in_two_fields_and_no_field_in_two_splits() -> None:
    seen: set[str] = set()
    for number in [0, 1, 2, 79, *FIELDS["validation"], *FIELDS["test"]]:
        names = {name for draft in get_field(number).drafts for name in draft.names.values()}
        assert len(names) > 150 and not names & seen
        seen |= names
    numbers = [number for fields in FIELDS.values() for number in fields]
    assert len(set(numbers)) == len(numbers) and max(numbers) < MOST_WORLDS


# Questions.


@every_split
def test_rows_have_their_shape(split: str) -> None:
    for row in some(split):
        assert list(row) == ["query_id", "question", "papers", "type", "searches", "expands", "field"]
        assert json.loads(json.dumps(row)) == row
        assert row["question"][-1] in "?." and not re.search(r"[{}]|  ", row["question"])
        assert row["field"] in FIELDS[split] and 2 <= len(row["papers"]) <= 6
        assert len(set(row["papers"])) == len(row["papers"]) and set(row["papers"]) <= set(library(row).papers)
        assert all(name in row["question"] for name in row["searches"])
    assert {row["type"] for row in some(split)} == {"-".join(kinds) for kinds in QUESTIONS}
    assert (
        0.3
        < sum("from before" in row["question"] or "from after" in row["question"] for row in some(split)) / 300
        < 0.5
    )


@every_split
def test_answers_can_be_read_off_the_citations(split: str) -> None:
    """Find them as a reader would: what applies something, cites both papers asked about, and is of the right time."""
    for row in some(split):
        papers = library(row)
        for name, hub in zip(row["searches"], row["expands"], strict=True):
            first = papers.papers[hub].title + papers.papers[hub].abstract
            assert name in first and re.search("introduc|presents|pose|defines|release|describes", first)
        both = set(papers.citing(row["expands"][0])) & set(papers.citing(row["expands"][1]))
        answer = {paper for paper in both if re.search(r"appli(es|ed)", papers.papers[paper].abstract)}
        bound = re.search(r"from (before|after) (\d{4})", row["question"])
        for paper in list(answer):
            year = papers.papers[paper].year
            if bound and not (year < int(bound[2]) if bound[1] == "before" else year > int(bound[2])):
                answer.remove(paper)
        assert answer == set(row["papers"])
        assert not bound or len(answer) < len([p for p in both if "appli" in papers.papers[p].abstract])


@every_split
def test_searching_is_not_enough_and_citations_are(split: str) -> None:
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever

    engines = {number: BM25Retriever(get_field(number).library.documents) for number in FIELDS[split][:8]}
    rows = [row for row in GeneratedQueries(split, 2000 if split == "train" else 300) if row["field"] in engines]
    assert len(rows) > 100
    by_question, by_names, by_citations = [], [], []
    for row in rows:
        engine, gold = engines[row["field"]], set(row["papers"])
        (found,) = engine.search([row["question"]], 5)
        named = engine.search(row["searches"], 20)
        assert [hits[0].document.id for hits in named] == row["expands"], "a name finds first what introduced it"
        shown = {hit.document.id for hits in named for hit in hits}
        assert not gold <= shown, "names find all of the answer"
        by_question.append(len(gold & {hit.document.id for hit in found}) / len(gold))
        by_names.append(len(gold & shown) / len(gold))
        by_citations.append(min(len(gold & set(library(row).around(hub))) / len(gold) for hub in row["expands"]))
    means = [sum(shares) / len(rows) for shares in (by_question, by_names, by_citations)]
    print("{}: recall of the question {:.2f}, of its names {:.2f}, of their citations {:.2f}".format(split, *means))
    assert 0.2 < means[0] < 0.35 and max(by_question) < 1
    assert 0.5 < means[1] < 0.65
    assert means[2] == 1.0


def test_a_question_is_the_same_in_any_process_and_at_any_size() -> None:
    program = (
        "from agent_gym.envs.papersearch.embedded import GeneratedQueries as G; "
        "from agent_gym.envs.papersearch.embedded import get_field; "
        "print([G(split, 100)[i] for split in ('test', 'train') for i in (99, 7, 0)], get_field(5).library.papers)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1234")
    }
    here = [GeneratedQueries(split, 10**9)[i] for split in ("test", "train") for i in (99, 7, 0)]
    assert told == {f"{here} {get_field(5).library.papers}\n"}


@pytest.mark.parametrize(
    ("arguments", "words"), [(("dev",), "'dev'.*train, validation, test"), (("train", 0), "size is 0")]
)
def test_wrong_arguments_are_named(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GeneratedQueries(*arguments)
