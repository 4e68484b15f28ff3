"""A cache changes how often the engine is asked, and never what is found."""

from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_tools import CountingRetriever, expected

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Retriever
from agent_gym.search.engines import CachedRetriever

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


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="size is 0"):
        CachedRetriever(CountingRetriever(), 0)
    for queries, k in ((["a"], 0), ("a", 1)):
        with pytest.raises(ConfigError):
            CachedRetriever(CountingRetriever(), 1).search(queries, k)
