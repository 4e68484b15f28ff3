"""Engines around engines: fusion adds up reciprocal ranks and nothing else, a cache changes how often is asked only."""

from __future__ import annotations

import copy
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_tools import CountingRetriever, expected

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document, Hit, Retriever
from agent_gym.search.engines import CachedRetriever, HybridRetriever, fuse

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


calls = st.lists(st.tuples(st.lists(st.sampled_from("abcdef"), max_size=6), st.integers(1, 2)), max_size=30)


@given(calls, st.integers(1, 8))
def test_what_is_found_is_what_the_engine_finds(given, size):
    cache = CachedRetriever(CountingRetriever(), size)
    for queries, k in given:
        assert cache.search(queries, k) == [expected(query, k) for query in queries]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 2)), max_size=60), st.integers(1, 8))
def test_what_is_kept_are_the_last_ones_used(given, size):
    engine = CountingRetriever()
    cache = CachedRetriever(engine, size)
    reference = lru_cache(size)(expected)
    for query, k in given:
        cache.search([query], k)
        reference(query, k)
    assert len(engine.asked) == reference.cache_info().misses


def test_only_what_is_missing_goes_on_and_once():
    engine = CountingRetriever()
    cache = CachedRetriever(engine, 2)
    assert cache.search(["a", "b", "a", "c"], 1) == [expected(query, 1) for query in "abac"]
    cache.search(["b", "d", "c", "d"], 1)
    assert engine.calls == [(["a", "b", "c"], 1), (["d"], 1)]
    cache.search(["d", "c"], 1)
    assert len(engine.calls) == 2, "nothing is missing, nobody is asked"
    cache.search(["d"], 2)
    assert engine.calls[-1] == (["d"], 2)


def test_a_result_that_is_changed_is_changed_for_nobody_else():
    cache = CachedRetriever(CountingRetriever(), 5)
    for _ in range(2):
        found = cache.search(["a", "a"], 2)
        found[0].clear()
        assert found[1] == expected("a", 2)
    assert cache.search(["a"], 2) == [expected("a", 2)]


def test_failures_are_not_kept():
    engine = CountingRetriever()
    cache = CachedRetriever(engine, 5)
    for _ in range(2):
        with pytest.raises(EnvFailure, match="broke"):
            cache.search(["a", "fail"], 1)
    assert engine.asked == ["a", "fail"] * 2


def test_many_threads():
    class Engine:
        def search(self, queries, k):
            return [expected(query, k) for query in queries]

    cache = CachedRetriever(Engine(), 20)
    asked = [[str((n * i) % 31) for i in range(7)] for n in range(2000)]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(lambda queries: cache.search(queries, 2), asked)) == [
            [expected(query, 2) for query in queries] for queries in asked
        ]


def test_a_fork_in_the_middle_of_a_change_leaves_a_cache_that_works():
    cache = CachedRetriever(CountingRetriever(), 5)
    cache.search(["a"], 1)
    with cache._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if cache.search(["a"], 1) == [expected("a", 1)] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_copies_share_and_pickles_work():
    cache = CachedRetriever(CountingRetriever(), 5)
    assert isinstance(cache, Retriever)
    assert copy.deepcopy(cache) is cache
    assert pickle.loads(pickle.dumps(cache)).search(["a"], 1) == [expected("a", 1)]


def test_wrong_arguments_of_a_cache():
    with pytest.raises(ConfigError, match="size is 0"):
        CachedRetriever(CountingRetriever(), 0)
    for queries, k in ((["a"], 0), ("a", 1)):
        with pytest.raises(ConfigError):
            CachedRetriever(CountingRetriever(), 1).search(queries, k)
