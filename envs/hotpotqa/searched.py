"""What is searched: what was given for it, or else a question's own world, or the paragraphs of all questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from agent_gym.data import Row
from agent_gym.envs.hotpotqa.data import official
from agent_gym.envs.hotpotqa.world import get_world
from agent_gym.errors import ConfigError
from agent_gym.retrieval import Document, Retriever
from agent_gym.retrieval.engines import ENGINES, bm25, documents_of, open_corpus, open_retriever
from agent_gym.retrieval.sources import hotpotqa_paragraphs


class Searched:
    """Knows the engine for every task.

    Args:
        retriever: "bm25", the folder of an index, the address of a server, or an engine.
        corpus: a corpus folder, a file or a hub name; None to search what the questions bring.
        rows: the questions whose paragraphs are searched together, if any.

    Raises:
        ConfigError: if one of them cannot be opened.
    """

    def __init__(self, retriever: Any, corpus: str | None, rows: Sequence[Sequence[Row]]) -> None:
        """Open what was given; nothing is read or indexed before the first search."""
        self._rows = rows
        self._corpus = None if corpus is None else open_corpus(corpus)
        self.retriever = open_retriever(retriever, self._corpus)

    def check(self, task: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if there is nothing to search for this task. Nothing is read or indexed yet."""
        given = self.retriever is not None or self._corpus is not None or self._rows
        if not given and not isinstance(task.get("world"), int) and not _paragraphs(task):
            raise ConfigError("a task with an empty context has nothing to search: give corpus= or retriever=")

    def engine(self, task: Mapping[str, Any]) -> Retriever:
        """Return the engine that searches for this task, after making it if need be."""
        corpus, rows, world = self._corpus, self._rows, task.get("world")
        if self.retriever is not None:
            return self.retriever
        if corpus is not None:
            return ENGINES.get(id(corpus), lambda: bm25(documents_of(corpus)), corpus)
        if isinstance(world, int):
            return ENGINES.get(("world", world), lambda: bm25(get_world(world).documents))
        if rows:
            key = tuple(map(id, rows))
            return ENGINES.get(key, lambda: bm25(list(hotpotqa_paragraphs(map(official, chain(*rows))))), rows)
        # A task that was handed in brings its own paragraphs.
        return ENGINES.get(("task", id(task)), lambda: bm25(_paragraphs(task)), task)


def _paragraphs(task: Mapping[str, Any]) -> list[Document]:
    return list(hotpotqa_paragraphs([official(task)]))
