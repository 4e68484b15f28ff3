"""What an encoder is: texts in, unit vectors out, so that an inner product says how well a passage fits a query.

Only what every encoder shares is here; those that run a model are in encoder_models.py. What decides an encoder's
vectors is written down beside every index (`EncoderSpec`), and so is what it did to two fixed texts (`probe`): names
lie, since a folder can be moved or trained further, and vectors of two models can be compared by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import EnvFailure
from agent_gym.retrieval.base import Document

Vectors = NDArray[np.float32]

# Two texts that need the query prefix, the passage prefix, the separator of title and text, and more than one token.
_PROBE_QUERY = "Which river runs through the city where the author was born?"
_PROBE_DOCUMENT = Document("probe", "Lake Constance", "It is a lake on the Rhine at the foot of the Alps, 63 km long.")


@dataclass(frozen=True)
class EncoderSpec:
    """What decides the vectors of an encoder.

    Attributes:
        name: of the model on the hub, or its folder.
        dimension: numbers per vector.
        pooling: how the vectors of the tokens become one: "cls" (the first token's), "mean", and so on.
        query_prefix: what is put in front of a query.
        document_prefix: what is put in front of a passage.
        max_length: tokens that are read; the rest of a text is cut off.
    """

    name: str
    dimension: int
    pooling: str = "mean"
    query_prefix: str = ""
    document_prefix: str = ""
    max_length: int = 512


class Encoder(Protocol):
    """Turns texts into vectors of length 1. Need not be safe to call from several threads."""

    @property
    def spec(self) -> EncoderSpec:
        """What decides its vectors."""
        ...

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Encode queries; float32 of shape (queries, dimension)."""
        ...

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        """Encode passages; float32 of shape (documents, dimension)."""
        ...


def document_text(document: Document) -> str:
    """Return what is encoded of a passage, title and text, as BEIR's corpora are encoded everywhere."""
    return f"{document.title} {document.text}".strip()


def encodable(text: str) -> str:
    r"""Replace what is no text: a policy can write half a surrogate pair as `\ud83d` in JSON, and tokenizers raise."""
    return text.encode("utf-8", "replace").decode("utf-8")


def normalised(vectors: NDArray[Any]) -> Vectors:
    """Bring vectors to length 1 in float32; bfloat16, with its 8 bits, would leave them up to 0.4 % too long."""
    exact = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.maximum(lengths, np.finfo(np.float32).tiny)


def checked_vectors(vectors: Vectors, count: int, spec: EncoderSpec) -> Vectors:
    """Return vectors that have the promised shape and are numbers; a NaN would never be found again in an index.

    Raises:
        EnvFailure: if they are not.
    """
    if vectors.shape != (count, spec.dimension):
        raise EnvFailure(
            f"the encoder {spec.name!r} returned an array of shape {vectors.shape} for {count} texts; "
            f"expected ({count}, {spec.dimension})"
        )
    if not np.isfinite(vectors).all():
        raise EnvFailure(f"the encoder {spec.name!r} returned NaN or infinity; do its weights fit its precision?")
    return vectors


def probe(encoder: Encoder) -> list[float]:
    """Encode two fixed texts, a query and a passage: a fingerprint of the model, its prefixes and its pooling.

    Returns:
        The first numbers of both vectors, at most 32 of each, rounded to 5 digits.
    """
    both = np.concatenate([encoder.encode_queries([_PROBE_QUERY]), encoder.encode_documents([_PROBE_DOCUMENT])])
    return [round(float(number), 5) for number in checked_vectors(both, 2, encoder.spec)[:, :32].ravel()]


def probes_agree(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two probes are of the same encoder: cosines of at least 0.99, since precisions and devices round."""
    if len(one) != len(other):
        return False
    first, second = (normalised(np.reshape(np.asarray(each, np.float32), (2, -1))) for each in (one, other))
    return bool(((first * second).sum(1) >= 0.99).all())
