"""Dense search: what is found, in which order, from how many threads, and what it refuses to open."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")

from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_build import HashEncoder
from tiny_encoder import make_documents

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document, Retriever
from agent_gym.search.build import MANIFEST, build_index
from agent_gym.search.dense import DenseRetriever

DOCUMENTS = make_documents(300)
HERE = Path(__file__).parent


def build(folder, documents=DOCUMENTS, encoder=None, **options):
    encoder = encoder or HashEncoder()
    build_index(documents, encoder, folder, **options)
    return DenseRetriever(documents, folder, encoder)


def nearest(encoder, queries, documents, k):
    """The k best documents of each query and their scores, by comparing with all of them."""
    vectors = encoder.encode_documents(documents).astype(np.float16).astype(np.float32)  # as they are stored
    scores = np.round(encoder.encode_queries(queries) @ vectors.T, 6)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return [[documents[n] for n in row] for row in order], np.take_along_axis(scores, order, 1)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return build(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def folder(retriever):
    return retriever.folder


def test_it_finds_the_nearest_and_so_do_its_copies(retriever):
    assert isinstance(retriever, Retriever)
    queries = [document.text for document in DOCUMENTS[:50]]
    expected, scores = nearest(HashEncoder(), queries, DOCUMENTS, 5)
    found = retriever.search(queries, 5)
    assert [[hit.document for hit in hits] for hits in found] == expected
    np.testing.assert_allclose([[hit.score for hit in hits] for hits in found], scores, atol=1e-5)
    assert type(found[0][0].score) is float
    assert copy.deepcopy(retriever) is retriever
    sent = pickle.dumps(retriever)
    assert len(sent) < 200_000
    assert pickle.loads(sent).search(queries, 5) == found


@settings(max_examples=40)
@example(["", "\n\t\r", "\x00\x01\x1f\x7f", "?!", "\u200b", "\ud83d", "Arlen"], 2)
@given(st.lists(st.text(st.characters(), max_size=40), max_size=5), st.integers(1, 400))
def test_any_query_gets_an_answer(retriever, queries, k):
    for query, hits in zip(queries, retriever.search(queries, k), strict=True):
        assert len(hits) == (min(k, len(DOCUMENTS)) if any(map(str.isalnum, query)) else 0)
        assert len({hit.document.id for hit in hits}) == len(hits)
        assert sorted((hit.score for hit in hits), reverse=True) == [hit.score for hit in hits]


@pytest.mark.parametrize("kind", ["flat", "hnsw_sq8"])
def test_equal_scores_come_in_the_order_of_the_corpus(tmp_path, kind):
    """60 copies among 300 others: more than k, and more than what is requested beyond k at first."""
    copies = {n: Document(f"copy{n}", "Same", "glass bells of Arlen") for n in range(5, 300, 5)}
    documents = [copies.get(n, document) for n, document in enumerate(DOCUMENTS)]
    retriever = build(tmp_path, documents, kind=kind)
    for k in (1, 3, 20, 70):
        hits = retriever.search(["Same glass bells of Arlen", "cheese"], k)[0]
        assert [hit.document for hit in hits][: len(copies)] == list(copies.values())[:k]
    if kind == "flat":  # the search for ties ends in a corpus of one text, too
        same = [Document(str(n), "", "all the same") for n in range(3000)]
        assert [hit.document.id for hit in build(tmp_path / "same", same).search(["same"], 3)[0]] == ["0", "1", "2"]


class Watched(HashEncoder):
    inside = 0

    def encode_queries(self, queries):
        self.inside += 1
        assert self.inside == 1, "tokenizers keep state"
        found = super().encode_queries(queries)
        self.inside -= 1
        return found


@pytest.mark.parametrize("kind", ["flat", "hnsw_sq8"])
def test_threads_get_the_answers_of_one_thread_and_share_the_encoder(tmp_path, kind):
    retriever = build(tmp_path, encoder=Watched(), kind=kind)
    queries = [[document.text for document in DOCUMENTS[n : n + n % 5 + 1]] for n in range(64)]

    def search(few):
        return [[hit.document for hit in hits] for hits in retriever.search(few, 4)]

    expected = list(map(search, queries))
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(search, queries * 4)) == expected * 4


FORK = """
import multiprocessing, sys, threading
from pathlib import Path
from slow_build import HashEncoder
from tiny_encoder import make_documents, make_tiny_encoder
from agent_gym.search import DenseRetriever, build_index, make_encoder

folder, model = Path(sys.argv[1]), sys.argv[2]
documents = make_documents(2000)
encoder = make_encoder(str(make_tiny_encoder(folder / model))) if model else HashEncoder()
build_index(documents, encoder, folder / "index", threads=2)
retriever = DenseRetriever(documents, folder / "index", encoder)
search = lambda: retriever.search([document.text for document in documents[:300]], 5)
expected = search()  # starts the threads that a fork loses

def child():
    right = [search() == expected]
    thread = threading.Thread(target=lambda: right.append(search() == expected))
    thread.start()
    thread.join()
    sys.exit(right != [True, True])

process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
process.start()
process.join(30)
sys.exit(process.exitcode if process.exitcode is not None else "the forked process hangs")
"""


@pytest.mark.parametrize("model", ["", pytest.param("bge-small-en-tiny", marks=pytest.mark.slow)])
def test_a_forked_process_searches_on(tmp_path, model):
    if model:
        pytest.importorskip("FlagEmbedding")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", FORK, str(tmp_path), model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def test_effort_is_passed_on(tmp_path):
    assert len(build(tmp_path, kind="ivf_flat").search(["Arlen"], 300)[0]) == 300
    opened = DenseRetriever(DOCUMENTS, tmp_path, HashEncoder(), nprobe=1)
    # It reads one list, which holds fewer documents than are requested: none of them is made up.
    hits = opened.search(["Arlen"], 300)[0]
    assert 0 < len(hits) < 300 and len({hit.document.id for hit in hits}) == len(hits)


def test_a_broken_encoder_is_a_failure_and_no_answer(folder):
    class Broken(HashEncoder):
        def encode_queries(self, queries):
            if queries == ["boom"]:
                raise RuntimeError("out of memory")
            return super().encode_queries(queries) * (np.nan if queries == ["nan"] else 1)

    retriever = DenseRetriever(DOCUMENTS, folder, Broken())
    for query, message in (("boom", "out of memory"), ("nan", "NaN")):
        with pytest.raises(EnvFailure, match=message):
            retriever.search([query], 1)
    assert retriever.search(["Arlen"], 1)[0]  # and the lock is free again


def test_a_damaged_index_is_never_searched(tmp_path, folder):
    content = (folder / "flat.faiss").read_bytes()
    (tmp_path / MANIFEST).write_bytes((folder / MANIFEST).read_bytes())
    for place in (0, len(content) // 2, len(content) - 1):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (tmp_path / "flat.faiss").write_bytes(flipped)
        with pytest.raises(ConfigError, match="flat.faiss is damaged.*build the index again"):
            DenseRetriever(DOCUMENTS, tmp_path, HashEncoder())
    for other in (content[:-1], content + b"x"):
        (tmp_path / "flat.faiss").write_bytes(other)
        with pytest.raises(ConfigError, match=f"bytes and was written with {len(content)}.*build the index again"):
            DenseRetriever(DOCUMENTS, tmp_path, HashEncoder(), verify=False)  # the size is compared in any case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "at 'format': Input should be 1; delete it and build the index again, or update agent-gym"),
        ({"kind": "corpus"}, "at 'kind': Input should be 'index'"),
        ({"index": "annoy"}, "kind 'annoy'; this version knows flat"),
        ({"index": "sq8"}, "sq8.faiss is missing"),
        ({"file": {"bytes": "9", "sha256": ""}}, "flat.faiss has .* was written with 9"),
        ({"surprise": 1}, "cannot be read at 'surprise'"),
        ('{"kind": "index"', f"{MANIFEST}.*delete it and build the index again"),
        (None, "holds no index .*build_index"),
    ],
)
def test_manifests_that_are_refused(folder, tmp_path, change, message):
    if isinstance(change, dict):
        change = json.dumps(json.loads((folder / MANIFEST).read_text()) | change)
    if change is not None:
        (tmp_path / MANIFEST).write_text(change)
    (tmp_path / "flat.faiss").write_bytes((folder / "flat.faiss").read_bytes())
    with pytest.raises(ConfigError, match=message):
        DenseRetriever(DOCUMENTS, tmp_path, HashEncoder())


def test_files_that_are_not_of_one_build(folder, tmp_path):
    """Both files whole, and the number of vectors gives it away."""
    build(tmp_path, DOCUMENTS[:100])
    other = json.loads((tmp_path / MANIFEST).read_text())
    mixed = json.loads((folder / MANIFEST).read_text()) | {"file": other["file"]}
    (tmp_path / MANIFEST).write_text(json.dumps(mixed))
    with pytest.raises(ConfigError, match="holds 100 vectors of 32 numbers, and its manifest has 300 of 32"):
        DenseRetriever(DOCUMENTS, tmp_path, HashEncoder())
    with pytest.raises(ConfigError, match="belongs to a corpus of 300 documents .* given corpus has 299"):
        DenseRetriever(DOCUMENTS[:-1], folder, HashEncoder())
    with pytest.raises(ConfigError, match="'hash' with dimension=32, and 'new' has 16"):
        DenseRetriever(DOCUMENTS, folder, HashEncoder(name="new", dimension=16))


def test_a_missing_faiss_is_named_with_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"'faiss'.*agentic-gym\[search\]"):
        DenseRetriever(DOCUMENTS, folder, HashEncoder())
    heavy = {"torch", "faiss", "FlagEmbedding", "sentence_transformers", "transformers", "bm25s", "Stemmer", "numba"}
    code = f"import sys, agent_gym.search, agent_gym.cli.serve; print(*sys.modules.keys() & {heavy | {'pyarrow'}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
