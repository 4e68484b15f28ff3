"""Dense retrieval: the passages whose vectors have the largest inner product with the query's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.retrieval import corpus as corpora
from agent_gym.retrieval.base import Document, Hit
from agent_gym.retrieval.checks import checked
from agent_gym.retrieval.encoder import Encoder, Vectors, checked_vectors, probe
from agent_gym.retrieval.gpu import to_gpu
from agent_gym.retrieval.index import KINDS, Searcher, read_index
from agent_gym.retrieval.manifest import Manifest
from agent_gym.shared import Shared

# The batch that a query comes in moves the last bits of its scores, so what agrees to so many digits counts as equal.
_DIGITS = 6
_EXTRA, _MOST = 8, 1024


class DenseRetriever(Shared):
    """Searches an index that `build_index` made.

    A query without a letter or a digit finds nothing. Scores are cosines; equal ones are ordered by the document's
    place in the corpus. Approximate kinds of index do not find everything, but always the same.

    Args:
        corpus: the documents that the index was built from.
        folder: the index.
        encoder: the encoder it was built with; None to load it by the name in the manifest, on the CPU.
        device: where to search; "cpu", or "cuda" for an exact scan on a GPU (agent_gym/retrieval/gpu.py).
        ef: how many vectors a search in an HNSW graph keeps in view; None for the default.
        nprobe: how many lists a search in an IVF index reads; None for the default.
        mmap: whether to map the index into memory, so that processes share it.
        verify: whether to read the whole index once and compare its checksum, about a second per gigabyte; a server
            that has just done so can let its workers skip it.

    Raises:
        ConfigError: if the folder, the corpus or the encoder do not belong together, or a file is missing, cut off,
            damaged or of a newer format.
    """

    live = ("_lock", "_searcher")

    def __init__(
        self,
        corpus: Sequence[Document],
        folder: str | Path,
        encoder: Encoder | None = None,
        *,
        device: str = "cpu",
        ef: int | None = None,
        nprobe: int | None = None,
        mmap: bool = True,
        verify: bool = True,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.manifest = Manifest.read(self.folder)
        origin = self.manifest.origin
        origin.check_corpus(corpora.checksum(corpus), len(corpus), self.folder)
        self.corpus, self.encoder = corpus, encoder or _load_encoder(origin.encoder)
        origin.check_encoder(self.encoder.spec, probe(self.encoder), self.folder)
        self._device, self._mmap, self._effort = device, mmap, {"ef": ef, "nprobe": nprobe}
        self._searcher = self._open(verify=verify)
        super().__init__()

    def renew(self) -> None:
        """Make a lock of this process."""
        self._lock = threading.Lock()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._searcher = self._open(verify=False)  # the process it comes from has verified it
        Shared.__init__(self)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the best documents for each query."""
        texts = checked(queries, k)
        asked = [n for n, text in enumerate(texts) if any(map(str.isalnum, text))]
        found: list[list[Hit]] = [[] for _ in texts]
        if not asked:
            return found
        try:
            with self._lock:  # tokenizers keep state, and two forward passes at once are slower than one after another
                vectors = self.encoder.encode_queries([texts[n] for n in asked])
            scores, places = self._nearest(checked_vectors(vectors, len(asked), self.encoder.spec), k)
        except RuntimeError as error:  # of PyTorch and FAISS: out of memory, a lost GPU
            raise EnvFailure(f"the search in {self.folder} broke: {error}") from error
        for n, row, where in zip(asked, scores.tolist(), places.tolist(), strict=True):
            found[n] = [Hit(self.corpus[p], score) for score, p in zip(row, where, strict=True) if p >= 0]
        return found

    def _nearest(self, vectors: Vectors, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scores and positions, best first; equal scores by position.

        An index knows nothing of positions, so where the k-th score goes on beyond what it returned, it is asked for
        more: which of ten copies of a passage comes must not be an accident. Up to a bound, for a corpus of one text.
        """
        count = self.manifest.origin.count
        k = min(k, count)
        wanted = min(k + _EXTRA, count)
        while True:
            scores, places = self._searcher.search(vectors, wanted)
            scores = np.where(places < 0, -np.inf, scores).round(_DIGITS)  # nothing found has the least float there is
            tied = (scores[:, k - 1] == scores[:, -1]) & (places[:, -1] >= 0)
            if wanted == count or wanted >= _MOST or not tied.any():
                break
            wanted = min(4 * wanted, count)
        best = np.lexsort((places, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(places, best, 1)

    def _open(self, *, verify: bool) -> Searcher:
        kind, origin = self.manifest.index, self.manifest.origin
        if kind not in KINDS:
            raise ConfigError(f"{self.folder} holds an index of kind {kind!r}; this version knows {', '.join(KINDS)}")
        self.manifest.check_file(self.folder, verify=verify)
        index = read_index(self.folder / self.manifest.file_name, mmap=self._mmap)
        if (index.ntotal, index.d) != (origin.count, origin.encoder.dimension):
            raise ConfigError(
                f"{self.folder / self.manifest.file_name} holds {index.ntotal} vectors of {index.d} numbers, and its "
                f"manifest says {origin.count} of {origin.encoder.dimension}; build the index again"
            )
        if self._device != "cpu":
            index = to_gpu(index, kind, self._device)
        return Searcher(index, kind, **self._effort)


def _load_encoder(spec: Any) -> Encoder:
    from agent_gym.retrieval.encoder_models import make_encoder

    return make_encoder(spec.name, query_prefix=spec.query_prefix, document_prefix=spec.document_prefix)
