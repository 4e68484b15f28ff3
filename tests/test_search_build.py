"""Building an index: killed anywhere it goes on and ends with the same bytes, and it never mixes two origins."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("faiss")

from slow_build import DIMENSION, HashEncoder
from tiny_encoder import make_documents

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import build, files
from agent_gym.search.build import MANIFEST, build_index
from agent_gym.search.corpus import Corpus
from agent_gym.search.dense import DenseRetriever
from agent_gym.search.index import KINDS

COUNT = 200  # in 13 files of 16
DOCUMENTS = make_documents(COUNT)


def start(folder: Path, kind: str = "hnsw_sq8", seconds: float = 0, kill_at: int = 0) -> subprocess.Popen[bytes]:
    script = Path(__file__).parent / "slow_build.py"
    arguments = [str(folder), kind, str(COUNT), str(seconds), *([str(kill_at)] if kill_at else [])]
    return subprocess.Popen([sys.executable, script, *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of a build that was not killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder).wait() == 0
    return contents(folder)


@pytest.mark.parametrize("call", [1, 2, 3, 4, 6, 17])
@pytest.mark.parametrize("complete", [False, True], ids=["encoding", "indexing"])
def test_a_build_that_is_killed_between_two_files_ends_with_the_same_bytes(tmp_path, undisturbed, call, complete):
    """Each file is flushed, renamed and its folder flushed; `complete` has all vectors, so the index comes first."""
    if complete:
        for name, content in undisturbed.items():
            if name.startswith("vectors"):
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_bytes(content)
    process = start(tmp_path, kill_at=call)
    assert process.wait() == (0 if complete and call > 6 else -9)
    if process.returncode:
        if not (tmp_path / MANIFEST).exists():
            with pytest.raises(ConfigError, match="no index .* whose build was not finished"):
                DenseRetriever(DOCUMENTS, tmp_path, HashEncoder())
        assert start(tmp_path).wait() == 0
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("kind", KINDS)
def test_two_builds_are_equal(tmp_path, kind):
    documents, dimension = (make_documents(10_240), 8) if kind == "pq" else (DOCUMENTS, DIMENSION)
    for name in ("one", "two"):
        build_index(documents, HashEncoder(dimension=dimension), tmp_path / name, kind=kind, shard_size=50)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_build_that_is_killed_at_random_ends_with_the_same_bytes(tmp_path, undisturbed):
    """Whenever a build comes through, compare it, lose most of its work and go on."""
    rng, killed = random.Random(0), 0
    while killed < 4:
        process = start(tmp_path, seconds=0.03)
        try:
            process.wait(rng.uniform(0.2, 0.7))
        except subprocess.TimeoutExpired:
            process.kill()
        killed += process.wait() != 0
        if process.returncode == 0:
            assert contents(tmp_path) == undisturbed
            (tmp_path / MANIFEST).unlink()
            for path in rng.sample(sorted((tmp_path / "vectors").glob("*.npy")), 10):
                path.unlink()
    assert start(tmp_path).wait() == 0
    assert contents(tmp_path) == undisturbed


def test_what_is_there_is_not_made_again_and_what_is_damaged_is(tmp_path):
    encoder = HashEncoder(name="BAAI/hash")
    build_index(DOCUMENTS, encoder, tmp_path, shard_size=16)
    expected = contents(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    moved = HashEncoder(name="./models/hash")  # the same model
    assert build_index(DOCUMENTS, moved, tmp_path, shard_size=16).origin.encoder.name == "BAAI/hash"
    assert moved.batches == [1, 1]  # the probe
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    (tmp_path / "flat.faiss").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"flat.faiss has 0 bytes.*build_index with the same arguments"):
        DenseRetriever(DOCUMENTS, tmp_path, encoder)
    encoder.batches.clear()
    build_index(DOCUMENTS, encoder, tmp_path)
    assert encoder.batches == [1, 1] and contents(tmp_path) == expected
    shards = sorted((tmp_path / "vectors").glob("*.npy"))
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    shards[3].write_bytes(b"\0" * len(shards[3].read_bytes()))
    shards[5].rename(shards[5].with_name("no-vectors.npy"))
    (tmp_path / MANIFEST).unlink()
    encoder.batches.clear()
    build_index(DOCUMENTS, encoder, tmp_path)
    assert encoder.batches == [1, 1, 16, 16, 16]
    assert contents(tmp_path) == expected


def test_another_kind_is_built_from_the_same_vectors(tmp_path, monkeypatch):
    build_index(DOCUMENTS, HashEncoder(), tmp_path, kind="flat")
    encoder = HashEncoder()
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(files, "write_json", Mock(side_effect=InterruptedError))
        build_index(DOCUMENTS, encoder, tmp_path, kind="sq8")
    # Between the new index and its manifest both are there, and the manifest is about the first.
    assert sorted(path.name for path in tmp_path.glob("*.faiss")) == ["flat.faiss", "sq8.faiss"]
    assert DenseRetriever(DOCUMENTS, tmp_path, HashEncoder()).manifest.index == "flat"
    build_index(DOCUMENTS, encoder, tmp_path, kind="sq8")
    assert max(encoder.batches) == 1
    assert [path.name for path in tmp_path.glob("*.faiss*")] == ["sq8.faiss"]
    shutil.rmtree(tmp_path / "vectors")  # which may be deleted afterwards
    opened = DenseRetriever(DOCUMENTS, tmp_path, encoder)
    assert opened.manifest.index == "sq8" and opened.search(["Arlen glass"], 1)[0]
    build_index(DOCUMENTS, encoder, tmp_path, kind="sq8")
    assert max(encoder.batches) == 1 and not (tmp_path / "vectors").exists()


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("documents", "encoder", "message"),
    [
        ([*DOCUMENTS[:-1], make_documents(201)[-1]], {}, "belongs to a corpus of 200 documents"),
        (DOCUMENTS, {"salt": "x"}, "'hash', and 'hash' gives the same text another vector"),
        (DOCUMENTS, {"pooling": "cls"}, "pooling='mean', and 'hash' has 'cls'"),
    ],
)
def test_a_folder_belongs_to_one_corpus_and_one_encoder(tmp_path, finished, documents, encoder, message):
    build_index(DOCUMENTS, HashEncoder(), tmp_path)
    if not finished:
        (tmp_path / MANIFEST).unlink()
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=f"{message}.*another folder"):
        build_index(documents, HashEncoder(**encoder), tmp_path)
    assert contents(tmp_path) == before


def test_a_corpus_on_disk(tmp_path):
    corpus = Corpus.build(tmp_path / "corpus", DOCUMENTS)
    manifest = build_index(corpus, HashEncoder(), tmp_path / "index")
    assert manifest.origin.corpus == corpus.checksum and manifest.parameters["factory"] == "Flat"
    assert build_index(DOCUMENTS, HashEncoder(), tmp_path / "index") == manifest  # the same documents as a list
    hits = DenseRetriever(corpus, tmp_path / "index", HashEncoder()).search([DOCUMENTS[7].text], 1)[0]
    assert hits[0].document == DOCUMENTS[7]


def test_large_files_are_read_and_encoded_in_pieces(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(build, "_ENCODE_AT_ONCE", 30)
    monkeypatch.setattr(build, "ADD_AT_ONCE", 70)
    encoder = HashEncoder()
    build_index(DOCUMENTS, encoder, tmp_path / "pieces", shard_size=90, progress=True)
    assert "encoding: 100%" in (shown := capfd.readouterr().err) and "indexing (flat): 100%" in shown
    assert encoder.batches == [1, 1, 30, 30, 30, 30, 30, 30, 20]
    monkeypatch.undo()
    build_index(DOCUMENTS, HashEncoder(), tmp_path / "whole", shard_size=90)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
    assert capfd.readouterr().err == ""


def test_two_processes_do_not_build_in_one_folder(tmp_path):
    with files.locked(tmp_path), pytest.raises(ConfigError, match="another process is writing"):
        build_index(DOCUMENTS, HashEncoder(), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"corpus": []}, "the corpus is empty"),
        ({"kind": "best"}, "no such kind of index: 'best'"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"threads": 0}, "threads 0"),
    ],
)
def test_what_cannot_be_built(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        build_index(**{"corpus": DOCUMENTS, "encoder": HashEncoder(), "folder": tmp_path / "index", **arguments})
    assert not (tmp_path / "index").exists()


def test_an_encoder_that_returns_no_numbers(tmp_path):
    class Broken(HashEncoder):
        def encode_documents(self, documents):
            return super().encode_documents(documents) * (np.nan if len(documents) > 1 else 1)

    with pytest.raises(EnvFailure, match="NaN"):
        build_index(DOCUMENTS, Broken(), tmp_path)
    assert not list((tmp_path / "vectors").glob("*.npy"))
