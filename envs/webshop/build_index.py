"""Builds a search index in one pass over the documents, in memory that does not grow with them.

The documents' terms are collected in blocks. A full block is sorted by term and written to a temporary file; at the end
the blocks are put behind each other, term by term. So the memory needed is that of a block and of the vocabulary, and a
million products are indexed as a thousand are.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from agent_gym.envs.webshop.index import length_factors, ranks, term_weights
from agent_gym.envs.webshop.words import piece_terms

_BLOCK = 1 << 23  # postings; 80 MB
_MOST = 0xFFFF  # what a frequency can be

Make = Callable[[str, int, np.dtype], np.ndarray]
"""Makes an array that the index will consist of: name, length, type."""


class _Block(NamedTuple):
    """Postings sorted by term; all of shape (postings,), memory-mapped."""

    term: np.ndarray
    document: np.ndarray
    frequency: np.ndarray


def in_memory(name: str, size: int, dtype: np.dtype) -> np.ndarray:
    """Make an array in memory."""
    return np.empty(size, dtype)


class IndexBuilder:
    """Collects documents, and then makes the arrays of an `Index` of them.

    Args:
        block: postings to hold in memory.
    """

    def __init__(self, block: int = _BLOCK) -> None:
        self.vocabulary: dict[str, int] = {}
        self._block = block
        self._pieces: dict[str, tuple[int, ...]] = {}
        self._term, self._document, self._frequency = array("i"), array("i"), array("H")
        self._length = array("i")
        self._ids: list[str] = []
        self._blocks: list[_Block] = []

    def add(self, document_id: str, text: str) -> None:
        """Take one more document; `text` is lower-case."""
        pieces = self._pieces
        found: list[int] = []
        for piece in text.split():
            numbers = pieces.get(piece)
            found += self._numbers(piece) if numbers is None else numbers
        counts = Counter(found)
        self._term.extend(counts)
        self._frequency.extend([min(count, _MOST) for count in counts.values()])
        self._document.extend([len(self._ids)] * len(counts))
        self._length.append(len(found))
        self._ids.append(document_id)
        if len(self._term) >= self._block:
            self._close_block()

    def finish(self, make: Make = in_memory) -> dict[str, np.ndarray]:
        """Make the arrays; the builder is used up."""
        if self._blocks:
            self._close_block()
        else:
            self._blocks.append(_Block(*self._sorted()))
        counts = np.zeros(len(self.vocabulary), np.int64)
        for block in self._blocks:
            counts += np.bincount(block.term, minlength=len(counts))
        length = np.frombuffer(self._length, np.int32)
        factors = length_factors(length)
        arrays = {"start": make("start", len(counts) + 1, np.dtype(np.int64))}
        arrays["start"][0] = 0
        np.cumsum(counts, out=arrays["start"][1:])
        total = int(arrays["start"][-1])
        arrays["document"] = make("document", total, np.dtype(np.int32))
        arrays["divisor"] = make("divisor", total, np.dtype(np.float32))
        free = np.array(arrays["start"][:-1])
        for block in self._blocks:
            here = np.bincount(block.term, minlength=len(free))
            before = np.cumsum(here) - here
            place = np.arange(len(block.term)) + (free - before)[block.term]
            arrays["document"][place] = block.document
            arrays["divisor"][place] = np.float32(1) + block.frequency.astype(np.float32) * factors[block.document]
            free += here
        weights = term_weights(int(np.count_nonzero(length)), counts)
        for name, values in (("weight", weights), ("rank", ranks(self._ids))):
            arrays[name] = make(name, len(values), values.dtype)
            arrays[name][:] = values
        return arrays

    def _numbers(self, piece: str) -> tuple[int, ...]:
        """Look up the terms of a piece that is not remembered, and remember it."""
        if len(self._pieces) >= 1 << 20:
            self._pieces.clear()  # what is frequent is soon there again
        vocabulary = self.vocabulary
        numbers = tuple([vocabulary.setdefault(term, len(vocabulary)) for term in piece_terms(piece)])
        self._pieces[piece] = numbers
        return numbers

    def _sorted(self) -> list[np.ndarray]:
        term = np.array(self._term, np.int32)
        order = np.argsort(term, kind="stable")  # documents stay in their order
        columns = (term, np.array(self._document, np.int32), np.array(self._frequency, np.uint16))
        return [column[order] for column in columns]

    def _close_block(self) -> None:
        written = []
        for column in self._sorted():
            file = tempfile.TemporaryFile()  # it lives as long as its array
            file.write(column.tobytes())
            file.flush()
            written.append(np.memmap(file, column.dtype, "r", shape=column.shape) if len(column) else column)
        self._blocks.append(_Block(*written))
        self._term, self._document, self._frequency = array("i"), array("i"), array("H")
