"""Fusion adds up reciprocal ranks, and nothing else decides."""

from __future__ import annotations

import copy
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_tools import CountingRetriever, hotpotqa_sample

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document, Hit, Retriever
from agent_gym.search.engines import HybridRetriever, fuse
from agent_gym.search.sources import open_source

rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=4)


def hits(ids, scores=None):
    return [Hit(Document(id, "", ""), scores[i] if scores else 0.0) for i, id in enumerate(ids)]


def ids(found):
    return [hit.document.id for hit in found]


class Fixed:
    def __init__(self, *ids):
        self.ids = ids

    def search(self, queries, k):
        return [hits(self.ids[:k]) for _ in queries]


def test_the_example_by_hand():
    found = fuse([hits("abc"), hits("cd")])
    assert ids(found) == ["c", "a", "b", "d"]
    assert [hit.score for hit in found] == [1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62]
    # b and d have the same sum: the first engine, which has b, decides.
    assert ids(fuse([hits("cd"), hits("abc")])) == ["c", "a", "d", "b"]


@given(rankings, st.integers(0, 100))
def test_sums_are_exact_and_ordered(given, k_constant):
    found = fuse([hits(ranking) for ranking in given], k_constant)
    sums = {
        id: sum(Fraction(1, k_constant + ranking.index(id) + 1) for ranking in given if id in ranking)
        for id in {id for ranking in given for id in ranking}
    }
    assert sorted(ids(found)) == sorted(sums)
    assert all(hit.score == pytest.approx(float(sums[hit.document.id]), rel=1e-15) for hit in found)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


@given(rankings, st.randoms())
def test_only_ranks_count(given, random):
    with_scores = [hits(ranking, [random.random() for _ in ranking]) for ranking in given]
    assert fuse(with_scores) == fuse([hits(ranking) for ranking in given])


@given(rankings, st.permutations(range(4)))
def test_the_order_of_the_engines_changes_ties_only(given, order):
    shuffled = [given[i] for i in order if i < len(given)]
    one, other = fuse([hits(r) for r in given]), fuse([hits(r) for r in shuffled])
    assert {hit.document.id: hit.score for hit in one} == {hit.document.id: hit.score for hit in other}
    assert [hit.score for hit in one] == [hit.score for hit in other]


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1))
def test_one_engine_or_the_same_twice_keeps_its_order(ranking):
    assert ids(fuse([hits(ranking)])) == ranking
    assert ids(fuse([hits(ranking)] * 2)) == ranking


def test_search_asks_deeper_than_it_answers():
    # "d" is outside the first two of both engines, and first when they are put together.
    engine = HybridRetriever([Fixed("a", "b", "d"), Fixed("e", "f", "d")])
    assert isinstance(engine, Retriever)
    assert [ids(found) for found in engine.search(["x", "y"], 2)] == [["d", "a"]] * 2
    assert engine.search([], 2) == []
    assert copy.deepcopy(engine) is engine


def test_engines_are_called_once_for_all_queries():
    engines = [CountingRetriever(), CountingRetriever()]
    HybridRetriever(engines).search(["x", "y"], 3)
    assert [engine.calls for engine in engines] == [[(["x", "y"], 50)]] * 2
    HybridRetriever(engines).search(["x"], 70)
    assert engines[0].calls[-1] == (["x"], 70)


def test_wrong_arguments_and_broken_engines():
    with pytest.raises(ConfigError, match="no retrievers"):
        HybridRetriever([])
    for constant in (-1, math.inf, math.nan):
        with pytest.raises(ConfigError, match="k_constant is"):
            HybridRetriever([Fixed()], k_constant=constant)
    with pytest.raises(ConfigError, match="k is 0"):
        HybridRetriever([Fixed("a")]).search(["x"], 0)
    with pytest.raises(EnvFailure, match="broke"):
        HybridRetriever([Fixed("a"), CountingRetriever()]).search(["fail"], 1)


def test_words_and_letters_together_find_more_than_the_worse_of_them():
    """On real questions, BM25 fused with an engine of another kind: documents by the letters of their titles."""
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever

    class Titles:
        def __init__(self, documents):
            self.documents = documents

        def search(self, queries, k):
            score = lambda query, document: len(document.title) * (document.title.lower() in query.lower())  # noqa: E731
            return [
                [Hit(d, score(q, d)) for d in sorted(self.documents, key=lambda d: -score(q, d)) if score(q, d)][:k]
                for q in queries
            ]

    sample = hotpotqa_sample()
    examples = json.loads(sample.read_text())
    documents = list(open_source(sample))
    lexical, titles = BM25Retriever(documents), Titles(documents)

    def recall(engine):
        found = engine.search([example["question"] for example in examples], 5)
        golden = [{title for title, _ in example["supporting_facts"]} for example in examples]
        return sum(
            len({h.document.title for h in of_question} & gold) / len(gold)
            for of_question, gold in zip(found, golden, strict=True)
        ) / len(examples)

    assert recall(HybridRetriever([lexical, titles])) >= recall(lexical) > recall(titles)
