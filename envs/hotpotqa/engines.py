"""The search engine of an episode, made when it is first asked for and shared by all environments of the process."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.errors import ConfigError, require
from agent_gym.retrieval import Document, Retriever
from agent_gym.retrieval.corpus import MANIFEST, Corpus
from agent_gym.retrieval.shared import Shared
from agent_gym.retrieval.sources import open_source


def _bm25(documents: Sequence[Document]) -> Retriever:
    from agent_gym.retrieval.lexical import BM25Retriever  # late: it takes a second to import

    return BM25Retriever(documents)


RETRIEVERS: dict[str, Callable[[Sequence[Document]], Retriever]] = {"bm25": _bm25}
"""Name to what makes the engine of a corpus."""


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
        """Take a new lock."""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Retriever], owner: Any = None) -> Retriever:
        """Return the engine of a key, after making it if need be, once even if several threads ask.

        Args:
            key: what tells this engine from others.
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


def check_retriever(retriever: Any) -> None:
    """Refuse what can neither search nor be made.

    Raises:
        ConfigError: with the known names.
    """
    if isinstance(retriever, str) and retriever in RETRIEVERS:
        if find_spec("bm25s") is None:
            require("bm25s", "retrieval")  # names the extra now, and not when the first policy searches
        return
    if isinstance(retriever, str) or not isinstance(retriever, Retriever):
        raise ConfigError(
            f"retriever is {retriever!r:.80}; allowed: {', '.join(map(repr, RETRIEVERS))}, or an object with "
            "search(queries, k), such as those of agent_gym.retrieval"
        )


@functools.lru_cache(maxsize=8)
def open_corpus(name: str) -> Iterable[Document]:
    """Open a corpus folder, a file of documents (BEIR's corpus.jsonl) or of questions, or a data set of the hub.

    Raises:
        ConfigError: if there is no such thing.
    """
    folder = Path(name).expanduser()
    return Corpus(folder) if (folder / MANIFEST).is_file() else open_source(name)


def documents_of(corpus: Iterable[Document]) -> Sequence[Document]:
    """Read a source into memory; a corpus folder stays on disk."""
    return corpus if isinstance(corpus, Corpus) else list(corpus)
