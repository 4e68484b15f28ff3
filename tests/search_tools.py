"""What the tests of search share: the real sample, and engines whose behaviour is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent_gym.errors import EnvFailure
from agent_gym.search import Document, Hit, Retriever
from agent_gym.serve.server import Server
from agent_gym.serve.services import SearchServer, bind


def hotpotqa_sample() -> Path:
    """The file with real HotpotQA questions and their ten paragraphs each; skips where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AGENT_GYM_DATA", beside)) / "hotpotqa"
    found = sorted(folder.glob("distractor_sample*.json"))
    if not found:
        pytest.skip(f"no real HotpotQA questions: {folder}/distractor_sample*.json does not exist (set AGENT_GYM_DATA)")
    return found[0]


class CountingRetriever:
    """Finds, for any query, documents named after it, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.inside = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.inside += 1
        assert self.inside == 1, "two threads at once"
        self.calls.append((list(queries), k))
        if "fail" in queries:
            self.inside -= 1
            raise EnvFailure("the engine broke")
        self.inside -= 1
        return [expected(query, k) for query in queries]

    @property
    def asked(self) -> list[str]:
        return [query for queries, _ in self.calls for query in queries]


def expected(query: str, k: int) -> list[Hit]:
    """What `CountingRetriever` finds."""
    return [Hit(Document(f"{query}/{i}", query, f"k={k}"), 1 / (1 + i)) for i in range(k)]


@contextmanager
def serving(retriever: Retriever, **options: Any) -> Iterator[SearchServer]:
    """A real search server on a free port."""
    with running(SearchServer(retriever, bind(port=0), **options)) as server:
        yield server


ServerType = TypeVar("ServerType", bound=Server)


@contextmanager
def running(server: ServerType) -> Iterator[ServerType]:
    """Any server of ours, in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
    thread.join()
