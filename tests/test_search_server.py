"""The server, over real connections: both forms of answers, what clients get wrong, and a clean end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_tools import complaint
from search_tools import CountingRetriever, expected, running, serving

from agent_gym.errors import ConfigError
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus
from agent_gym.search.engines import HybridRetriever, MicroBatcher, RemoteRetriever, to_wire
from agent_gym.serve.services import MAX_REQUEST_BYTES, SearchServer, bind

DOCUMENTS = [Document("a", "Apollo 8", "To the Moon."), Document("b", "Apollo 9", "Around the Earth.")]
TIMEOUT = 60


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


def test_both_forms_of_answers(connection):
    documents = [to_wire(hit.document) for hit in expected("x", 3)]
    assert documents[0] == {"id": "x/0", "contents": '"x"\nk=3'}
    scored = [{"document": document, "score": 1 / (1 + i)} for i, document in enumerate(documents)]
    assert ask(connection, {"queries": ["x"], "topk": 3, "return_scores": True}) == (200, {"result": [scored]})
    for plain in ({"return_scores": False}, {}, {"return_scores": None}):
        assert ask(connection, {"queries": ["x"], "topk": 3, **plain}) == (200, {"result": [documents]})
    status, content = ask(connection, {"queries": ["x", "y"], "topk": None, "more": 1})
    assert status == 200 and [len(found) for found in content["result"]] == [2, 2], "topk of the server"
    assert ask(connection, {"queries": []}) == (200, {"result": []})


def test_health_and_places_that_are_not_there(connection):
    assert ask(connection, None, "/health?x=1") == (200, {"status": "ok", "documents": 7})
    for body, path in ((None, "/"), (None, "/retrieve"), ({}, "/search"), ({}, "/health")):
        assert ask(connection, body, path) == (404, {"detail": "there are POST /retrieve, GET /health"})
    connection.request("PUT", "/retrieve", b"{}")
    assert connection.getresponse().status == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"queries": ["\xff"]}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        ([], "must be an object"),
        ({}, "queries must be a list of texts"),
        ({"queries": "x"}, "queries must be a list of texts"),
        ({"queries": ["x", 1]}, "queries must be a list of texts"),
        ({"queries": ["x"], "topk": 0}, "topk is 0"),
        ({"queries": ["x"], "topk": True}, "topk is True"),
        ({"queries": ["x"], "topk": "3"}, "topk is '3'"),
        ({"queries": ["x"], "topk": 1001}, "from 1 to 1000"),
        ({"queries": ["x"], "return_scores": 1}, "return_scores is 1"),
    ],
)
def test_what_clients_get_wrong_is_told_and_the_connection_goes_on(connection, body, said):
    status, content = ask(connection, body)
    assert status == 400 and said in content["detail"]
    assert ask(connection, {"queries": ["x"], "topk": 1})[0] == 200


def test_requests_that_are_too_long_are_refused(connection):
    status, content = ask(connection, b"x" * (MAX_REQUEST_BYTES + 1))
    assert status == 413 and "send fewer or shorter queries" in content["detail"]


def test_requests_without_a_length_are_read(server):
    host = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(server.address[:2], timeout=TIMEOUT) as raw:
        raw.sendall(f'{host}f\r\n{{"queries": []}}\r\n0\r\n\r\n'.encode())
        assert raw.makefile("rb").read().endswith(b'{"result": []}')


def test_a_client_that_waits_for_leave_to_send_gets_it(server):
    with socket.create_connection(server.address[:2], timeout=TIMEOUT) as raw:
        body = b'{"queries": []}'
        host = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"
        raw.sendall(f"{host}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        answers = raw.makefile("rb")
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n" and answers.readline() == b"\r\n"
        raw.sendall(body)
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"


def test_an_engine_that_breaks_is_an_error_of_the_server(connection):
    status, content = ask(connection, {"queries": ["fail"]})
    assert (status, content) == (500, {"detail": "EnvFailure: the engine broke"})
    assert ask(connection, {"queries": ["x"]})[0] == 200


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

    found = []
    with serving(Slow()) as server:
        remote = RemoteRetriever(server.url, retries=0)
        client = threading.Thread(target=lambda: found.append(remote.search(["x"], 1)))
        client.start()
        assert inside.wait(TIMEOUT)
        threading.Timer(0.1, go_on.set).start()
    client.join(TIMEOUT)
    assert found == [[expected("x", 1)]]
    with pytest.raises(OSError):
        socket.create_connection(server.address[:2], timeout=TIMEOUT)


def test_addresses_that_cannot_be_taken():
    with bind(port=0) as listener:
        listener.listen()
        with pytest.raises(
            ConfigError, match=r"cannot listen on 127\.0\.0\.1, port \d+: Address already in use; choose"
        ):
            bind(port=listener.getsockname()[1])
    for host, port in (("127.0.0.1", 70_000), ("127.0.0.1", -1), ("192.0.2.1", 0), ("no.such.host.invalid", 0)):
        with pytest.raises(ConfigError, match="cannot listen on"):
            bind(host, port)
    one, other = bind(port=0), None
    try:
        other = bind(port=one.getsockname()[1])  # nobody listens yet
        with SearchServer(CountingRetriever(), one), pytest.raises(ConfigError, match="cannot listen at http"):
            SearchServer(CountingRetriever(), other)
    finally:
        for listener in filter(None, (one, other)):
            listener.close()


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
def test_the_command_serves_until_it_is_told_to_end(tmp_path, end):
    pytest.importorskip("bm25s")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"_id": d.id, **d._asdict()}) + "\n" for d in DOCUMENTS))
    words = ["serve", "search", "--corpus", str(tmp_path / "c.jsonl"), "--port", "0", "--topk", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *words], stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    try:
        said = next(line for line in process.stderr if line.startswith("serving"))
        assert said.startswith("serving 2 documents at http://127.0.0.1:")
        remote = RemoteRetriever(said.split()[-1])
        assert [[hit.document for hit in hits] for hits in remote.search(["Apollo 9", "moon", "?"], 1)] == [
            [DOCUMENTS[1]],
            [DOCUMENTS[0]],
            [],
        ]
        connection = http.client.HTTPConnection("127.0.0.1", int(said.rsplit(":", 1)[1].split("/")[0]), timeout=TIMEOUT)
        assert ask(connection, None, "/health") == (200, {"status": "ok", "documents": 2, "index": ["bm25"]})
        process.send_signal(end)
        rest = process.stderr.read()
        assert process.wait(TIMEOUT) == 0 and rest == "stopped\n"
    finally:
        process.kill()
        process.wait()
    assert list((tmp_path / "tmp").iterdir()) == [], "the temporary corpus is gone"


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(folder / "tmp")}


def test_the_command_opens_what_was_saved(tmp_path):
    pytest.importorskip("bm25s")
    from agent_gym.search.bm25 import BM25Retriever
    from agent_gym.search.engines import open_index
    from agent_gym.search.sources import open_corpus

    built = Corpus.build(tmp_path / "corpus", DOCUMENTS)
    BM25Retriever(built).save(tmp_path / "bm25")
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
    from agent_gym.search.engines import open_index

    corpus = Corpus.build(tmp_path / "corpus", make_documents(30))
    build_index(corpus, make_encoder(str(make_tiny_encoder(tmp_path / "encoder"))), tmp_path / "dense")
    engine = HybridRetriever([open_index(tmp_path / "dense", corpus), open_index("bm25", corpus)])
    queries = [document.text for document in corpus]
    with serving(MicroBatcher(engine)) as server:
        assert RemoteRetriever(server.url).search(queries, 3) == engine.search(queries, 3)
    assert open_index(tmp_path / "dense", corpus).search(queries[:2], 1)[1][0].score > 0.5
    with pytest.raises(ConfigError, match="belongs to a corpus of 30 documents"):
        open_index(tmp_path / "dense", DOCUMENTS)


def test_the_command_tells_what_is_wrong(capsys, tmp_path):
    Corpus.build(tmp_path / "corpus", DOCUMENTS)
    corpus = ("--corpus", str(tmp_path / "corpus"))
    with bind(port=0) as listener:
        listener.listen()
        taken = str(listener.getsockname()[1])
        assert "Address already in use" in complaint(capsys, "serve", "search", *corpus, "--port", taken)
    assert "invalid choice: 'files'" in complaint(capsys, "serve", "files", *corpus)
    assert "port 70000" in complaint(capsys, "serve", "search", *corpus, "--port", "70000")
    assert "no such file" in complaint(capsys, "serve", "search", "--corpus", str(tmp_path / "x.jsonl"), "--port", "0")
    assert "holds no index" in complaint(capsys, "serve", "search", *corpus, "--port", "0", "--index", str(tmp_path))
    assert "holds no corpus" in complaint(capsys, "serve", "search", "--corpus", str(tmp_path), "--port", "0")
