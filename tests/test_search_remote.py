"""A search on another machine: the same results, a server that explains what is wrong, and a client that goes on."""

from __future__ import annotations

import copy
import http.client
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from cli_tools import complaint
from hypothesis import given
from hypothesis import strategies as st
from search_tools import CountingRetriever, expected, running, serving

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Corpus, Document, Hit, HybridRetriever, MicroBatcher, RemoteRetriever, Retriever
from agent_gym.search.engines import from_wire, open_index, read_response, response, to_wire
from agent_gym.search.sources import open_corpus
from agent_gym.serve import client
from agent_gym.serve.services import MAX_REQUEST_BYTES, SearchServer, bind

DOCUMENTS = [Document("a", "Apollo 8", "To the Moon."), Document("b", "Apollo 9", "Around the Earth.")]
TIMEOUT = 60


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client, "_BACKOFF_S", 0.001)


text = st.text(st.characters(exclude_categories=()), max_size=30)


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
    ],
)
def test_documents_of_other_servers_are_read(document, read):
    assert from_wire(document) == read


# The client.


@contextmanager
def answering(*answers):
    """A server that reads one request per connection, sends these bytes back, one after the other, and hangs up.

    Yields its address, the requests so far, and a semaphore that counts the connections that it has closed.
    """
    listener, requests, hung_up = bind(port=0), [], threading.Semaphore(0)
    listener.listen()

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


def reply(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


GOOD = reply(json.dumps(response([expected("a", 1)], True)))


def test_a_search_over_the_wire_is_the_search_itself():
    engine = CountingRetriever()
    with serving(MicroBatcher(engine)) as server:
        remote = RemoteRetriever(server.url)
        assert isinstance(remote, Retriever)
        queries = ["a", "", "\x00\x1b", "ü" * 10_000, "\ud800", "a"]
        assert remote.search(queries, 3) == [expected(query, 3) for query in queries]
        assert remote.search([], 3) == []
        assert RemoteRetriever(server.url + "/retrieve").search(["b"], 1) == [expected("b", 1)]
        engine.calls.clear()
        many = [f"{n} " + "\U0001f600" * 20_000 for n in range(100)]
        assert [hits[0].document.title.split()[0] for hits in remote.search(many, 1)] == [str(n) for n in range(100)]
        assert [len(queries) for queries, _ in engine.calls] == [64, 36]


def test_many_threads_keep_their_connections():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        with ThreadPoolExecutor(50) as pool:
            queries = [f"{n}" for n in range(1000)]
            found = list(pool.map(lambda query: remote.search([query], 2), queries))
        assert found == [[expected(query, 2)] for query in queries]
        assert len(server._server.server_state.connections) <= 50


def test_a_connection_that_the_server_closed_is_no_failure():
    more = reply(json.dumps(response([expected("a", 5)], True)))
    with answering(GOOD, more, GOOD) as (url, requests, hung_up):
        remote = RemoteRetriever(url, retries=0)
        for _ in range(3):
            [hits] = remote.search(["a"], 1)
            assert [hit.document.id for hit in hits] == ["a/0"], "more documents than requested are cut"
            # A request that crosses the closing on its way is lost, and only a retry can mend that.
            assert hung_up.acquire(timeout=30)
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2]) == {"queries": ["a"], "topk": 1, "return_scores": True}
    assert requests[0].startswith(b"POST /retrieve HTTP/1.1\r\n")


def test_broken_connections_are_tried_again_and_answers_are_not():
    with answering(b"", b"nonsense\r\n\r\n", GOOD[:-5], GOOD) as (url, requests, _):
        assert RemoteRetriever(url, retries=3).search(["a"], 1) == [expected("a", 1)]
    assert len(requests) == 4
    with answering(reply('{"detail": "out of memory"}', "500 Internal Server Error")) as (url, requests, _):
        with pytest.raises(EnvFailure, match="answered 500 Internal Server Error: .*out of memory"):
            RemoteRetriever(url).search(["a"], 1)
    assert len(requests) == 1
    with pytest.raises(EnvFailure, match=f"{url} cannot be reached .*tried 7 times; start one with `agent-gym"):
        RemoteRetriever(url).search(["a"], 1)


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        '{"result": 3}',
        '{"result": []}',
        '{"result": [[], []]}',
        '{"result": [[{"document": {"id": "1"}, "score": 1}]]}',
        '{"result": [[{"document": {"contents": "a"}, "score": "high"}]]}',
    ],
)
def test_answers_of_another_form_are_refused(body):
    with answering(reply(body)) as (url, *_), pytest.raises(EnvFailure, match="does not speak Search-R1's protocol"):
        RemoteRetriever(url).search(["a"], 1)


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


def test_wrong_arguments():
    for url in ("", "localhost:8000", "ftp://a", "http://", "http://a:99999", "http://a:b", "/retrieve"):
        with pytest.raises(ConfigError, match="it must be like"):
            RemoteRetriever(url)
    for wrong in ({"timeout_s": 0}, {"retries": -1}):
        with pytest.raises(ConfigError, match="above 0 seconds"):
            RemoteRetriever("http://localhost", **wrong)


# The server.


@pytest.fixture
def server():
    with serving(CountingRetriever(), topk=2, about={"documents": 7}) as server:
        yield server


@pytest.fixture
def connection(server):
    connection = http.client.HTTPConnection(*server.address[:2], timeout=TIMEOUT)
    yield connection
    connection.close()


def ask(connection, body, path="/retrieve", **headers):
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_both_forms_of_answers_and_failures(connection):
    documents = [to_wire(hit.document) for hit in expected("x", 3)]
    assert documents[0] == {"id": "x/0", "contents": '"x"\nk=3'}
    scored = [{"document": document, "score": 1 / (1 + i)} for i, document in enumerate(documents)]
    assert ask(connection, {"queries": ["x"], "topk": 3, "return_scores": True}) == (200, {"result": [scored]})
    for plain in ({"return_scores": False}, {}, {"return_scores": None}):
        assert ask(connection, {"queries": ["x"], "topk": 3, **plain}) == (200, {"result": [documents]})
    status, content = ask(connection, {"queries": ["x", "y"], "topk": None, "more": 1})
    assert status == 200 and [len(found) for found in content["result"]] == [2, 2], "topk of the server"
    assert ask(connection, {"queries": []}) == (200, {"result": []})
    assert ask(connection, {"queries": ["fail"]}) == (500, {"detail": "EnvFailure: the engine broke"})
    status, content = ask(connection, b"x" * (MAX_REQUEST_BYTES + 1))
    assert status == 413 and "send fewer or shorter queries" in content["detail"]


def test_health_and_places_that_are_not_there(connection):
    assert ask(connection, None, "/health?x=1") == (200, {"status": "ok", "documents": 7})
    for body, path in ((None, "/"), (None, "/retrieve"), ({}, "/search"), ({}, "/health")):
        assert ask(connection, body, path) == (404, {"detail": "there are POST /retrieve, GET /health"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"queries": ["\xff"]}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        ([], "must be an object"),
        ({"queries": "x"}, "queries must be a list of texts"),
        ({"queries": ["x", 1]}, "queries must be a list of texts"),
        ({"queries": ["x"], "topk": 0}, "topk is 0"),
        ({"queries": ["x"], "topk": True}, "topk is True"),
        ({"queries": ["x"], "topk": 1001}, "from 1 to 1000"),
        ({"queries": ["x"], "return_scores": 1}, "return_scores is 1"),
    ],
)
def test_what_clients_get_wrong_is_named_and_the_connection_goes_on(connection, body, message):
    status, content = ask(connection, body)
    assert status == 400 and message in content["detail"]
    assert ask(connection, {"queries": ["x"], "topk": 1})[0] == 200


def test_requests_without_a_length_and_with_a_question_first_are_read(server):
    host = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection(server.address[:2], timeout=TIMEOUT) as raw:
        chunked = "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.sendall(f'{host}{chunked}f\r\n{{"queries": []}}\r\n0\r\n\r\n'.encode())
        assert raw.makefile("rb").read().endswith(b'{"result": []}')
    with socket.create_connection(server.address[:2], timeout=TIMEOUT) as raw:
        raw.sendall(f"{host}Expect: 100-continue\r\nContent-Length: 15\r\n\r\n".encode())
        answers = raw.makefile("rb")
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n" and answers.readline() == b"\r\n"
        raw.sendall(b'{"queries": []}')
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"


def test_answers_leave_without_delay(server, connection):
    """Nagle's algorithm, with the other side's delayed acknowledgements, would cost 40 ms per answer."""
    assert ask(connection, {"queries": ["x"]})[0] == 200
    [accepted] = server._server.server_state.connections
    assert accepted.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_searches_that_have_begun_are_answered_before_the_end():
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def search(self, queries, k):
            inside.set()
            assert go_on.wait(TIMEOUT)
            return [expected(query, k) for query in queries]

    with ThreadPoolExecutor(1) as pool:
        with serving(Slow()) as server:
            found = pool.submit(RemoteRetriever(server.url, retries=0).search, ["x"], 1)
            assert inside.wait(TIMEOUT)
            threading.Timer(0.1, go_on.set).start()
        assert found.result(TIMEOUT) == [expected("x", 1)]
    with pytest.raises(OSError):
        socket.create_connection(server.address[:2], timeout=TIMEOUT)


def test_addresses_that_cannot_be_taken():
    with bind(port=0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            bind(port=port)
    for host, port in (("127.0.0.1", 70_000), ("127.0.0.1", -1), ("192.0.2.1", 0), ("no.such.host.invalid", 0)):
        with pytest.raises(ConfigError, match="cannot listen on"):
            bind(host, port)
    with bind(port=0) as one, bind(port=one.getsockname()[1]) as other:  # neither listens yet
        with SearchServer(CountingRetriever(), one), pytest.raises(ConfigError, match="cannot listen at http"):
            SearchServer(CountingRetriever(), other)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6():
    try:
        listener = bind("::1", 0)
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    with running(SearchServer(CountingRetriever(), listener)) as server:
        assert server.url.startswith("http://[::1]:")
        assert RemoteRetriever(server.url).search(["x"], 1) == [expected("x", 1)]


# The command.


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_ends_it(tmp_path, end):
    pytest.importorskip("bm25s")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"_id": d.id, **d._asdict()}) + "\n" for d in DOCUMENTS))
    words = ["serve", "search", "--corpus", str(tmp_path / "c.jsonl"), "--port", "0", "--topk", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    try:
        line = next(line for line in process.stderr if line.startswith("serving"))
        assert line.startswith("serving 2 documents at http://127.0.0.1:")
        found = RemoteRetriever(line.split()[-1]).search(["Apollo 9", "moon", "?"], 1)
        assert [[hit.document for hit in hits] for hits in found] == [[DOCUMENTS[1]], [DOCUMENTS[0]], []]
        connection = http.client.HTTPConnection("127.0.0.1", int(line.rsplit(":", 1)[1].split("/")[0]), timeout=TIMEOUT)
        assert ask(connection, None, "/health") == (200, {"status": "ok", "documents": 2, "index": ["bm25"]})
        process.send_signal(end)
        rest = process.stderr.read()
        assert process.wait(TIMEOUT) == 0 and rest == "stopped\n"
    finally:
        process.kill()
        process.wait()
    assert list((tmp_path / "tmp").iterdir()) == [], "the temporary corpus is gone"


def test_the_command_opens_what_was_saved(tmp_path):
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever

    BM25Retriever(Corpus.build(tmp_path / "corpus", DOCUMENTS)).save(tmp_path / "bm25")
    with open_corpus(tmp_path / "corpus") as corpus:
        assert list(corpus) == DOCUMENTS
        assert open_index(tmp_path / "bm25", corpus).search(["moon"], 1)[0][0].document == DOCUMENTS[0]
        with pytest.raises(ConfigError, match="only a corpus; give that as the corpus"):
            open_index(tmp_path / "corpus", corpus)
        with pytest.raises(ConfigError, match='holds no index .*or "bm25"'):
            open_index(tmp_path / "nothing", corpus)


def test_the_command_opens_a_dense_index_with_its_encoder(tmp_path):
    for needed in ("faiss", "torch", "sentence_transformers"):
        pytest.importorskip(needed)
    from tiny_encoder import make_documents, make_tiny_encoder

    from agent_gym.search.build import build_index
    from agent_gym.search.encoder import make_encoder

    corpus = Corpus.build(tmp_path / "corpus", make_documents(30))
    build_index(corpus, make_encoder(str(make_tiny_encoder(tmp_path / "encoder"))), tmp_path / "dense")
    engine = HybridRetriever([open_index(tmp_path / "dense", corpus), open_index("bm25", corpus)])
    queries = [document.text for document in corpus]
    with serving(MicroBatcher(engine)) as server:
        assert RemoteRetriever(server.url).search(queries, 3) == engine.search(queries, 3)
    assert open_index(tmp_path / "dense", corpus).search(queries[:2], 1)[1][0].score > 0.5
    with pytest.raises(ConfigError, match="belongs to a corpus of 30 documents"):
        open_index(tmp_path / "dense", DOCUMENTS)


def test_the_command_names_what_is_wrong(capsys, tmp_path):
    Corpus.build(tmp_path / "corpus", DOCUMENTS)
    corpus = ("--corpus", str(tmp_path / "corpus"))
    assert "no such file" in complaint(capsys, "serve", "search", "--corpus", str(tmp_path / "x.jsonl"), "--port", "0")
    assert "holds no index" in complaint(capsys, "serve", "search", *corpus, "--port", "0", "--index", str(tmp_path))
    assert "holds no corpus" in complaint(capsys, "serve", "search", "--corpus", str(tmp_path), "--port", "0")
