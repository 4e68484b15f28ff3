"""What every engine checks of what it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.errors import ConfigError

# A policy can write a megabyte into one call. Nobody searches for that on purpose; what follows is not looked at, so
# that tokenizers, caches and requests stay small.
MAX_QUERY_CHARACTERS = 16_384


def checked(queries: Sequence[str], k: int) -> list[str]:
    """Check the arguments of `search` and cut queries to `MAX_QUERY_CHARACTERS`.

    Raises:
        ConfigError: for k below 1, one text instead of several, or a query that is no text.
    """
    if isinstance(queries, str):
        raise ConfigError(f"queries must be a sequence of texts and is the text {queries[:50]!r}; write [query]")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k is {k!r}; it must be a whole number of at least 1")
    for query in queries:
        if not isinstance(query, str):
            raise ConfigError(f"a query must be text, not {type(query).__name__}: {str(query)[:50]!r}")
    return [query[:MAX_QUERY_CHARACTERS] for query in queries]
