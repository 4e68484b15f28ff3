"""A search on another machine: the same results, a server that explains what is wrong, and a client that goes on."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_tools import complaint
from hypothesis import given
from hypothesis import strategies as st
from process_tools import holds_in_a_fork
from search_tools import CountingRetriever, answering, expected, reply, running, serving
from serve_tools import ask

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import BM25Retriever, Corpus, Document, Hit, MicroBatcher, RemoteRetriever, Retriever
from agent_gym.search.engines import fuse, open_index, read_response, response
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
    found = [[Hit(document, score)], []]
    assert read_response(json.dumps(response(found, True)).encode(), 2) == [[Hit(back, score)], []]


def test_documents_of_other_servers_are_read():
    read = {
        '"Ä"\nb\nc': Document("7", "Ä", "b\nc"),
        "plain\ntext": Document("7", "plain", "text"),
        "one line": Document("7", "", "one line"),
        '"\n"': Document("7", '"', '"'),
    }
    content = {"result": [[{"document": {"id": 7, "contents": text}, "score": 1} for text in read]]}
    assert read_response(json.dumps(content).encode(), 1) == [[Hit(document, 1.0) for document in read.values()]]


@pytest.mark.parametrize("about", [{}, {"id": None}])
def test_documents_without_ids_are_not_one(about):
    rows = [{"document": {**about, "contents": text}, "score": 1} for text in ("a\nb", "c\nd")]
    (hits,) = read_response(json.dumps({"result": [rows]}).encode(), 1)
    assert [hit.document.title for hit in fuse([hits, hits])] == ["a", "c"]


# The client.

GOOD = reply(response([expected("a", 1)], True))


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


def test_many_threads_keep_their_connections_and_answers_leave_without_delay():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        with ThreadPoolExecutor(50) as pool:
            queries = [f"{n}" for n in range(1000)]
            found = list(pool.map(lambda query: remote.search([query], 2), queries))
        assert found == [[expected(query, 2)] for query in queries]
        connections = server._server.server_state.connections
        assert 0 < len(connections) <= 50
        for accepted in connections:  # Nagle's algorithm would cost 40 ms per answer
            raw = accepted.transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_connection_that_the_server_closed_is_no_failure():
    more = reply(response([expected("a", 5)], True))
    with answering(GOOD, more, GOOD) as (url, requests, hung_up):
        remote = RemoteRetriever(url, retries=0)
        for _ in range(3):
            [hits] = remote.search(["a"], 1)
            assert [hit.document.id for hit in hits] == ["a/0"], "more documents than requested are cut"
            # A request that crosses the closing on its way is lost, and only a retry can mend that.
            assert hung_up.acquire(timeout=30)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert json.loads(body) == {"queries": ["a"], "topk": 1, "return_scores": True}
    assert head.startswith(b"POST /retrieve HTTP/1.1\r\n")


def test_broken_connections_are_tried_again_and_answers_are_not():
    with answering(b"", b"nonsense\r\n\r\n", GOOD[:-5], GOOD) as (url, requests, _):
        assert RemoteRetriever(url, retries=3).search(["a"], 1) == [expected("a", 1)]
    assert len(requests) == 4
    with answering(reply({"detail": "out of memory"}, "500 Internal Server Error")) as (url, requests, _):
        with pytest.raises(EnvFailure, match="answered 500 Internal Server Error: .*out of memory"):
            RemoteRetriever(url).search(["a"], 1)
    assert len(requests) == 1
    with pytest.raises(EnvFailure, match=f"{url} cannot be reached .*tried 7 times; start one with `agent-gym"):
        RemoteRetriever(url).search(["a"], 1)
    with bind(port=0) as silent:
        silent.listen()
        with pytest.raises(EnvFailure, match=r"ReadTimeout.*tried 2 times"):
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            RemoteRetriever(url, timeout_s=0.05, retries=1).search(["a"], 1)


def test_answers_of_another_form_are_refused():
    wrong = [{"document": {"id": "1"}, "score": 1}, {"document": {"contents": "a"}, "score": "high"}]
    bodies = ["<html>", {"result": 3}, {"result": [[], []]}, *({"result": [[row]]} for row in wrong)]
    with answering(*map(reply, bodies)) as (url, requests, _):
        for _ in bodies:
            with pytest.raises(EnvFailure, match="does not speak Search-R1's protocol"):
                RemoteRetriever(url).search(["a"], 1)
    assert len(requests) == len(bodies)


def test_forks_copies_and_pickles_have_their_own_connections():
    with serving(MicroBatcher(CountingRetriever())) as server:
        remote = RemoteRetriever(server.url)
        remote.search(["a"], 1)
        assert copy.deepcopy(remote) is remote and len(remote._client._idle) == 1
        other = pickle.loads(pickle.dumps(remote))
        assert not other._client._idle and other.search(["a"], 1) == [expected("a", 1)]
        assert holds_in_a_fork(lambda: not remote._client._idle and remote.search(["b"], 1) == [expected("b", 1)])
        assert remote.search(["c"], 1) == [expected("c", 1)]


def test_wrong_arguments():
    for url in ("localhost:8000", "ftp://a", "http://", "http://a:99999"):
        with pytest.raises(ConfigError, match="it must be like"):
            RemoteRetriever(url)
    with pytest.raises(ConfigError, match="above 0 seconds"):
        RemoteRetriever("http://localhost", timeout_s=0)


# The server.


@pytest.fixture(scope="module")
def url():
    with serving(CountingRetriever(), topk=2, about={"documents": 7}) as server:
        yield server.url


def test_both_forms_of_answers_and_failures(url):
    def retrieve(**body):
        return ask(url, "/retrieve", body)[:2]

    documents = [{"id": f"x/{n}", "contents": '"x"\nk=3'} for n in range(3)]
    scored = [{"document": document, "score": 1 / (1 + n)} for n, document in enumerate(documents)]
    assert retrieve(queries=["x"], topk=3, return_scores=True) == (200, {"result": [scored]})
    for plain in ({"return_scores": False}, {}, {"return_scores": None}):
        assert retrieve(queries=["x"], topk=3, **plain) == (200, {"result": [documents]})
    status, content = retrieve(queries=["x", "y"], topk=None, more=1)
    assert status == 200 and [len(found) for found in content["result"]] == [2, 2], "topk of the server"
    assert retrieve(queries=[]) == (200, {"result": []})
    assert retrieve(queries=["fail"]) == (500, {"detail": "EnvFailure: the engine broke"})
    status, content, _ = ask(url, "/retrieve", "x" * (MAX_REQUEST_BYTES + 1))
    assert status == 413 and "send fewer or shorter queries" in content["detail"]
    assert ask(url, "/health?x=1")[:2] == (200, {"status": "ok", "documents": 7})
    for body, path in ((None, "/retrieve"), ({}, "/search"), ({}, "/health")):
        assert ask(url, path, body)[:2] == (404, {"detail": "there are POST /retrieve, GET /health"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ([], "must be an object"),
        ({"queries": "x"}, "queries must be a list of texts"),
        ({"queries": ["x", 1]}, "queries must be a list of texts"),
        ({"queries": ["x"], "topk": True}, "topk is True"),
        ({"queries": ["x"], "topk": 1001}, "from 1 to 1000"),
        ({"queries": ["x"], "return_scores": 1}, "return_scores is 1"),
    ],
)
def test_what_clients_get_wrong_is_named(url, body, message):
    status, content, _ = ask(url, "/retrieve", body)
    assert status == 400 and message in content["detail"]


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
    for host, port in (("127.0.0.1", 70_000), ("no.such.host.invalid", 0)):
        with pytest.raises(ConfigError, match="cannot listen on"):
            bind(host, port)
    with bind(port=0) as one, bind(port=one.getsockname()[1]) as other:  # neither listens yet
        with SearchServer(CountingRetriever(), one), pytest.raises(ConfigError, match="cannot listen at http"):
            SearchServer(CountingRetriever(), other)


def test_ipv6():
    try:
        listener = bind("::1", 0)
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    with running(SearchServer(CountingRetriever(), listener)) as server:
        assert server.url.startswith("http://[::1]:")
        assert RemoteRetriever(server.url).search(["x"], 1) == [expected("x", 1)]


# The command.


def test_the_command_serves_until_a_signal_ends_it(tmp_path):
    pytest.importorskip("bm25s")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"_id": d.id, **d._asdict()}) + "\n" for d in DOCUMENTS))
    words = ["serve", "search", "--corpus", str(tmp_path / "c.jsonl"), "--port", "0", "--topk", "1"]
    command = [sys.executable, "-m", "agent_gym", *words]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = next(line for line in process.stderr if line.startswith("serving"))
        assert line.startswith("serving 2 documents at http://127.0.0.1:")
        address = line.split()[-1]
        found = RemoteRetriever(address).search(["Apollo 9", "moon", "?"], 1)
        assert [[hit.document for hit in hits] for hits in found] == [[DOCUMENTS[1]], [DOCUMENTS[0]], []]
        assert ask(address, "/health")[:2] == (200, {"status": "ok", "documents": 2, "index": ["bm25"]})
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(TIMEOUT) == 0 and rest == "stopped\n"
    finally:
        process.kill()
        process.wait()
    assert list((tmp_path / "tmp").iterdir()) == [], "the temporary corpus is gone"


def test_the_command_opens_what_was_saved(tmp_path):
    for needed in ("bm25s", "faiss", "sentence_transformers"):
        pytest.importorskip(needed)
    from tiny_encoder import make_tiny_encoder

    from agent_gym.search import build_index, make_encoder

    BM25Retriever(Corpus.build(tmp_path / "corpus", DOCUMENTS)).save(tmp_path / "bm25")
    build_index(DOCUMENTS, make_encoder(str(make_tiny_encoder(tmp_path / "encoder"))), tmp_path / "dense")
    with open_corpus(tmp_path / "corpus") as corpus:
        assert list(corpus) == DOCUMENTS
        for index in (tmp_path / "bm25", tmp_path / "dense", "bm25"):
            assert open_index(index, corpus).search(["Apollo 8 To the Moon."], 1)[0][0].document == DOCUMENTS[0]
        with pytest.raises(ConfigError, match="only a corpus; give that as the corpus"):
            open_index(tmp_path / "corpus", corpus)
        with pytest.raises(ConfigError, match='holds no index .*or "bm25"'):
            open_index(tmp_path / "nothing", corpus)


def test_the_command_names_what_is_wrong(capsys, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    words = ("serve", "search", "--port", "0", "--corpus")
    assert "holds no corpus" in complaint(capsys, *words, str(tmp_path))
    assert "holds no index" in complaint(capsys, *words, str(tmp_path / "c.jsonl"), "--index", str(tmp_path))
