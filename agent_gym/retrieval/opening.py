"""Engines by the names that a command line gives them: corpora, and folders of indexes of either kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_gym.errors import ConfigError
from agent_gym.retrieval import corpus as corpora
from agent_gym.retrieval import lexical, manifest
from agent_gym.retrieval.base import Document, Retriever
from agent_gym.retrieval.corpus import Corpus
from agent_gym.retrieval.sources import open_source

_ON_GPU = ("flat", "sqfp16")


@contextmanager
def open_corpus(name: str | Path, *, progress: bool = False) -> Iterator[Corpus]:
    """Open a corpus folder, or what `open_source` reads, which is written to a temporary one.

    Raises:
        ConfigError: if there is no such thing, or it is broken.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        yield Corpus(folder)
        return
    with TemporaryDirectory(prefix="agent-gym-corpus-") as temporary:
        yield Corpus.build(temporary, open_source(name), progress=progress)


def open_index(name: str | Path, corpus: Sequence[Document], device: str = "cpu") -> Retriever:
    """Open the engine of an index.

    Args:
        name: a folder that `build_index` or `BM25Retriever.save` filled, or "bm25" to build that one in memory.
        corpus: the corpus it was built from.
        device: where a dense index encodes queries, "cpu" or "cuda"; a GPU also holds the index, if it is an exact one.

    Raises:
        ConfigError: if the folder holds no index, or one that does not belong to the corpus.
    """
    if str(name) == "bm25":
        return lexical.BM25Retriever(corpus)
    folder = Path(name).expanduser()
    if (folder / lexical.MANIFEST).is_file():
        return lexical.BM25Retriever.load(folder, corpus)
    if (folder / manifest.MANIFEST).is_file():
        return _open_dense(folder, corpus, device)
    raise ConfigError(
        f"{folder} holds no index ({manifest.MANIFEST} or {lexical.MANIFEST})"
        + (", only a corpus; give that as the corpus" if (folder / corpora.MANIFEST).is_file() else "")
        + '; name a folder with one, or "bm25"'
    )


def _open_dense(folder: Path, corpus: Sequence[Document], device: str) -> Retriever:
    from agent_gym.retrieval.dense import DenseRetriever
    from agent_gym.retrieval.encoder_models import make_encoder

    read = manifest.Manifest.read(folder)
    spec = read.origin.encoder
    encoder = make_encoder(
        spec.name, device=device, query_prefix=spec.query_prefix, document_prefix=spec.document_prefix
    )
    return DenseRetriever(corpus, folder, encoder, device=device if read.index in _ON_GPU else "cpu")
