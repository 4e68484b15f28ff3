"""Build the index of a corpus: encode, train, add, and write the manifest last.

Encoding is what takes hours, and it goes on where it stopped. Training and adding take minutes and start again. The
memory it needs is that of the finished index and a block of vectors (`agent_gym.retrieval.plan` computes it).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from agent_gym.errors import ConfigError, require
from agent_gym.retrieval import corpus as corpora
from agent_gym.retrieval import files
from agent_gym.retrieval.base import Document
from agent_gym.retrieval.encoder import Encoder, checked_vectors
from agent_gym.retrieval.index import (
    KINDS,
    choose_kind,
    faiss_threads,
    new_index,
    reserve,
    training_vectors,
    write_index,
)
from agent_gym.retrieval.manifest import MANIFEST, METRIC, FileRecord, Manifest, Origin
from agent_gym.retrieval.vectors import VectorShards

_ENCODE_AT_ONCE = 1024  # so many texts are sorted by length together, and the bar moves
_ADD_AT_ONCE = 65_536


def build_index(
    corpus: Sequence[Document],
    encoder: Encoder,
    folder: str | Path,
    *,
    kind: str = "auto",
    device: str = "cpu",
    shard_size: int = 4096,
    threads: int = 1,
    progress: bool = False,
) -> Manifest:
    """Build an index, or go on building it. Where there is one already, this returns at once.

    After a kill at any moment the same call goes on and ends with the same bytes. The vectors stay in the folder
    `vectors`: another kind is built from them in minutes. Who wants no other kind may delete it.

    Args:
        corpus: the documents; a `Corpus`, or any sequence.
        encoder: makes their vectors.
        folder: where to; made if it is missing.
        kind: of index (`agent_gym.retrieval.index`).
        device: where it will be searched; decides what "auto" is.
        shard_size: documents per file of vectors, which is what a kill loses at most.
        threads: for training and adding. With more than 1, HNSW graphs are as good but differ from build to build.
        progress: whether to show progress bars.

    Returns:
        The manifest.

    Raises:
        ConfigError: for an empty corpus, a kind that cannot be made of it, a folder that belongs to another corpus or
            encoder, or one that another process builds in.
        EnvFailure: if the encoder returns something else than vectors.
    """
    folder = Path(folder).expanduser()
    if not len(corpus):
        raise ConfigError("the corpus is empty; an index needs at least one document")
    if shard_size < 1 or threads < 1:
        raise ConfigError(f"shard_size is {shard_size} and threads {threads}; both must be at least 1")
    kind = choose_kind(kind, len(corpus), encoder.spec.dimension, device)
    require("faiss", "retrieval")  # to fail now and not after the encoding
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        origin = Origin.of(corpora.checksum(corpus), len(corpus), encoder)
        finished = _finished(folder, kind, origin)
        if finished:
            return finished
        shards = VectorShards(folder / "vectors", origin, shard_size)
        _encode(corpus, encoder, shards, progress)
        with faiss_threads(threads):
            index = _index(shards, kind, progress)
        return _write(index, folder, kind, shards.origin)


def _finished(folder: Path, kind: str, origin: Origin) -> Manifest | None:
    """The manifest, if there is an index of this kind and it is whole."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = Manifest.read(folder)
    manifest.origin.check_corpus(origin.corpus, origin.count, folder)
    manifest.origin.check_encoder(origin.encoder, origin.probe, folder)
    if manifest.index != kind:
        return None
    try:
        manifest.check_file(folder)
    except ConfigError:  # whoever opened the index was told to build again, and that is now
        return None
    return manifest


def _encode(corpus: Sequence[Document], encoder: Encoder, shards: VectorShards, progress: bool) -> None:
    missing = shards.missing()
    done = len(corpus) - sum(len(shards.span(shard)) for shard in missing)
    with tqdm(total=len(corpus), initial=done, desc="encoding", unit=" documents", disable=not progress) as bar:
        for shard in missing:
            # Cut the same way on every run: which texts share a batch decides the last bits of their vectors.
            parts = []
            for start in shards.span(shard)[::_ENCODE_AT_ONCE]:
                documents = [corpus[n] for n in range(start, min(start + _ENCODE_AT_ONCE, shards.span(shard).stop))]
                parts.append(checked_vectors(encoder.encode_documents(documents), len(documents), encoder.spec))
                bar.update(len(documents))
            shards.write(shard, np.concatenate(parts))


def _index(shards: VectorShards, kind: str, progress: bool) -> Any:
    count, dimension = shards.origin.count, shards.origin.encoder.dimension
    index = new_index(kind, count, dimension)
    n_training = training_vectors(kind, count)
    if n_training:
        # The same ones on every run; ascending, so that the files are read once and in order.
        chosen = np.random.default_rng(0).choice(count, n_training, replace=False, shuffle=False)
        index.train(shards.pick(np.sort(chosen)))
    reserve(index, count)
    with tqdm(total=count, desc=f"indexing ({kind})", unit=" vectors", disable=not progress) as bar:
        for start in range(0, count, _ADD_AT_ONCE):
            stop = min(start + _ADD_AT_ONCE, count)
            index.add(shards.read(start, stop))
            bar.update(stop - start)
    return index


def _write(index: Any, folder: Path, kind: str, origin: Origin) -> Manifest:
    factory = KINDS[kind].factory(origin.count, origin.encoder.dimension)
    parameters: dict[str, int | str] = {"factory": factory, "faiss": require("faiss", "retrieval").__version__}
    path = folder / f"{kind}.faiss"
    write_index(index, path)
    manifest = Manifest(kind, parameters, METRIC, origin, FileRecord(**files.describe(path)))
    manifest.write(folder)
    for other in folder.glob("*.faiss*"):
        if other != path:  # an earlier kind; until the line before, the manifest was about it, and it was whole
            other.unlink()
    return manifest
