"""Several multi-hop data sets as one: sources mixed evenly, split by split."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from agent_gym.data import GeneratedRows, Row, Splits
from agent_gym.envs.hotpotqa.data import EMBEDDED, distinct, load, questions
from agent_gym.envs.hotpotqa.generator import SPLIT_SIZES, GeneratedQuestions
from agent_gym.errors import ConfigError


class Mixture(GeneratedRows):
    """Sequences of rows as one, each spread over the whole length, so that any stretch of it is a fair sample.

    Args:
        sources: what is mixed; rows are only read when they are asked for.
    """

    def __init__(self, sources: Sequence[Sequence[Row]]) -> None:
        self._sources = sources

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The order of all rows, and where each source begins; found late, since a source may have to be drawn."""
        sizes = [len(rows) for rows in self._sources]
        places = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
        return np.argsort(places, kind="stable"), np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return len(self._places[0])

    def make(self, index: int) -> Row:
        """Read one row."""
        order, starts = self._places
        at = int(order[index])
        source = int(np.searchsorted(starts, at, side="right")) - 1
        return self._sources[source][at - int(starts[source])]


def mixture(data: str | Sequence[str]) -> tuple[Splits, list[Sequence[Row]]]:
    """Load sources and mix them.

    Args:
        data: "embedded", a file, a folder or a hub name of HotpotQA, 2WikiMultihopQA or MuSiQue; or several of these.

    Returns:
        The splits, and all rows whose paragraphs are searched together.

    Raises:
        ConfigError: if there is no source, or one cannot be read.
    """
    names = [data] if isinstance(data, str) else list(data)
    if not names:
        raise ConfigError("data names no source; give 'embedded', files, folders or names on the hub")
    sources: dict[str, list[Sequence[Row]]] = {}
    searched: list[Sequence[Row]] = []
    for name in names:
        loaded = _embedded() if name == EMBEDDED else load(name, ("question", "answer"))
        searched += [] if name == EMBEDDED else distinct(loaded.values())
        for split, rows in loaded.items():
            sources.setdefault(split, []).append(_answerable(rows))
    return {split: Mixture(parts) for split, parts in sources.items()}, searched


def _embedded() -> Splits:
    """Two and three hops half and half."""
    two = questions(EMBEDDED)
    return {
        split: Mixture([two[split], GeneratedQuestions(split, levels=("easy", "medium"), hops=3)])
        for split in SPLIT_SIZES
    }


def _answerable(rows: Sequence[Row]) -> Sequence[Row]:
    """Leave out the questions of MuSiQue-Full that have no answer."""
    if "answerable" not in rows[0]:
        return rows
    return [row for row in rows if row["answerable"]]
