"""Engines around engines: a fusion of reciprocal ranks, a cache, and a batcher for many threads."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from process_tools import holds_in_a_fork
from search_tools import CountingRetriever, expected

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document, Hit, Retriever
from agent_gym.search.engines import CachedRetriever, HybridRetriever, MicroBatcher, fuse

LONG = 60.0  # seconds that no test waits for: a batch that is not full by then means that one of them hangs

rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=4)


def hits(ids, score=0.0):
    return [Hit(Document(id, "", ""), score) for id in ids]


def ids(found):
    return [hit.document.id for hit in found]


class Fixed:
    def __init__(self, *ids):
        self.ids = ids

    def search(self, queries, k):
        return [hits(self.ids[:k]) for _ in queries]


class Engine:
    """Any number of threads at once."""

    def search(self, queries, k):
        return [expected(query, k) for query in queries]


@pytest.mark.parametrize("wrapped", [MicroBatcher, CachedRetriever, lambda engine: HybridRetriever([engine])])
def test_copies_share_and_pickles_search(wrapped):
    engine = wrapped(CountingRetriever())
    assert isinstance(engine, Retriever)
    assert copy.deepcopy(engine) is engine
    assert ids(pickle.loads(pickle.dumps(engine)).search(["a"], 1)[0]) == ["a/0"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MicroBatcher(Fixed(), max_batch=0), "at least 1 query and 0 seconds"),
        (lambda: MicroBatcher(Fixed(), max_wait_s=math.nan), "at least 1 query and 0 seconds"),
        (lambda: CachedRetriever(Fixed(), 0), "size is 0"),
        (lambda: HybridRetriever([]), "no retrievers"),
        (lambda: HybridRetriever([Fixed()], k_constant=math.inf), "k_constant is"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# Fusion.


def test_the_example_by_hand():
    found = fuse([hits("abc"), hits("cd")])
    assert ids(found) == ["c", "a", "b", "d"]
    assert [hit.score for hit in found] == [1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62]
    # b and d have the same sum: the first engine, which has b, decides.
    assert ids(fuse([hits("cd"), hits("abc")])) == ["c", "a", "d", "b"]


@given(rankings, st.integers(0, 100), st.permutations(range(4)), st.floats())
def test_sums_are_exact_and_ordered_and_only_ranks_count(given, k_constant, order, score):
    found = fuse([hits(ranking, score) for ranking in given], k_constant)
    sums = {
        id: sum(Fraction(1, k_constant + ranking.index(id) + 1) for ranking in given if id in ranking)
        for id in {id for ranking in given for id in ranking}
    }
    assert sorted(ids(found)) == sorted(sums)
    assert all(hit.score == pytest.approx(float(sums[hit.document.id]), rel=1e-15) for hit in found)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    # The order of the engines decides between equal sums only.
    other = fuse([hits(given[i]) for i in order if i < len(given)], k_constant)
    assert {hit.document.id: hit.score for hit in found} == {hit.document.id: hit.score for hit in other}


def test_engines_are_asked_once_for_all_queries_and_deeper_than_it_answers():
    # "d" is outside the first two of both engines, and first when they are put together.
    engine = HybridRetriever([Fixed("a", "b", "d"), Fixed("e", "f", "d")])
    assert [ids(found) for found in engine.search(["x", "y"], 2)] == [["d", "a"]] * 2
    assert engine.search([], 2) == []
    engines = [CountingRetriever(), CountingRetriever()]
    HybridRetriever(engines).search(["x", "y"], 3)
    assert [engine.calls for engine in engines] == [[(["x", "y"], 50)]] * 2
    HybridRetriever(engines).search(["x"], 70)
    assert engines[0].calls[-1] == (["x"], 70)


# The cache.


@example([(query, 1) for query in "abaca"], 2)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 2)), max_size=60), st.integers(1, 8))
def test_what_is_kept_are_the_last_ones_used(given, size):
    engine = CountingRetriever()
    cache = CachedRetriever(engine, size)
    reference = lru_cache(size)(expected)
    for query, k in given:
        assert cache.search([query], k) == [reference(query, k)]
    assert len(engine.asked) == reference.cache_info().misses


def test_only_what_is_missing_goes_on_and_failures_are_not_kept():
    engine = CountingRetriever()
    cache = CachedRetriever(engine, 3)
    assert cache.search(["a", "b", "a", "c"], 1) == [expected(query, 1) for query in "abac"]
    cache.search(["b", "d", "c", "d"], 1)
    assert engine.calls == [(["a", "b", "c"], 1), (["d"], 1)]
    for found in cache.search(["d", "c"], 1):
        found.clear()
    assert cache.search(["d", "c"], 1) == [expected("d", 1), expected("c", 1)], "a changed result changes no other"
    assert len(engine.calls) == 2, "nothing is missing, no engine is called"
    for _ in range(2):
        with pytest.raises(EnvFailure, match="broke"):
            cache.search(["d", "e", "fail"], 1)
    assert engine.calls[2:] == [(["e", "fail"], 1)] * 2


def test_many_threads_share_a_cache():
    cache = CachedRetriever(Engine(), 20)
    queries = [[str((n * i) % 31) for i in range(7)] for n in range(2000)]
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda some: cache.search(some, 2), queries))
    assert found == [[expected(query, 2) for query in some] for some in queries]


def test_a_fork_in_the_middle_of_a_change_leaves_a_cache_that_works():
    cache = CachedRetriever(CountingRetriever(), 5)
    cache.search(["a"], 1)
    with cache._lock:
        assert holds_in_a_fork(lambda: cache.search(["a"], 1) == [expected("a", 1)])


# The batcher.


def together(callers, call):
    """Call from as many threads, which all begin at the same moment, and return the results or exceptions."""
    begin = threading.Barrier(callers)

    def one(n):
        begin.wait()
        try:
            return call(n)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(one, range(callers), timeout=LONG))


def test_hundreds_of_threads_get_their_own_results():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=64, max_wait_s=0.05)
    results = together(300, lambda n: [batcher.search([f"{n}-{i}"], 2) for i in range(10)])
    assert results == [[[expected(f"{n}-{i}", 2)] for i in range(10)] for n in range(300)]
    assert sorted(engine.asked) == sorted(f"{n}-{i}" for n in range(300) for i in range(10))
    assert max(len(queries) for queries, _ in engine.calls) <= 64
    assert len(engine.calls) < 1500, "at least two queries per call, on average"


def test_a_full_batch_does_not_wait_and_each_k_has_its_own():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=8, max_wait_s=LONG)
    assert together(32, lambda n: batcher.search([str(n)], 1)) == [[expected(str(n), 1)] for n in range(32)]
    assert [len(queries) for queries, _ in engine.calls] == [8] * 4
    found = together(16, lambda n: batcher.search([f"group {n % 2}"], 1 + n % 2))
    assert found == [[expected(f"group {n % 2}", 1 + n % 2)] for n in range(16)]
    assert sorted(engine.calls[4:]) == [(["group 0"], 1), (["group 1"], 2)], "equal queries are searched for once"
    found[0][0].clear()
    assert found[2] == [expected("group 0", 1)], "no list is another caller's"


def test_batches_of_callers_are_joined_and_split():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=4, max_wait_s=0)
    assert batcher.search([str(n) for n in range(10)], 1) == [expected(str(n), 1) for n in range(10)]
    assert [len(queries) for queries, _ in engine.calls] == [4, 4, 2]
    assert batcher.search([], 1) == []
    results = together(40, lambda n: batcher.search([f"{n}a", f"{n}b", f"{n}c"], 1))
    assert results == [Engine().search([f"{n}a", f"{n}b", f"{n}c"], 1) for n in range(40)]


def test_a_failure_reaches_every_caller_of_its_batch_and_no_other():
    batcher = MicroBatcher(CountingRetriever(), max_batch=10, max_wait_s=LONG)
    failed = together(10, lambda n: batcher.search(["fail" if n == 7 else str(n)], 1))
    assert [(type(error), str(error)) for error in failed] == [(EnvFailure, "the engine broke")] * 10
    wrong = {0: (["a"], 0), 1: ("a", 1)}  # whose callers fail alone
    results = together(12, lambda n: batcher.search(*wrong.get(n, ([str(n)], 1))))
    assert all(isinstance(result, ConfigError) for result in results[:2])
    assert results[2:] == [[expected(str(n), 1)] for n in range(2, 12)]
    short = MicroBatcher(Mock(search=lambda queries, k: []), max_batch=3, max_wait_s=LONG)
    assert all(isinstance(error, ValueError) for error in together(3, lambda n: short.search([str(n)], 1)))


def test_an_interrupt_stops_one_thread_and_fails_the_others():
    batcher = MicroBatcher(Mock(search=Mock(side_effect=KeyboardInterrupt)), max_batch=2, max_wait_s=LONG)
    caught = together(2, lambda n: batcher.search([str(n)], 1))
    assert sorted(type(error).__name__ for error in caught) == ["EnvFailure", "KeyboardInterrupt"]


def test_a_forked_process_has_batches_of_its_own():
    """The parent forks while a caller holds the engine; the child must not wait for it."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Engine):
        def search(self, queries, k):
            if queries == ["slow"]:
                inside.set()
                go_on.wait(LONG)
            return super().search(queries, k)

    batcher = MicroBatcher(Slow(), max_batch=2, max_wait_s=0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(batcher.search, ["slow"], 1)
        assert inside.wait(LONG)
        assert holds_in_a_fork(lambda: batcher.search(["child"], 1) == [expected("child", 1)])
        go_on.set()
        assert slow.result(LONG) == [expected("slow", 1)]
