"""The shop's search engine: BM25 exactly as WebShop's Lucene index ranks, tie for tie.

Lucene's scores are not those of the textbook (Robertson and Zaragoza 2009), and WebShop's observations are what they
rank first, so that these details are kept:

- The length of a document is stored in one byte, with four significant bits above 40 (`SmallFloat.intToByte4`).
- The score of a term is `w - w / (1 + tf * c)` with `c = 1 / (k1 * (1 - b + b * length / average))`, in single
  precision; the sum over terms is in double precision and then rounded to single. k1 = 0.9, b = 0.4, Anserini's.
- A term that occurs twice in a query counts twice.
- Equal scores are ordered by the id of the document.

The arrays of an index can be mapped from a file, so that many processes share one copy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from agent_gym.envs.webshop.words import terms

K1, B = 0.9, 0.4
_QUERY_CHARACTERS = 16_384  # nobody searches for more on purpose; the rest is not looked at

Arrays = Mapping[str, np.ndarray]
"""`document` and `frequency` (both of one entry per posting), `start` (terms + 1), `length` and `rank` (documents)."""


class Index:
    """Finds documents by their words.

    Args:
        vocabulary: term to its number.
        arrays: postings of term t are `start[t]` to `start[t + 1]`: `document` int32 in ascending order and `frequency`
            uint16. `length` int32 counts the terms of each document, `rank` int32 is the position of its id among all.
    """

    def __init__(self, vocabulary: Mapping[str, int], arrays: Arrays) -> None:
        """Work out what Lucene computes from the lengths."""
        self._vocabulary = vocabulary
        self._start, self._document, self._frequency = arrays["start"], arrays["document"], arrays["frequency"]
        self._rank = arrays["rank"]
        length = np.asarray(arrays["length"])
        self._documents = int(np.count_nonzero(length))
        average = np.float32(max(1, length.sum()) / max(1, self._documents))
        one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
        self._inverse = one / (k1 * ((one - b) + b * stored_length(length).astype(np.float32) / average))

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self._rank)

    def search(self, query: str, k: int) -> list[int]:
        """Return the positions of the k best documents, the best first; none that shares no term with the query."""
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        if len(found) > k:
            # Whoever scores less than the k-th best is out before anything is sorted.
            found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
        order = np.lexsort((self._rank[found], -scores[found]))
        return found[order][:k].tolist()

    def scores(self, query: str) -> np.ndarray:
        """Return the score of every document, float32 of shape (documents,)."""
        total = np.zeros(len(self), np.float64)
        for term, times in Counter(terms(query[:_QUERY_CHARACTERS])).items():
            number = self._vocabulary.get(term)
            if number is None:
                continue
            start, stop = int(self._start[number]), int(self._start[number + 1])
            document, frequency = self._document[start:stop], self._frequency[start:stop].astype(np.float32)
            rarity = math.log(1 + (self._documents - (stop - start) + 0.5) / (stop - start + 0.5))
            weight = np.float32(times) * np.float32(rarity)
            total[document] += weight - weight / (np.float32(1) + frequency * self._inverse[document])
        return total.astype(np.float32)


def stored_length(length: np.ndarray) -> np.ndarray:
    """Return lengths as Lucene stores them in a byte: exact up to 40, then with four binary digits."""
    above = np.maximum(length - 24, 0)
    dropped = np.maximum(np.frexp(above.astype(np.float64))[1] - 4, 0)
    return np.where(length < 24, length, ((above >> dropped) << dropped) + 24)


def ranks(ids: Sequence[str]) -> np.ndarray:
    """Return the position of each id in the order of all, int32."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    rank = np.empty(len(ids), np.int32)
    rank[order] = np.arange(len(ids), dtype=np.int32)
    return rank
