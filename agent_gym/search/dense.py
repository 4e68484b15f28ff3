"""Dense search: the passages whose vectors have the largest inner product with the query's.

On a GPU all vectors are in its memory as float16 and scanned for every query, which for 5 million takes milliseconds.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import ConfigError, EnvFailure, require
from agent_gym.search.base import Document, ForkSafe, Hit, checked
from agent_gym.search.build import Manifest, Origin
from agent_gym.search.encoder import Encoder, Vectors, checked_vectors, make_encoder
from agent_gym.search.index import EXACT, KINDS, Searcher, read_index

_DIGITS = 6  # scores that agree to so many digits are equal: the batch of a query moves the last bits of its scores
_EXTRA, _MOST = 8, 1024
_BLOCK = 65_536  # vectors that are copied to a GPU at a time
_SCRATCH = 512 * 2**20  # FAISS would take 1.5 GB, which the trainer next to it misses


class DenseRetriever(ForkSafe):
    """Searches an index that `build_index` made.

    A query without a letter or a digit finds nothing. Scores are cosines; equal ones are ordered by the document's
    place in the corpus. Approximate kinds of index do not find everything, but always the same.

    Corpus and encoder are the ones that the index in `folder` was built with; None loads the encoder by the name in the
    manifest, on the CPU. The device to search on is "cpu", or "cuda" for an exact scan on a GPU (`to_gpu`). `ef` is how
    many vectors a search in an HNSW graph keeps in view, and `nprobe` how many lists one in an IVF index reads; None is
    the default. `verify` compares the checksum of the whole index once, about a second per gigabyte. `ConfigError` if
    folder, corpus and encoder do not belong together, or a file is missing or damaged.
    """

    def __init__(
        self,
        corpus: Sequence[Document],
        folder: str | Path,
        encoder: Encoder | None = None,
        *,
        device: str = "cpu",
        ef: int | None = None,
        nprobe: int | None = None,
        verify: bool = True,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.manifest = Manifest.read(self.folder)
        self.corpus, self.encoder = corpus, encoder or load_encoder(self.manifest)
        self.manifest.origin.check(Origin.of(corpus, self.encoder), self.folder)
        self._device, self._effort = device, {"ef": ef, "nprobe": nprobe}
        self._searcher = self._open(verify=verify)
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_searcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._searcher = self._open(verify=False)  # the process it comes from has verified it

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        texts = checked(queries, k)
        searchable = [n for n, text in enumerate(texts) if any(map(str.isalnum, text))]
        found: list[list[Hit]] = [[] for _ in texts]
        if not searchable:
            return found
        try:
            with self._lock:  # tokenizers keep state, and two forward passes at once are slower than one after another
                vectors = self.encoder.encode_queries([texts[n] for n in searchable])
            scores, places = self._nearest(checked_vectors(vectors, len(searchable), self.encoder.spec), k)
        except RuntimeError as error:  # of PyTorch and FAISS: out of memory, a lost GPU
            raise EnvFailure(f"the search in {self.folder} broke: {error}") from error
        for n, row, where in zip(searchable, scores.tolist(), places.tolist(), strict=True):
            found[n] = [Hit(self.corpus[p], score) for score, p in zip(row, where, strict=True) if p >= 0]
        return found

    def _nearest(self, vectors: Vectors, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scores and positions, best first; equal scores by position.

        An index orders equal scores by accident: where ties with the k-th go beyond its results, more are requested.
        """
        count = self.manifest.origin.count
        k = min(k, count)
        wanted, tied = min(k + _EXTRA, count), True
        while tied:
            scores, places = self._searcher.search(vectors, wanted)
            scores = np.where(places < 0, -np.inf, scores).round(_DIGITS)  # nothing found has the least float there is
            ties = (scores[:, k - 1] == scores[:, -1]) & (places[:, -1] >= 0)
            tied = wanted < min(count, _MOST) and bool(ties.any())
            wanted = min(4 * wanted, count)
        best = np.lexsort((places, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(places, best, 1)

    def _open(self, *, verify: bool) -> Searcher:
        kind, origin = self.manifest.index, self.manifest.origin
        if kind not in KINDS:
            raise ConfigError(f"{self.folder} holds an index of kind {kind!r}; this version knows {', '.join(KINDS)}")
        path = self.manifest.checked_file(self.folder, verify=verify)
        index = read_index(path)
        if (index.ntotal, index.d) != (origin.count, origin.encoder.dimension):
            raise ConfigError(
                f"{path} holds {index.ntotal} vectors of {index.d} numbers, and its manifest has {origin.count} of "
                f"{origin.encoder.dimension}; build the index again"
            )
        if self._device != "cpu":
            index = to_gpu(index, kind, self._device)
        return Searcher(index, kind, **self._effort)


def load_encoder(manifest: Manifest, device: str = "cpu") -> Encoder:
    """Load the encoder that an index was built with."""
    spec = manifest.origin.encoder
    return make_encoder(spec.name, device=device, query_prefix=spec.query_prefix, document_prefix=spec.document_prefix)


def to_gpu(index: Any, kind: str, device: str) -> Any:
    """Copy an index to a GPU, block by block, so that one that is mapped into memory is never in memory as a whole."""
    if kind not in EXACT:
        raise ConfigError(
            f"an index of kind {kind!r} is searched on the CPU; for device={device!r} build 'flat' or 'sqfp16'"
        )
    faiss = require("faiss", "search")
    named = re.fullmatch(r"cuda(?::(\d+))?", device)
    if not named:
        raise ConfigError(f"device is {device!r}; it must be 'cpu', 'cuda', or one GPU such as 'cuda:1'")
    number = int(named[1] or 0)
    n_gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if n_gpus <= number:
        raise ConfigError(
            f"device is {device!r}, and FAISS {faiss.__version__} finds {n_gpus} GPUs. If there is one, pip uninstall "
            "faiss-cpu and pip install faiss-gpu (they install the same files, so never both); else use device='cpu'"
        )
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(_SCRATCH)
    config = faiss.GpuIndexFlatConfig()
    config.device, config.useFloat16 = number, True
    try:
        copy = faiss.GpuIndexFlatIP(resources, index.d, config)
        for start in range(0, index.ntotal, _BLOCK):
            copy.add(index.reconstruct_n(start, min(_BLOCK, index.ntotal - start)))
    except RuntimeError as error:
        need = index.ntotal * index.d * 2 / 2**30
        raise ConfigError(
            f"{index.ntotal:,} vectors need {need:.1f} GiB on {device!r}, which has no room "
            f"({str(error).splitlines()[-1]}); free memory there, use another GPU, or device='cpu'"
        ) from error
    return copy
