r"""A search engine that runs somewhere else, so that one index serves many processes and machines.

The protocol is Search-R1's `/retrieve`, as JSON: what its server, and those of SkyRL, verl and slime, read and write.

    POST /retrieve {"queries": ["...", ...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\"title\"\ntext"}, "score": 1.5}, ...], ...]}

Without scores, the inner lists hold the documents themselves. `agent_gym.serve.services.SearchServer` is such a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search.base import Document, ForkSafe, Hit, checked
from agent_gym.serve.client import RETRIES, JsonClient

MAX_QUERIES = 64  # of a request
_CONNECTIONS = 1024  # as many as a server lets wait


def to_wire(document: Document) -> dict[str, str]:
    """Write a document: the title in quotes on a line of its own, then the text."""
    return {"id": document.id, "contents": f'"{document.title.replace(chr(10), " ")}"\n{document.text}'}


def from_wire(document: Mapping[str, Any]) -> Document:
    """Read a document; titles come back with spaces for line breaks.

    Raises:
        ValueError: if it has no `contents`.
    """
    contents = document.get("contents")
    if not isinstance(contents, str):
        raise ValueError(f"a document has no contents: {str(document)[:100]}")
    title, newline, text = contents.partition("\n")
    if not newline:
        title, text = "", contents
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Document(str(document.get("id", "")), title, text)


def response(found: Sequence[Sequence[Hit]], return_scores: bool) -> dict[str, Any]:
    """Write what was found."""
    if not return_scores:
        return {"result": [[to_wire(hit.document) for hit in hits] for hits in found]}
    return {"result": [[{"document": to_wire(hit.document), "score": hit.score} for hit in hits] for hits in found]}


def read_response(data: bytes, count: int) -> list[list[Hit]]:
    """Read what was found for `count` queries.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        lists = json.loads(data)["result"]
        found = [[Hit(from_wire(row["document"]), float(row["score"])) for row in rows] for rows in lists]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no list of documents with scores for each query: {data[:100]!r}") from error
    if len(found) != count:
        raise ValueError(f"{len(found)} results for {count} queries")
    return found


class RemoteRetriever(ForkSafe):
    """Asks a server that speaks Search-R1's protocol. Safe to call from several threads; connections are kept open.

    Args:
        url: "http://host:8000", or with a path other than `/retrieve`.
        timeout_s: seconds to wait for a connection, and for each piece of an answer.
        retries: how often to try again when the connection fails or the server is too busy, see `JsonClient`. What
            else the server answers is final, also an error.

    Raises:
        ConfigError: for an address that is none.
    """

    live = ("_client",)

    def __init__(self, url: str, *, timeout_s: float = 30.0, retries: int = RETRIES) -> None:
        if not timeout_s > 0 or retries < 0:
            raise ConfigError(f"timeout_s is {timeout_s} and retries {retries}; above 0 seconds and at least 0 times")
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        super().__init__()

    def renew(self) -> None:
        self._client = JsonClient(
            self.url,
            "/retrieve",
            server="search server",
            command="agent-gym serve search",
            retries=self.retries,
            repeats=self.retries,
            connections=_CONNECTIONS,
        )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
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
