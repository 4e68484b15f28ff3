"""Any search engine as a server with Search-R1's protocol."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from agent_gym.retrieval.base import Retriever
from agent_gym.retrieval.protocol import MAX_REQUEST_BYTES, MAX_TOPK, response
from agent_gym.serving import BadRequest, JsonHandler, JsonServer, bind, json_object

__all__ = ["SearchServer", "bind"]


class SearchServer(JsonServer):
    """Answers `POST /retrieve` and `GET /health`, in the thread that calls `serve_forever`.

    As a context, it ends well: searches that have begun are answered, and then the connections are closed.

    Args:
        retriever: the engine; called by many threads, so best behind a `MicroBatcher`.
        listener: where to listen, from `bind`.
        topk: documents per query where a request does not say.
        about: what `/health` tells besides that all is well.

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
