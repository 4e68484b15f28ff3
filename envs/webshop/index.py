"""The shop's search engine: BM25 exactly as WebShop's Lucene index ranks, tie for tie.

Lucene's scores are not the ones of the textbook (Robertson and Zaragoza 2009):

- The length of a document is stored in one byte, with four significant bits above 40 (`SmallFloat.intToByte4`).
- The score of a term is `w - w / (1 + tf * c)` with `c = 1 / (k1 * (1 - b + b * length / average))`, in single
  precision; the sum over terms is in double precision and then rounded to single. k1 = 0.9, b = 0.4, Anserini's.
- A term that occurs twice in a query counts twice. Equal scores are ordered by the id of the document.

All that does not depend on the query is computed when an index is built: a posting holds the denominator `1 + tf * c`.
A search adds up the postings of its rare terms in an array over all documents. Terms that many documents have are worth
little: if they cannot lift others into the best (the idea of MaxScore, Turtle and Flood 1995), they are looked up for
the documents that are left, and only these are sorted. The arrays can be mapped from a file that processes share.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agent_gym.envs.webshop.words import terms

K1, B = 0.9, 0.4
_COMMON = 1 / 8  # of the documents; terms that more of them have are common ones
_CLOSE = 1 - 1e-6  # a score this close below a bound may round to the same score
_QUERY_CHARACTERS = 16_384  # the rest of a longer query is not looked at
_BLOCK = 1 << 23  # postings; 80 MB
_MOST = 0xFFFF  # the range of a frequency

Make = Callable[[str, int, np.dtype], np.ndarray]
"""Makes an array that the index will consist of: name, length, type."""


class _Postings(NamedTuple):
    weight: np.float32
    document: np.ndarray
    divisor: np.ndarray


class Index:
    """Finds documents by their words.

    Args:
        number_of: returns the number of a term, None if no document has it.
        arrays: postings of term t are `start[t]` to `start[t + 1]`, (terms + 1): `document` int32 in ascending order
            and `divisor` float32, the denominator above. `weight` float32 (terms) is the weight of a term, `rank` int32
            (documents) the position of a document's id among all.
    """

    def __init__(self, number_of: Callable[[str], int | None], arrays: Mapping[str, np.ndarray]) -> None:
        self._number_of = number_of
        self._start, self._document, self._divisor = arrays["start"], arrays["document"], arrays["divisor"]
        self._weight, self._rank = arrays["weight"], arrays["rank"]

    def __len__(self) -> int:
        return len(self._rank)

    def search(self, query: str, k: int) -> list[int]:
        """Return the positions of the k best documents, the best first; none that shares no term with the query."""
        postings = self._postings(query)
        rare = [one for one in postings if len(one.document) <= _COMMON * len(self)]
        common = postings[len(rare) :]
        total = np.zeros(len(self), np.float64)
        _add(total, rare)
        bound = _CLOSE * _least(total, rare, k) - sum(float(one.weight) for one in common)
        if bound <= 0:  # the common terms decide
            _add(total, common)
            bound, common = _CLOSE * _least(total, postings, k), []
        found = np.flatnonzero(total >= bound if bound > 0 else total)
        scores = total[found]
        for one in common:
            place = np.minimum(np.searchsorted(one.document, found), len(one.document) - 1)
            there = one.document[place] == found
            scores[there] += one.weight - one.weight / one.divisor[place[there]]
        scores = scores.astype(np.float32)
        if len(found) > k:
            best = scores >= np.partition(scores, -k)[-k]
            found, scores = found[best], scores[best]
        order = np.lexsort((self._rank[found], -scores))
        return found[order][:k].tolist()

    def _postings(self, query: str) -> list[_Postings]:
        found = []
        for term, times in Counter(terms(query[:_QUERY_CHARACTERS])).items():
            number = self._number_of(term)
            if number is not None:
                part = slice(int(self._start[number]), int(self._start[number + 1]))
                weight = np.float32(times) * self._weight[number]
                found.append(_Postings(weight, self._document[part], self._divisor[part]))
        return sorted(found, key=lambda one: len(one.document))


def _add(total: np.ndarray, postings: Sequence[_Postings]) -> None:
    for weight, document, divisor in postings:
        # No document occurs twice in one list, but this is three times as fast as `total[document] += ...`.
        np.add.at(total, document, (weight - weight / divisor).astype(np.float64))


def _least(total: np.ndarray, postings: Sequence[_Postings], k: int) -> float:
    """Return a score that at least k documents have: the k-th best among documents with the rarest such term."""
    for one in postings:
        if len(one.document) >= k:
            return float(np.partition(total[one.document], -k)[-k])
    return 0.0


def stored_length(length: np.ndarray) -> np.ndarray:
    """Return lengths as Lucene stores them in a byte: exact up to 40, then with four binary digits."""
    above = np.maximum(length - 24, 0)
    dropped = np.maximum(np.frexp(above.astype(np.float64))[1] - 4, 0)
    return np.where(length < 24, length, ((above >> dropped) << dropped) + 24)


class IndexBuilder:
    """Collects documents, and then makes the arrays of an `Index`, in memory that does not grow with the documents.

    Each `block` of postings is sorted by term and written to temporary files; `finish` concatenates them.
    """

    def __init__(self, block: int = _BLOCK) -> None:
        self.vocabulary: dict[str, int] = {}
        self._block = block
        self._term, self._document, self._frequency = array("i"), array("i"), array("H")
        self._length = array("i")
        self._ids: list[str] = []
        self._blocks: list[list[np.ndarray]] = []  # each sorted by term: terms, documents and frequencies

    def add(self, document_id: str, text: str) -> None:
        found = [self.vocabulary.setdefault(term, len(self.vocabulary)) for term in terms(text)]
        counts = Counter(found)
        self._term.extend(counts)
        self._frequency.extend([min(count, _MOST) for count in counts.values()])
        self._document.extend([len(self._ids)] * len(counts))
        self._length.append(len(found))
        self._ids.append(document_id)
        if len(self._term) >= self._block:
            self._blocks.append([_in_file(column) for column in self._sorted()])
            self._term, self._document, self._frequency = array("i"), array("i"), array("H")

    def finish(self, make: Make = lambda name, size, dtype: np.empty(size, dtype)) -> dict[str, np.ndarray]:
        """Make the arrays; the builder is used up."""
        blocks = [*self._blocks, self._sorted()]
        counts = np.zeros(len(self.vocabulary), np.int64)
        for term, _, _ in blocks:
            counts += np.bincount(term, minlength=len(counts))
        arrays = {"start": make("start", len(counts) + 1, np.dtype(np.int64))}
        arrays["start"][0] = 0
        np.cumsum(counts, out=arrays["start"][1:])
        total = int(arrays["start"][-1])
        arrays["document"] = make("document", total, np.dtype(np.int32))
        arrays["divisor"] = make("divisor", total, np.dtype(np.float32))
        length, one, k1, b = np.frombuffer(self._length, np.int32), *map(np.float32, (1, K1, B))
        filled = int(np.count_nonzero(length))  # documents without a term do not count
        average = np.float32(max(1, length.sum()) / max(1, filled))
        factors = one / (k1 * ((one - b) + b * stored_length(length).astype(np.float32) / average))
        free = np.array(arrays["start"][:-1])
        for term, document, frequency in blocks:
            here = np.bincount(term, minlength=len(free))
            place = np.arange(len(term)) + (free - (np.cumsum(here) - here))[term]
            arrays["document"][place] = document
            arrays["divisor"][place] = one + frequency.astype(np.float32) * factors[document]
            free += here
        rank = np.empty(len(self._ids), np.int32)
        rank[sorted(range(len(rank)), key=self._ids.__getitem__)] = np.arange(len(rank), dtype=np.int32)
        weight = np.log(1 + (filled - counts + 0.5) / (counts + 0.5)).astype(np.float32)
        for name, values in (("weight", weight), ("rank", rank)):
            arrays[name] = make(name, len(values), values.dtype)
            arrays[name][:] = values
        return arrays

    def _sorted(self) -> list[np.ndarray]:
        term = np.array(self._term, np.int32)
        order = np.argsort(term, kind="stable")  # documents stay in their order
        columns = (term, np.array(self._document, np.int32), np.array(self._frequency, np.uint16))
        return [column[order] for column in columns]


def _in_file(column: np.ndarray) -> np.ndarray:
    file = tempfile.TemporaryFile()  # it lives as long as its array
    file.write(column.tobytes())
    file.flush()
    return np.memmap(file, column.dtype, "r", shape=column.shape)
