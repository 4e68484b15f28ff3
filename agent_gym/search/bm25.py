"""BM25: documents that share rare words with the query.

The formula is from Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009). The library
is bm25s (Lù, arXiv:2407.03618). Its selection of the best is not used: it answers a query without known words with
arbitrary documents of score 0, raises where k is above the number of documents, and leaves equal scores to chance.

Words are taken as Lucene's analyser for English takes them: lower case, without its 33 stop words, cut to their stems
by Snowball's English stemmer. Words of one character count: "Apollo 8" differs from other titles by nothing else. Text
is brought to Unicode's NFKC form first, in which an "é" is one letter however it was typed.
"""

from __future__ import annotations

import logging
import re
import threading
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from agent_gym.errors import ConfigError, require
from agent_gym.search import files
from agent_gym.search.base import Document, ForkSafe, Hit, checked
from agent_gym.search.corpus import checksum

MANIFEST = "bm25.json"
_FORMAT = 1
_WORD = re.compile(r"\w+")

# Compiling takes seconds once per process and makes a query 30 times faster: 35 ms become 1 for a million documents,
# but for fewer than this a query costs under a millisecond anyway.
_COMPILE_FROM = 20_000


class BM25Retriever(ForkSafe):
    """Searches titles and texts by their words. A word that occurs twice in a query counts once.

    Building takes about 150 CPU seconds and 2 GB per million short paragraphs; 0.8 GB remain, or 0.3 GB that are mapped
    where it is loaded. `k1` is how much a word that occurs again adds (0 is nothing), and `b`, 0 to 1, how much a long
    document is held against it. `ConfigError` for a corpus without a word in it, other values, or missing packages.
    """

    def __init__(self, corpus: Sequence[Document], *, k1: float = 1.5, b: float = 0.75) -> None:
        if not k1 >= 0 or not 0 <= b <= 1:
            raise ConfigError(f"k1 is {k1} and b is {b}; k1 must be at least 0, and b between 0 and 1")
        super().__init__()
        index = _library().BM25(k1=k1, b=b, backend=_backend(corpus))
        terms = _Terms(corpus, self.terms)
        if not terms.vocab:
            raise ConfigError(f"none of the {len(corpus)} documents holds a word that can be searched for")
        index.index(terms, create_empty_token=False, show_progress=False)
        self._set(corpus, index)

    @classmethod
    def load(cls, folder: str | Path, corpus: Sequence[Document], *, verify: bool = True) -> Self:
        """Open an index that `save` wrote, mapped into memory; processes share its pages.

        `ConfigError` if it is not there, damaged, of another corpus, or by another version of the libraries.
        """
        folder = Path(folder).expanduser()
        bm25s = _library()
        if not (folder / MANIFEST).is_file():
            raise ConfigError(f"{folder} holds no BM25 index ({MANIFEST}); build one and save it there")
        files.open_folder(folder, MANIFEST, _identity(corpus), verify=verify)
        self = cls.__new__(cls)
        ForkSafe.__init__(self)
        self._set(corpus, bm25s.BM25.load(folder, mmap=True, backend=_backend(corpus), show_progress=False))
        return self

    def _set(self, corpus: Sequence[Document], index: Any) -> None:
        self._corpus, self._index = corpus, index
        index.get_scores_from_ids([0])  # compiled now and not in the first search

    def renew(self) -> None:
        self._stop_words = frozenset(require("bm25s.stopwords", "search").STOPWORDS_EN)
        # A stemmer is not safe to share between threads.
        self._stemmer = require("Stemmer", "search").Stemmer("english")
        self._lock = threading.Lock()

    def save(self, folder: str | Path) -> None:
        """Write the index; it appears under its name when it is complete."""
        with files.new_folder(folder, MANIFEST) as (partial, about):
            self._index.save(partial, show_progress=False)
            about |= _identity(self._corpus) | {"k1": self._index.k1, "b": self._index.b}

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        vocabulary = self._index.vocab_dict
        found: list[list[Hit]] = []
        for query in checked(queries, k):
            # Once each: ten thousand times the same word would go through its documents as often.
            known = list(dict.fromkeys(vocabulary[term] for term in self.terms(query) if term in vocabulary))
            scores = self._index.get_scores_from_ids(known) if known else np.zeros(0)
            found.append([Hit(self._corpus[i], float(scores[i])) for i in best(scores, k)])
        return found

    def terms(self, text: str) -> list[str]:
        """Return the search terms of a text in their order; none for a text without words."""
        words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
        with self._lock:
            return self._stemmer.stemWords([word for word in words if word not in self._stop_words])


def best(scores: np.ndarray, k: int) -> list[int]:
    """Return the positions of the k highest of (documents,) scores above 0, highest first, equal ones by position."""
    # Sorting a million numbers for five is slow. The k highest of the maxima of groups are k of the numbers, so that
    # documents below the lowest of these are out, and few are left to sort.
    groups = len(scores) // 64
    floor = 0.0
    if groups > k:
        maxima = scores[: 64 * groups].reshape(64, groups).max(axis=0)
        floor = np.partition(maxima, -k)[-k]
    found = np.flatnonzero(scores >= floor if floor > 0 else scores > 0)
    return found[np.lexsort((found, -scores[found]))][:k].tolist()


class _Terms:
    """The terms of a corpus as numbers, in the form in which bm25s takes them, at 4 bytes each instead of 40."""

    def __init__(self, corpus: Sequence[Document], terms_of: Callable[[str], list[str]]) -> None:
        self.vocab: dict[str, int] = {}
        self._numbers, self._ends = array("i"), array("q", [0])
        for document in corpus:
            terms = terms_of(f"{document.title}\n{document.text}")
            self._numbers.extend(self.vocab.setdefault(term, len(self.vocab)) for term in terms)
            self._ends.append(len(self._numbers))
        self.ids = self

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self._numbers[start:end].tolist() for start, end in pairwise(self._ends))


def _library() -> Any:
    bm25s = require("bm25s", "search")
    # It logs every build at level DEBUG, past the level that the program set.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def _identity(corpus: Sequence[Document]) -> dict[str, Any]:
    return {
        "kind": "bm25",
        "format": _FORMAT,
        "bm25s": _library().__version__,
        "stemmer": require("Stemmer", "search").version(),
        "count": len(corpus),
        "corpus": checksum(corpus),
    }


def _backend(corpus: Sequence[Document]) -> str:
    return "numba" if len(corpus) >= _COMPILE_FROM and find_spec("numba") else "numpy"
