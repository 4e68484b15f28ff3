"""A search engine that runs somewhere else, so that one index serves many processes and machines."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.client import RETRIES, JsonClient
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.retrieval.base import Hit
from agent_gym.retrieval.checks import checked
from agent_gym.retrieval.protocol import MAX_QUERIES, read_response
from agent_gym.shared import Shared

_CONNECTIONS = 1024  # as many as a server lets wait


class RemoteRetriever(Shared):
    """Asks a server that speaks Search-R1's protocol. Safe to call from several threads; connections are kept open.

    Args:
        url: "http://host:8000", or with a path other than `/retrieve`.
        timeout_s: seconds to wait for a connection, and for each piece of an answer.
        retries: how often to try again when the connection fails or the server is too busy, see `JsonClient`. What
            else the server answers is final, also an error.

    Raises:
        ConfigError: for an address that is none.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0, retries: int = RETRIES) -> None:
        if not timeout_s > 0 or retries < 0:
            raise ConfigError(f"timeout_s is {timeout_s} and retries {retries}; above 0 seconds and at least 0 times")
        self._client = JsonClient(
            url,
            "/retrieve",
            server="search server",
            command="agent-gym serve search",
            retries=retries,
            repeats=retries,
            connections=_CONNECTIONS,
        )
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        super().__init__()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Ask the server, with at most 64 queries at a time."""
        queries = checked(queries, k)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), MAX_QUERIES):
            asked = queries[start : start + MAX_QUERIES]
            data = self._client.post({"queries": asked, "topk": k, "return_scores": True}, self.timeout_s)
            try:
                found += [hits[:k] for hits in read_response(data, len(asked))]
            except ValueError as error:
                raise EnvFailure(f"{self.url} does not speak Search-R1's protocol: {error}") from error
        return found
