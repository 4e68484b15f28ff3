"""Several engines as one: words find names, vectors find meanings, and what both find is most likely right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent_gym.errors import ConfigError
from agent_gym.retrieval.base import Document, Hit, Retriever
from agent_gym.retrieval.checks import checked
from agent_gym.shared import Shared

# How far down each engine is asked. A document that both rank 40th beats one that a single engine ranks first only by
# a constant larger than the paper's, so that deeper ranks change little but their own order.
_DEPTH = 50


class HybridRetriever(Shared):
    """Fuses rankings by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009): 1 / (k_constant + rank), added up.

    Only ranks count, so that engines with scores of different kinds can be mixed without tuning.

    Documents are the same where their ids are. Engines do not say where in the corpus a document stands, so equal sums
    are ordered by the ranking of the first engine, then of the second, and so on.

    Args:
        retrievers: the engines.
        k_constant: the larger, the less the first ranks count against the later ones; 60 is the paper's.

    Raises:
        ConfigError: for no engines or a constant below 0.
    """

    def __init__(self, retrievers: Sequence[Retriever], k_constant: float = 60) -> None:
        if not retrievers:
            raise ConfigError("there are no retrievers to fuse; give at least one")
        if not 0 <= k_constant < math.inf:
            raise ConfigError(f"k_constant is {k_constant}; it must be at least 0, and is usually 60")
        self.retrievers = tuple(retrievers)
        self.k_constant = k_constant
        super().__init__()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find what the engines agree on; the scores are the sums."""
        queries = checked(queries, k)
        rankings = [retriever.search(queries, max(k, _DEPTH)) for retriever in self.retrievers]
        return [fuse(of_query, self.k_constant)[:k] for of_query in zip(*rankings, strict=True)]


def fuse(rankings: Sequence[Sequence[Hit]], k_constant: float = 60) -> list[Hit]:
    """Fuse the rankings of one query.

    Args:
        rankings: best first, one per engine; their scores are not looked at.
        k_constant: the k of the paper.

    Returns:
        Every document once, best first, with the sum of 1 / (k_constant + rank) over the rankings that have it, where
        ranks start at 1.
    """
    documents: dict[str, Document] = {}
    ranks: dict[str, list[float]] = {}
    for n, ranking in enumerate(rankings):
        for rank, hit in enumerate(ranking, 1):
            documents.setdefault(hit.document.id, hit.document)
            of_document = ranks.setdefault(hit.document.id, [math.inf] * len(rankings))
            of_document[n] = min(of_document[n], rank)
    # fsum rounds once, at the end: equal sets of ranks give equal sums, whichever engine they come from.
    sums = {id: math.fsum(1 / (k_constant + rank) for rank in of_document) for id, of_document in ranks.items()}
    return [Hit(documents[id], sums[id]) for id in sorted(sums, key=lambda id: (-sums[id], ranks[id]))]
