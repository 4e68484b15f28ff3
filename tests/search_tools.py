"""What the tests of search and of remote sandboxes share: the real sample, engines that are known, and servers."""

from __future__ import annotations

import json
import os
import socket
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
    """Finds, for any query, documents named after it, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.inside = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.inside += 1
        assert self.inside == 1, "two threads at once"
        self.calls.append((list(queries), k))
        self.inside -= 1
        if "fail" in queries:
            raise EnvFailure("the engine broke")
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


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes], threading.Semaphore]]:
    """A server that reads one request per connection, sends these bytes back, one after the other, and hangs up.

    Yields its address, the requests so far, and a semaphore that counts the connections that it has closed.
    """
    listener, requests, hung_up = bind(port=0), [], threading.Semaphore(0)
    listener.listen()

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            with connection:
                data = b""
                while not data.endswith(b"}"):
                    data += connection.recv(65536)
                requests.append(data)
                connection.sendall(answer)
            hung_up.release()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests, hung_up
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reply(content: Any, status: str = "200 OK", headers: str = "") -> bytes:
    """An answer as bytes; `headers` are further ones, each with its line end."""
    body = content if isinstance(content, str) else json.dumps(content)
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()
