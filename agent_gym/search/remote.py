r"""A search engine that runs somewhere else, so that one index serves many processes and machines: both ends of it.

The protocol is Search-R1's `/retrieve`, as JSON: what its server, and those of SkyRL, verl and slime, read and write.

    POST /retrieve {"queries": ["...", ...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\"title\"\ntext"}, "score": 1.5}, ...], ...]}

Without scores, the inner lists hold the documents themselves.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from agent_gym.client import RETRIES, JsonClient
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search.base import Document, Hit, Retriever, checked
from agent_gym.serving import BadRequest, JsonHandler, JsonServer, json_object
from agent_gym.shared import Shared

# A full batch of the longest queries, with twelve bytes for an emoji in JSON, and some room.
MAX_REQUEST_BYTES = 16 * 2**20
MAX_QUERIES = 64
MAX_TOPK = 1000
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


class SearchServer(JsonServer):
    """Answers `POST /retrieve` and `GET /health`, in the thread that calls `serve_forever`.

    As a context, it ends well: searches that have begun are answered, and then the connections are closed.

    Args:
        retriever: the engine; called by many threads, so best behind a `MicroBatcher`.
        listener: where to listen, from `bind`.
        topk: documents per query where a request does not say.
        about: what `/health` returns besides the status.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    def __init__(
        self,
        retriever: Retriever,
        listener: socket.socket,
        *,
        topk: int = 3,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.retriever, self.topk = retriever, topk
        super().__init__(listener, _Handler, about)


class _Request(NamedTuple):
    queries: list[str]
    topk: int
    return_scores: bool


class _Handler(JsonHandler):
    server: SearchServer

    places = "there are POST /retrieve and GET /health"
    max_request_bytes = MAX_REQUEST_BYTES
    too_long = "send fewer or shorter queries"

    def work(self, path: str, body: bytes) -> Mapping[str, Any]:
        if path != "/retrieve":
            raise BadRequest(HTTPStatus.NOT_FOUND, self.places)
        request = _read_request(body, self.server.topk)
        return response(self.server.retriever.search(request.queries, request.topk), request.return_scores)


def _read_request(body: bytes, topk: int) -> _Request:
    content = json_object(body, '{"queries": ["..."], "topk": 3}')
    queries, asked, scores = content.get("queries"), content.get("topk"), content.get("return_scores")
    asked, scores = topk if asked is None else asked, False if scores is None else scores
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "queries must be a list of texts")
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MAX_TOPK:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"topk is {asked!r}; it must be a whole number from 1 to {MAX_TOPK}")
    if not isinstance(scores, bool):
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"return_scores is {scores!r}; it must be true or false")
    return _Request(queries, asked, scores)
