"""The interface of search engines: queries in, documents with scores out, many at a time.

Everything that searches has this one method, so that engines can be chained in any order.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from agent_gym.errors import ConfigError, shown, whole_number

if TYPE_CHECKING:
    from agent_gym.chat import ChatRenderer

# A policy can write a megabyte into one call. A longer text is cut: tokenizers, caches and requests stay small.
MAX_QUERY_CHARACTERS = 16_384

MARK = "..."  # ends a text that was cut
_MOST_CHARACTERS = 32  # more than a token of running text ever has; only the beginning of endless texts is encoded


class Document(NamedTuple):
    """A passage that can be found; its id is unique in a corpus, its title may be empty."""

    id: str
    title: str
    text: str


class Hit(NamedTuple):
    """A document that was found; a higher score is better, and scores of different engines are not comparable."""

    document: Document
    score: float


@runtime_checkable
class Retriever(Protocol):
    """Finds documents."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the best documents for each query.

        Safe to call from several threads at once. The same queries give the same documents in the same order; equal
        scores are ordered by the document's place in the corpus (in a fusion: by its first engine's order).

        Returns:
            One list per query, best first, of at most k hits; fewer where the corpus has no more or nothing fits.

        Raises:
            ConfigError: for k below 1.
            EnvFailure: if its machinery breaks.
        """
        ...


def checked(queries: Sequence[str], k: int) -> list[str]:
    """Check the arguments of `search` and cut queries to `MAX_QUERY_CHARACTERS`."""
    if isinstance(queries, str):
        raise ConfigError(f"queries must be a sequence of texts and is the text {queries[:50]!r}; write [query]")
    whole_number("k", k, 1)
    if others := [query for query in queries if not isinstance(query, str)]:
        raise ConfigError(f"a query must be a text, and is {shown(others[0])}")
    return [query[:MAX_QUERY_CHARACTERS] for query in queries]


class ForkSafe:
    """A base: a deep copy is the thing itself, and forks and pickles get fresh locks.

    `gym.make` deep-copies its arguments, and vector environments fork or pickle them: an index of gigabytes must not be
    copied for each environment, and a lock that another thread held during a fork is never released in the child. The
    state that `renew` sets (locks, connections) belongs to this process alone.
    """

    def __init__(self) -> None:
        others = set(vars(self))
        self.renew()
        self._live = vars(self).keys() - others
        _alive.add(self)

    def renew(self) -> None:
        """Set the state of this process alone; called once, and again in a process that got a copy."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        ForkSafe.__init__(self)


_alive: weakref.WeakSet[ForkSafe] = weakref.WeakSet()


def _renew_all() -> None:
    for instance in list(_alive):
        instance.renew()


os.register_at_fork(after_in_child=_renew_all)


class TokenLimit:
    """Cuts texts to the length that a policy reads, in tokens of its renderer.

    Without one a token counts as four bytes.
    """

    def __init__(self, renderer: ChatRenderer | None) -> None:
        self._renderer = renderer

    def count(self, text: str) -> int:
        if self._renderer is None:
            return -(-len(text.encode("utf-8", "replace")) // 4)
        return len(self._renderer.encode_world(text))

    def cut(self, text: str, limit: int) -> str:
        """Return the text if it has at most `limit` tokens, else a beginning of it that has, ended by `MARK`."""
        begun = text[: _MOST_CHARACTERS * limit]
        if begun == text and self.count(text) <= limit:
            return text
        while begun:
            cut = begun + MARK
            tokens = self.count(cut)
            if tokens <= limit:
                return cut
            # How many tokens a beginning has is only known by encoding it, so that this closes in on the limit.
            begun = begun[: min(len(begun) * limit // tokens, len(begun) - 1)]
        return MARK if self.count(MARK) <= limit else ""

    def share(self, texts: Sequence[str], limit: int) -> list[str]:
        """Cut texts so that together they have at most `limit` tokens; short ones leave their rest to the others."""
        counts = [self.count(text[: _MOST_CHARACTERS * limit]) for text in texts]
        cut = list(texts)
        left = limit
        for n, i in enumerate(sorted(range(len(texts)), key=counts.__getitem__)):
            cut[i] = self.cut(texts[i], left // (len(texts) - n))
            left -= self.count(cut[i])
        return cut
