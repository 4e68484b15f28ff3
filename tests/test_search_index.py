"""Kinds of indexes: what they find and what steers them. And building: killed anywhere it ends with the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("faiss")

import faiss
from slow_build import DIMENSION, HashEncoder
from tiny_encoder import make_documents

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import build as building
from agent_gym.search import files, index
from agent_gym.search.build import MANIFEST, build_index
from agent_gym.search.dense import DenseRetriever, to_gpu
from agent_gym.search.encoder import normalised
from agent_gym.search.index import (
    AUTO_FLAT,
    KINDS,
    Searcher,
    build_of,
    choose_kind,
    faiss_threads,
    lists,
    plan_table,
    read_index,
)

MANY = 10_240

# With 200 queries; PQ keeps 8 of 128 bytes. The bounds are a little below what was measured.
RECALL = dict(zip(KINDS, (1.0, 0.99, 0.95, 0.93, 0.95, 0.92, 0.25, 0.75), strict=True))


@pytest.fixture(scope="module")
def vectors():
    """Clusters, as encoders make them, and queries near some of them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, DIMENSION))
    found = centres[rng.integers(100, size=MANY + 200)] + rng.standard_normal((MANY + 200, DIMENSION))
    return normalised(found[:MANY]), normalised(found[MANY:])


@pytest.fixture(scope="module")
def indexes(vectors):
    return {kind: made_of(kind, vectors[0]) for kind in KINDS}


def made_of(kind, vectors):
    with faiss_threads(1):
        return build_of(kind, *vectors.shape, lambda positions: vectors[positions], progress=False)


def recall_of(searcher, vectors):
    """The part of the five nearest that are found, the scores, and the positions."""
    exact = np.argsort(-(vectors[1] @ vectors[0].T), axis=1)[:, :5]
    scores, places = searcher.search(vectors[1], 5)
    return np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact, places, strict=True)]), scores, places


@pytest.mark.parametrize("kind", KINDS)
def test_recall_also_of_a_mapped_index(indexes, vectors, tmp_path, kind):
    recall, scores, places = recall_of(Searcher(indexes[kind], kind), vectors)
    assert recall >= RECALL[kind]
    assert (np.diff(scores, axis=1) <= 0).all()
    if kind in ("flat", "sqfp16", "sq8", "hnsw_sq8", "ivf_flat"):  # the others estimate
        own = np.einsum("qd,qkd->qk", vectors[1], vectors[0][places])
        np.testing.assert_allclose(scores, own, atol=0.02)
    faiss.write_index(indexes[kind], str(tmp_path / "index"))
    for mmap in (True, False):
        index = read_index(tmp_path / "index", mmap=mmap)
        assert (index.ntotal, index.d, index.metric_type) == (MANY, DIMENSION, 0)
        for ours, theirs in zip(Searcher(index, kind).search(vectors[1], 5), (scores, places), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("kind", "name", "most"), [("hnsw_sq8", "ef", 512), ("ivf_flat", "nprobe", 256)])
def test_effort_buys_recall_and_is_no_state_of_the_index(indexes, vectors, kind, name, most):
    little, much = (Searcher(indexes[kind], kind, **{name: value}) for value in (1, most))
    with ThreadPoolExecutor(8) as pool:  # both at once: settings of one must not leak into the other
        found = list(pool.map(lambda searcher: recall_of(searcher, vectors)[0], [little, much] * 8))
    low, high = (recall_of(searcher, vectors)[0] for searcher in (little, much))
    assert set(found[::2]) == {low} and set(found[1::2]) == {high}
    assert low + 0.2 < high > 0.95


def test_auto_goes_by_size():
    assert [choose_kind("auto", count, 8) for count in (1, AUTO_FLAT, AUTO_FLAT + 1)] == ["flat", "flat", "hnsw_sq8"]
    assert [choose_kind("auto", count, 8, "cuda") for count in (AUTO_FLAT, AUTO_FLAT + 1)] == ["flat", "sqfp16"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Searcher(None, "flat", ef=10), "'flat' has no ef; it has: nothing to set"),
        (lambda: Searcher(None, "ivf_sq8", nprobe=0), "nprobe is 0"),
        (lambda: choose_kind("hnsw", 10, 8), "from auto, flat, sqfp16, sq8, hnsw_sq8, ivf_flat, ivf_sq8, pq, rabitq4"),
        (lambda: choose_kind("ivf_flat", 39, 8), "at least 40 vectors, and there are 39; use kind='flat'"),
        (lambda: choose_kind("pq", 10_240, 6), "byte of every 4 numbers, and the vectors have 6"),
        (lambda: to_gpu(None, "sq8", "cuda"), "'sq8' is searched on the CPU; for device='cuda' build 'flat'"),
        (lambda: to_gpu(None, "flat", "gpu"), "'cuda', or one GPU such as 'cuda:1'"),
    ],
)
def test_settings_that_cannot_be(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_lists_follow_the_number_of_vectors():
    assert [lists(count) for count in (40, 100_000, 1_000_000, 5_230_000)] == [1, 1024, 4096, 8192]
    assert all(count // lists(count) >= 40 for count in range(40, 5000, 7))


def test_what_is_no_index_is_a_clear_error(tmp_path):
    (tmp_path / "index").write_bytes(b"nonsense" * 100)
    with pytest.raises(ConfigError, match="cannot read .*; build the index again"):
        read_index(tmp_path / "index")


PEAK = """
import numpy as np
from agent_gym.search.index import new_index, reserve
blocks, block, d = 17, 8192, 128  # just past a power of two, where arrays that double have the most to copy
index = new_index("flat", blocks * block, d)
vectors = np.ones((block, d), np.float32)
memory = lambda name: next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
before = memory("VmRSS")
reserve(index, blocks * block)
for _ in range(blocks):
    index.add(vectors)
print((memory("VmHWM") - before) / (blocks * block * d * 4))
"""


def test_adding_does_not_take_twice_the_memory():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=120)
    assert 0.9 < float(done.stdout) < 1.2


def test_a_gpu_that_is_not_there(indexes):
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        pytest.skip("this machine has a GPU and a FAISS that uses it")
    with pytest.raises(ConfigError, match="FAISS .* finds 0 GPUs.*faiss-gpu.*device='cpu'"):
        to_gpu(indexes["flat"], "flat", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["flat", "sqfp16"])
def test_a_gpu_finds_what_the_cpu_finds(indexes, vectors, kind):
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        pytest.skip("needs faiss-gpu and a GPU")
    searcher = Searcher(to_gpu(indexes[kind], kind, "cuda"), kind)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: searcher.search(vectors[1], 5), range(16)))
    scores, places = Searcher(indexes[kind], kind).search(vectors[1], 5)
    assert (found[0][1] == places).mean() > 0.98
    np.testing.assert_allclose(found[0][0], scores, atol=2e-3)
    assert all((places == found[0][1]).all() for _, places in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimension", [16, 64])
def test_the_plan_is_what_an_index_takes(tmp_path, kind, dimension):
    count = max(4000, KINDS[kind].minimum)
    vectors = normalised(np.random.default_rng(0).standard_normal((count, dimension)))
    faiss.write_index(made_of(kind, vectors), str(tmp_path / "index"))
    assert (tmp_path / "index").stat().st_size == pytest.approx(KINDS[kind].size(count, dimension), rel=0.01)


def test_the_table_marks_what_auto_chooses():
    table = plan_table(5_230_000, 1024)
    assert [line.split()[1] for line in table.splitlines() if line.startswith("*")] == ["hnsw_sq8"]
    assert "19.95 GiB" in table and all(kind in table for kind in KINDS)
    small = plan_table(30, 384)
    assert "* flat" in small and "ivf_flat" not in small and "pq" not in small


# Building.

COUNT = 200  # in 13 files of 16
DOCUMENTS = make_documents(COUNT)


def run(folder: Path, kill_at: int = 0) -> int:
    script = Path(__file__).parent / "slow_build.py"
    return subprocess.run([sys.executable, script, folder, "hnsw_sq8", str(COUNT), str(kill_at)]).returncode


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(folder) == 0
    return contents(folder)


@pytest.mark.parametrize("call", [2, 17, *(pytest.param(call, marks=pytest.mark.slow) for call in (1, 3, 4, 6))])
@pytest.mark.parametrize("complete", [False, True], ids=["encoding", "indexing"])
def test_a_build_that_is_killed_between_two_files_ends_with_the_same_bytes(tmp_path, undisturbed, call, complete):
    """Each file is flushed, renamed and its folder flushed; `complete` has all vectors, so the index comes first."""
    if complete:
        for name, content in undisturbed.items():
            if name.startswith("vectors"):
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_bytes(content)
    assert run(tmp_path, call) == (0 if complete and call > 6 else -9)
    if not (tmp_path / MANIFEST).exists():
        with pytest.raises(ConfigError, match="no index .* whose build was not finished"):
            DenseRetriever(DOCUMENTS, tmp_path, HashEncoder())
    assert run(tmp_path) == 0
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("kind", KINDS)
def test_two_builds_are_equal(tmp_path, kind):
    documents, dimension = (make_documents(10_240), 8) if kind == "pq" else (DOCUMENTS, DIMENSION)
    for name in ("one", "two"):
        build_index(documents, HashEncoder(dimension=dimension), tmp_path / name, kind=kind, shard_size=50)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


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


def test_large_files_are_read_and_encoded_in_pieces(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(building, "_ENCODE_AT_ONCE", 30)
    monkeypatch.setattr(index, "ADD_AT_ONCE", 70)
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
