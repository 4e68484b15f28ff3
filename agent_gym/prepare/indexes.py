"""The indexes of a prepared corpus, as pieces: one of words, or one of vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.prepare.pieces import CORPUS, CorpusPiece
from agent_gym.prepare.recipe import Forecast, Piece
from agent_gym.search import bm25, build
from agent_gym.search.build import build_index
from agent_gym.search.corpus import Corpus
from agent_gym.search.encoder import make_encoder
from agent_gym.search.index import KINDS, plan

BM25 = "bm25"
DENSE_KINDS = ("auto", *KINDS)

_BM25_BYTES = 400  # a document, measured on 600 paragraphs of HotpotQA
_BM25_BUILDING = 2_000  # of memory; see BM25Retriever

# Numbers per vector, from the models' cards; a local model's own file tells.
_DIMENSIONS = {
    "BAAI/bge-large-en-v1.5": 1024,
    "BAAI/bge-base-en-v1.5": 768,
    "BAAI/bge-small-en-v1.5": 384,
    "intfloat/e5-large-v2": 1024,
    "intfloat/e5-base-v2": 768,
    "intfloat/e5-small-v2": 384,
}


@dataclass(frozen=True)
class BM25Piece(Piece):
    """An index of words."""

    corpus: CorpusPiece

    path = BM25
    argument = ("retriever", BM25)

    @property
    def config(self) -> Mapping[str, Any]:
        """Which index it is."""
        return {"index": BM25}

    def done(self, folder: Path) -> bool:
        """Whether it was saved."""
        return (folder / self.path / bm25.MANIFEST).is_file()

    def make(self, folder: Path, *, progress: bool) -> None:
        """Build and save it."""
        bm25.BM25Retriever(Corpus(folder / CORPUS)).save(folder / self.path)

    def forecast(self) -> list[Forecast]:
        """Scale what was measured."""
        count, _ = self.corpus.count()
        note = f"about; building takes {count * _BM25_BUILDING:,} bytes of memory"
        return [Forecast("write", self.path, count * _BM25_BYTES, note)]


@dataclass(frozen=True)
class DensePiece(Piece):
    """An index of vectors; with the folder of its encoder's name, since another kind is built from the same vectors."""

    corpus: CorpusPiece
    kind: str
    encoder: str
    device: str

    @property
    def path(self) -> str:
        """A name that no other piece has."""
        return f"dense-{Path(self.encoder).expanduser().resolve().name}"

    @property
    def argument(self) -> tuple[str, str]:
        """The folder of the index."""
        return "retriever", self.path

    @property
    def config(self) -> Mapping[str, Any]:
        """Which index, made by which encoder."""
        return {"index": self.kind, "encoder": self.encoder}

    def done(self, folder: Path) -> bool:
        """Whether an index of this kind is there."""
        if not (folder / self.path / build.MANIFEST).is_file():
            return False
        return self.kind in ("auto", build.Manifest.read(folder / self.path).index)

    def make(self, folder: Path, *, progress: bool) -> None:
        """Encode, or go on encoding, and build the index."""
        # The index names its encoder, and is opened from other working directories.
        local = Path(self.encoder).expanduser()
        encoder = make_encoder(str(local.resolve()) if local.is_dir() else self.encoder, device=self.device)
        corpus = Corpus(folder / CORPUS)
        build_index(corpus, encoder, folder / self.path, kind=self.kind, device=self.device, progress=progress)

    def forecast(self) -> list[Forecast]:
        """Compute what the index takes, if the encoder's dimension is known without loading it."""
        count, _ = self.corpus.count()
        dimension = _dimension(self.encoder)
        if dimension is None:
            note = f"{count:,} vectors; of how many numbers each is known when {self.encoder} is loaded"
            return [Forecast("write", self.path, None, note)]
        planned = plan(count, dimension, self.kind)
        note = f"{planned.kind}, {count:,} vectors of {dimension}; building takes {planned.building:,} bytes of memory"
        return [
            Forecast("write", f"{self.path}/{planned.kind}.faiss", planned.index, note),
            Forecast("write", f"{self.path}/vectors", planned.vectors, "may be deleted afterwards"),
        ]


def _dimension(encoder: str) -> int | None:
    config = Path(encoder).expanduser() / "config.json"
    if config.is_file():
        return json.loads(config.read_text(encoding="utf-8")).get("hidden_size")
    return _DIMENSIONS.get(encoder)
