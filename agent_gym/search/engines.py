"""Engines by the names that settings and command lines give them: "bm25", the folder of an index, an address.

The engine of an episode is made when it is first asked for, and shared by all environments of the process.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from agent_gym.errors import ConfigError, require
from agent_gym.search import bm25, manifest
from agent_gym.search import corpus as corpora
from agent_gym.search.base import Document, Retriever
from agent_gym.search.bm25 import BM25Retriever
from agent_gym.search.corpus import Corpus
from agent_gym.search.dense import DenseRetriever
from agent_gym.search.encoder import make_encoder
from agent_gym.search.index import EXACT
from agent_gym.search.remote import RemoteRetriever
from agent_gym.search.sources import open_source
from agent_gym.shared import Shared


class Engines(Shared):
    """Keeps engines by key, the last used ones of them.

    Args:
        maxsize: how many; a run visits the worlds of a split over and over, and an index of one takes a megabyte.
    """

    live: ClassVar[tuple[str, ...]] = ("_lock",)

    def __init__(self, maxsize: int = 128) -> None:
        self._maxsize = maxsize
        self._engines: OrderedDict[Hashable, tuple[Retriever, Any]] = OrderedDict()
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Retriever], owner: Any = None) -> Retriever:
        """Return the engine of a key, after making it if need be, once even if several threads ask.

        Args:
            key: what distinguishes this engine from others.
            make: makes it.
            owner: kept alive as long as the engine, for keys that are made of its `id`.
        """
        with self._lock:
            if key not in self._engines:
                self._engines[key] = make(), owner
                while len(self._engines) > self._maxsize:
                    self._engines.popitem(last=False)
            self._engines.move_to_end(key)
            return self._engines[key][0]


ENGINES = Engines()


def open_retriever(retriever: Any, corpus: Iterable[Document] | None) -> Retriever | None:
    """Return the engine that a setting means, or None for BM25 over whatever a question is to be searched in.

    Args:
        retriever: "bm25", the folder of an index, the address of a server, or an engine.
        corpus: what was opened as the corpus; the folder of an index needs the one it was built from.

    Raises:
        ConfigError: for anything else, and for an index that cannot be opened.
    """
    if retriever == "bm25":
        if find_spec("bm25s") is None:
            require("bm25s", "search")  # names the extra now, and not when the first policy searches
        return None
    if isinstance(retriever, str) and retriever.startswith(("http://", "https://")):
        return ENGINES.get(retriever, lambda: RemoteRetriever(retriever))
    if isinstance(retriever, str) and Path(retriever).expanduser().is_dir():
        if corpus is None:
            raise ConfigError(f"retriever is the index {retriever!r}, which needs corpus=, the one it was built from")
        return ENGINES.get((retriever, id(corpus)), lambda: open_index(retriever, documents_of(corpus)), corpus)
    if isinstance(retriever, str) or not isinstance(retriever, Retriever):
        raise ConfigError(
            f"retriever is {retriever!r:.80}; allowed: 'bm25', the folder of an index, an address such as "
            "'http://127.0.0.1:8000', or an object with search(queries, k), such as those of agent_gym.search"
        )
    return retriever


@functools.lru_cache(maxsize=8)
def open_documents(name: str) -> Iterable[Document]:
    """Open a corpus folder, a file of documents (BEIR's corpus.jsonl) or of questions, or a data set of the hub.

    Raises:
        ConfigError: if there is no such thing.
    """
    folder = Path(name).expanduser()
    return Corpus(folder) if (folder / corpora.MANIFEST).is_file() else open_source(name)


def documents_of(corpus: Iterable[Document]) -> Sequence[Document]:
    """Read a source into memory; a corpus folder stays on disk."""
    return corpus if isinstance(corpus, Corpus) else list(corpus)


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
        return BM25Retriever(corpus)
    folder = Path(name).expanduser()
    if (folder / bm25.MANIFEST).is_file():
        return BM25Retriever.load(folder, corpus)
    if (folder / manifest.MANIFEST).is_file():
        return _open_dense(folder, corpus, device)
    raise ConfigError(
        f"{folder} holds no index ({manifest.MANIFEST} or {bm25.MANIFEST})"
        + (", only a corpus; give that as the corpus" if (folder / corpora.MANIFEST).is_file() else "")
        + '; name a folder with one, or "bm25"'
    )


def _open_dense(folder: Path, corpus: Sequence[Document], device: str) -> Retriever:
    read = manifest.Manifest.read(folder)
    spec = read.origin.encoder
    encoder = make_encoder(
        spec.name, device=device, query_prefix=spec.query_prefix, document_prefix=spec.document_prefix
    )
    return DenseRetriever(corpus, folder, encoder, device=device if read.index in EXACT else "cpu")
