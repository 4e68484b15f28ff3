"""Builds an index with an encoder that needs no model: the process that test_search_index.py kills.

    python tests/slow_build.py FOLDER KIND COUNT KILL_AT

Unless KILL_AT is 0, the process kills itself at that call of `os.replace` or `os.fsync`, which is where files come into
being.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent_gym.search import Document
from agent_gym.search.encoder import EncoderSpec, Vectors, normalised

DIMENSION = 32


class HashEncoder:
    """Vectors out of hashes of words: texts that share words are similar, and nothing has to be loaded."""

    def __init__(self, *, name: str = "hash", salt: str = "", **spec: Any) -> None:
        self.spec = EncoderSpec(name, **{"dimension": DIMENSION, **spec})
        self._salt = salt
        self._words: dict[str, Vectors] = {}
        self.batches: list[int] = []

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self._encode([self.spec.query_prefix + query for query in queries])

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        return self._encode([f"{document.title} {document.text}" for document in documents])

    def _encode(self, texts: list[str]) -> Vectors:
        self.batches.append(len(texts))
        return normalised(np.stack([sum(self._word(word) for word in f". {text}".lower().split()) for text in texts]))

    def _word(self, word: str) -> Vectors:
        if word not in self._words:
            seed = int.from_bytes(hashlib.sha256((self._salt + word).encode("utf-8", "replace")).digest()[:8])
            self._words[word] = np.random.default_rng(seed).standard_normal(self.spec.dimension).astype(np.float32)
        return self._words[word]


def kill_at(call: int) -> None:
    """Kill this process at the given call of what makes files; before it happens, or after, by turns."""
    calls = 0

    def counting(function: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls < call:
                return function(*arguments)
            if call % 2:
                function(*arguments)
            return os.kill(os.getpid(), signal.SIGKILL)

        return counted

    os.replace, os.fsync = counting(os.replace), counting(os.fsync)


def main(folder: str, kind: str, count: str, call: str) -> None:
    from tiny_encoder import make_documents

    from agent_gym.search.build import build_index

    if int(call):
        kill_at(int(call))
    build_index(make_documents(int(count)), HashEncoder(), Path(folder), kind=kind, shard_size=16)


if __name__ == "__main__":
    main(*sys.argv[1:])
