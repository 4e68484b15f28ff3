"""A search on another machine finds the same, and says what to do when it cannot."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_tools import CountingRetriever, expected, serving

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document, Hit, Retriever
from agent_gym.search.engines import MicroBatcher, RemoteRetriever, from_wire, read_response, response, to_wire
from agent_gym.serve import client
from agent_gym.serve.services import bind

text = st.text(st.characters(exclude_categories=()), max_size=30)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client, "_BACKOFF_S", 0.001)


@contextmanager
def answering(*answers):
    """A server that reads one request per connection, sends these bytes back, one after the other, and hangs up.

    Yields its address, the requests so far, and a semaphore that counts the connections that it has closed.
    """
    listener = bind(port=0)
    listener.listen()
    requests = []
    hung_up = threading.Semaphore(0)

    def serve():
        for answer in answers:
            connection, _ = listener.accept()
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
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests, hung_up
        thread.join(30)


def http(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


GOOD = http(json.dumps(response([expected("a", 1)], True)))


@given(st.builds(Document, text, text, text), st.floats(allow_nan=False, allow_infinity=False))
def test_the_wire_loses_nothing_but_line_breaks_in_titles(document, score):
    back = Document(document.id, document.title.replace("\n", " "), document.text)
    assert from_wire(json.loads(json.dumps(to_wire(document)))) == back
    found = [[Hit(document, score)], []]
    assert read_response(json.dumps(response(found, True)).encode(), 2) == [[Hit(back, score)], []]


@pytest.mark.parametrize(
    ("document", "read"),
    [
        ({"id": 7, "contents": '"Ä"\nb\nc'}, Document("7", "Ä", "b\nc")),
        ({"contents": "plain\ntext"}, Document("", "plain", "text")),
        ({"id": "x", "contents": "one line"}, Document("x", "", "one line")),
        ({"id": "x", "contents": '"\n"'}, Document("x", '"', '"')),
        ({"id": "x", "contents": ""}, Document("x", "", "")),
    ],
)
def test_documents_of_other_servers_are_read(document, read):
    assert from_wire(document) == read


def test_a_search_over_the_wire_is_the_search_itself():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        assert isinstance(remote, Retriever)
        queries = ["a", "", "\x00\x1b", "ü" * 10_000, "\ud800", "a"]
        assert remote.search(queries, 3) == [expected(query, 3) for query in queries]
        assert remote.search([], 3) == []
        assert RemoteRetriever(server.url + "/retrieve").search(["b"], 1) == [expected("b", 1)]


def test_many_queries_are_asked_in_pieces():
    engine = CountingRetriever()
    with serving(engine) as server:
        queries = [f"{n} " + "\U0001f600" * 20_000 for n in range(100)]
        found = RemoteRetriever(server.url).search(queries, 1)
    assert [len(queries) for queries, _ in engine.calls] == [64, 36]
    assert [hits[0].document.title.split()[0] for hits in found] == [str(n) for n in range(100)]


def test_many_threads_keep_their_connections():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        with ThreadPoolExecutor(50) as pool:
            asked = [f"{n}" for n in range(1000)]
            assert list(pool.map(lambda query: remote.search([query], 2), asked)) == [[expected(q, 2)] for q in asked]
        assert len(server._server.server_state.connections) <= 50


def test_a_server_that_came_back_is_found_again():
    with serving(CountingRetriever()) as server:
        remote = RemoteRetriever(server.url)
        remote.search(["a"], 1)
        port = server.address[1]
    with pytest.raises(
        EnvFailure, match=f"127.0.0.1:{port} cannot be reached .*tried 7 times; start one with `agent-gym"
    ):
        remote.search(["a"], 1)


def test_a_connection_that_the_server_closed_is_no_failure():
    with answering(GOOD, GOOD, GOOD) as (url, requests, hung_up):
        remote = RemoteRetriever(url, retries=0)
        for _ in range(3):
            assert remote.search(["a"], 1) == [expected("a", 1)]
            # A request that crosses the closing on its way is lost, and only a retry can mend that.
            assert hung_up.acquire(timeout=30)
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2]) == {"queries": ["a"], "topk": 1, "return_scores": True}
    assert requests[0].startswith(b"POST /retrieve HTTP/1.1\r\n")


def test_broken_connections_are_tried_again_and_answers_are_not():
    with answering(b"", b"nonsense\r\n\r\n", GOOD[:-5], GOOD) as (url, requests, _):
        assert RemoteRetriever(url, retries=3).search(["a"], 1) == [expected("a", 1)]
    assert len(requests) == 4
    with answering(http('{"detail": "out of memory"}', "500 Internal Server Error")) as (url, requests, _):
        with pytest.raises(EnvFailure, match="answered 500 Internal Server Error: .*out of memory"):
            RemoteRetriever(url).search(["a"], 1)
    assert len(requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        "[]",
        "{}",
        '{"result": 3}',
        '{"result": []}',
        '{"result": [[], []]}',
        '{"result": [[{"document": {"id": "1"}, "score": 1}]]}',
        '{"result": [[{"document": {"contents": "a"}}]]}',
        '{"result": [[{"document": {"contents": "a"}, "score": "high"}]]}',
        '{"result": [["a"]]}',
    ],
)
def test_answers_of_another_form_are_told(body):
    with answering(http(body)) as (url, *_), pytest.raises(EnvFailure, match="does not speak Search-R1's protocol"):
        RemoteRetriever(url).search(["a"], 1)


def test_more_documents_than_asked_for_are_cut():
    with answering(http(json.dumps(response([expected("a", 5)], True)))) as (url, *_):
        assert [len(hits) for hits in RemoteRetriever(url).search(["a"], 2)] == [2]


def test_a_silent_server_is_given_up():
    with bind(port=0) as listener:
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EnvFailure, match=r"ReadTimeout.*tried 2 times"):
            RemoteRetriever(url, timeout_s=0.05, retries=1).search(["a"], 1)


def test_forks_copies_and_pickles_have_their_own_connections():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        remote.search(["a"], 1)
        assert copy.deepcopy(remote) is remote and len(remote._client._idle) == 1
        other = pickle.loads(pickle.dumps(remote))
        assert not other._client._idle and other.search(["a"], 1) == [expected("a", 1)]
        child = os.fork()
        if child == 0:
            fine = not remote._client._idle and remote.search(["b"], 1) == [expected("b", 1)]
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert remote.search(["c"], 1) == [expected("c", 1)]


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a", "http://", "http://a:99999", "http://a:b", "/retrieve"]
)
def test_addresses_that_are_none(url):
    with pytest.raises(ConfigError, match="it must be like"):
        RemoteRetriever(url)


def test_wrong_arguments():
    for wrong in ({"timeout_s": 0}, {"retries": -1}):
        with pytest.raises(ConfigError, match="above 0 seconds"):
            RemoteRetriever("http://localhost", **wrong)
    with pytest.raises(ConfigError, match="k is 0"):
        RemoteRetriever("http://localhost").search(["a"], 0)
