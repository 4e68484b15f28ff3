"""What is searched: what was given for it, or else a question's own world, or the paragraphs of all questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from agent_gym.data import Row
from agent_gym.envs.hotpotqa.data import official
from agent_gym.envs.hotpotqa.world import get_world
from agent_gym.errors import ConfigError
from agent_gym.retrieval import Retriever
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

    def engine_of(self, task: Mapping[str, Any]) -> Callable[[], Retriever]:
        """Say how to get the engine that searches for this task; making it can wait until it is needed.

        Raises:
            ConfigError: if there is nothing to search for this task.
        """
        if self.retriever is not None:
            engine = self.retriever
            return lambda: engine
        corpus, rows, world = self._corpus, self._rows, task.get("world")
        if corpus is not None:
            return lambda: ENGINES.get(id(corpus), lambda: bm25(documents_of(corpus)), corpus)
        if isinstance(world, int):
            return lambda: ENGINES.get(("world", world), lambda: bm25(get_world(world).documents))
        if rows:
            key = tuple(map(id, rows))
            return lambda: ENGINES.get(key, lambda: bm25(list(hotpotqa_paragraphs(map(official, chain(*rows))))), rows)
        # A task that was handed in brings its own paragraphs.
        documents = list(hotpotqa_paragraphs([official(task)]))
        if not documents:
            raise ConfigError("a task with an empty context has nothing to search: give corpus= or retriever=")
        return lambda: ENGINES.get(("task", id(task)), lambda: bm25(documents), task)
