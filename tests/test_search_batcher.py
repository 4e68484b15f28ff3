"""Many threads, one engine: every caller gets its own results, or the engine's failure, and nobody waits for ever."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from search_tools import CountingRetriever, expected

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Retriever
from agent_gym.search.engines import MicroBatcher

LONG = 60.0  # seconds that no test waits for: a batch that is not full by then means that one of them hangs


def together(callers, call):
    """Call from as many threads, which all begin at the same moment, and return the results or exceptions."""
    begin = threading.Barrier(callers)

    def one(n):
        begin.wait()
        try:
            return call(n)
        except Exception as error:
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


def test_a_full_batch_does_not_wait():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=8, max_wait_s=LONG)
    assert together(32, lambda n: batcher.search([str(n)], 1)) == [[expected(str(n), 1)] for n in range(32)]
    assert [len(queries) for queries, _ in engine.calls] == [8] * 4


def test_equal_queries_are_searched_for_once():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=16, max_wait_s=LONG)
    results = together(16, lambda n: batcher.search([f"group {n % 2}"], 3))
    assert results == [[expected(f"group {n % 2}", 3)] for n in range(16)]
    assert sorted(engine.asked) == ["group 0", "group 1"]
    results[0][0].clear()
    assert results[2] == [expected("group 0", 3)], "nobody's list is another's"


def test_batches_of_callers_are_joined_and_split():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=4, max_wait_s=0)
    assert batcher.search([str(n) for n in range(10)], 1) == [expected(str(n), 1) for n in range(10)]
    assert [len(queries) for queries, _ in engine.calls] == [4, 4, 2]
    assert batcher.search([], 1) == []
    results = together(40, lambda n: batcher.search([f"{n}a", f"{n}b", f"{n}c"], 1))
    assert results == [[expected(f"{n}{letter}", 1) for letter in "abc"] for n in range(40)]


def test_each_k_has_its_own_batches():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=8, max_wait_s=LONG)
    assert together(16, lambda n: batcher.search([str(n)], 1 + n % 2)) == [
        [expected(str(n), 1 + n % 2)] for n in range(16)
    ]
    assert sorted(k for _, k in engine.calls) == [1, 2]


def test_a_lone_caller_is_answered():
    assert MicroBatcher(CountingRetriever(), max_wait_s=0.001).search(["a"], 2) == [expected("a", 2)]


def test_a_failure_reaches_every_caller_of_its_batch_and_no_other():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=10, max_wait_s=LONG)
    failed = together(10, lambda n: batcher.search(["fail" if n == 7 else str(n)], 1))
    assert [(type(error), str(error)) for error in failed] == [(EnvFailure, "the engine broke")] * 10
    assert together(10, lambda n: batcher.search([str(n)], 1)) == [[expected(str(n), 1)] for n in range(10)]


def test_an_engine_that_forgets_a_query_is_a_failure():
    class Short:
        def search(self, queries, k):
            return [expected(query, k) for query in queries[1:]]

    batcher = MicroBatcher(Short(), max_batch=3, max_wait_s=LONG)
    assert all(isinstance(error, ValueError) for error in together(3, lambda n: batcher.search([str(n)], 1)))


def test_who_asks_wrongly_hurts_nobody_else():
    engine = CountingRetriever()
    batcher = MicroBatcher(engine, max_batch=9, max_wait_s=LONG)
    wrong = {0: (["a"], 0), 1: ("a", 1), 2: ([None], 1)}
    results = together(12, lambda n: batcher.search(*wrong.get(n, ([str(n)], 1))))
    assert all(isinstance(result, ConfigError) for result in results[:3])
    assert results[3:] == [[expected(str(n), 1)] for n in range(3, 12)]


def test_an_interrupt_stops_one_thread_and_fails_the_others():
    inside, stop = threading.Event(), threading.Event()

    class Interrupted:
        def search(self, queries, k):
            inside.set()
            stop.wait(LONG)
            raise KeyboardInterrupt

    batcher = MicroBatcher(Interrupted(), max_batch=2, max_wait_s=LONG)
    caught = []

    def call(n):
        try:
            batcher.search([str(n)], 1)
        except BaseException as error:
            caught.append(type(error))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(LONG)
    stop.set()
    for thread in threads:
        thread.join(LONG)
    assert sorted(kind.__name__ for kind in caught) == ["EnvFailure", "KeyboardInterrupt"]


def test_a_forked_process_has_batches_of_its_own():
    """The parent forks while a caller holds the engine and another waits; the child must not wait for them."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(CountingRetriever):
        def search(self, queries, k):
            if queries == ["slow"]:
                inside.set()
                go_on.wait(LONG)
            return [expected(query, k) for query in queries]

    batcher = MicroBatcher(Slow(), max_batch=2, max_wait_s=0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(batcher.search, ["slow"], 1)
        assert inside.wait(LONG)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=lambda: results.put(batcher.search(["child"], 1)))
        child.start()
        assert results.get(timeout=LONG) == [expected("child", 1)]
        child.join(LONG)
        go_on.set()
        assert slow.result(LONG) == [expected("slow", 1)]


def test_a_program_ends_with_callers_waiting():
    script = """
import threading
from agent_gym.search.engines import MicroBatcher
class Empty:
    def search(self, queries, k): return [[] for _ in queries]
batcher = MicroBatcher(Empty(), max_batch=100, max_wait_s=3600)
for _ in range(5): threading.Thread(target=batcher.search, args=(["a"], 1), daemon=True).start()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=LONG).returncode == 0


def test_copies_share_and_pickles_work():
    batcher = MicroBatcher(CountingRetriever(), max_batch=3, max_wait_s=0)
    assert isinstance(batcher, Retriever)
    assert copy.deepcopy(batcher) is batcher
    other = pickle.loads(pickle.dumps(batcher))
    assert other.max_batch == 3 and other.search(["a"], 1) == [expected("a", 1)]


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"max_wait_s": -1}, {"max_wait_s": float("nan")}])
def test_wrong_arguments(wrong):
    with pytest.raises(ConfigError, match="at least 1 query and 0 seconds"):
        MicroBatcher(CountingRetriever(), **wrong)


def test_callers_that_come_again_meet_in_one_batch():
    """Two halves that each wait for the other's search would stay halves for ever."""
    inside = threading.Event()

    class Engine(CountingRetriever):
        def search(self, queries, k):
            found = super().search(queries, k)
            if len(self.calls) == 1:
                inside.set()
                second.join(0.8)  # long past its own wait, if it does not wait for the engine first
            return found

    engine = Engine()
    batcher = MicroBatcher(engine, max_batch=2, max_wait_s=0.5)
    second = threading.Thread(target=lambda: inside.wait(LONG) and batcher.search(["second"], 1))
    second.start()
    batcher.search(["first"], 1)
    time.sleep(0.1)
    batcher.search(["first again"], 1)
    second.join(LONG)
    assert [sorted(queries) for queries, _ in engine.calls] == [["first"], ["first again", "second"]]
