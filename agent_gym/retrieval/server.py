"""Any search engine as a server with Search-R1's protocol, from the standard library.

A thread per connection is right here: trainers keep a few hundred connections open, and the work is done by the engine.
What makes the standard server slow is switched off: a delay of 40 ms per answer (Nagle's algorithm, which waits to fill
a packet), a queue of five connections, a look-up of this machine's name, and a line of log per request.

It knows no users and no encryption. It listens to its own machine unless told otherwise.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError
from agent_gym.retrieval.base import Retriever
from agent_gym.retrieval.protocol import MAX_REQUEST_BYTES, MAX_TOPK, response

_log = logging.getLogger(__name__)

_PLACES = "there are POST /retrieve and GET /health"
_IDLE_S = 120.0  # a connection that says nothing for so long is closed
_QUEUE = 1024  # connections that wait to be accepted
_FINISH_S = 10.0  # how long searches that have begun may take when the server is closed


def bind(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """Take an address; until a server listens there, connections are refused.

    Args:
        host: "127.0.0.1" is this machine only, "0.0.0.0" all its networks.
        port: 0 takes a free one.

    Raises:
        ConfigError: if there is no such address, or somebody else has it.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose another port or address") from error
    return listener


class SearchServer(ThreadingHTTPServer):
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

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        retriever: Retriever,
        listener: socket.socket,
        *,
        topk: int = 3,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.retriever, self.topk, self.about = retriever, topk, dict(about or {})
        self.closing = False
        self._busy, self._changed = 0, threading.Condition()
        self._connections: set[Any] = set()
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()  # it made one of its own
        self.socket, self.server_address = listener, address
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http://{host}:{address[1]}"
        try:
            listener.listen(_QUEUE)
        except OSError as error:
            raise ConfigError(f"cannot listen at {self.url}: {error.strerror}; choose another port") from error

    def server_close(self) -> None:
        """Take no more requests, let those that have begun finish, and close the connections."""
        self.closing = True
        super().server_close()
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0, _FINISH_S)
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side was faster

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request for as long as it is worked on."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, and start its thread."""
        with self._changed:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and forget it."""
        with self._changed:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a connection died of; that a client went away is its own business."""
        _log.debug("connection of %s", client_address, exc_info=True)


class _BadRequest(Exception):
    """What the client got wrong."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Request(NamedTuple):
    queries: list[str]
    topk: int
    return_scores: bool


class _Handler(BaseHTTPRequestHandler):
    server: SearchServer

    protocol_version = "HTTP/1.1"
    server_version = "agent-gym"
    sys_version = ""
    timeout = _IDLE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together
    error_content_type = "application/json"
    error_message_format = '{"detail": "%(message)s"}'

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/health":
            self._answer(HTTPStatus.OK, {"status": "ok", **self.server.about})
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"detail": _PLACES})

    def do_POST(self) -> None:
        with self.server.busy():
            try:
                body = self._body()
                if self.path.partition("?")[0] != "/retrieve":
                    raise _BadRequest(HTTPStatus.NOT_FOUND, _PLACES)
                request = _read_request(body, self.server.topk)
            except _BadRequest as error:
                self._answer(error.status, {"detail": str(error)})
                return
            try:
                found = self.server.retriever.search(request.queries, request.topk)
            except Exception as error:
                _log.exception("a search failed")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"detail": f"{type(error).__name__}: {error}"})
                return
            self._answer(HTTPStatus.OK, response(found, request.return_scores))

    def handle_expect_100(self) -> bool:
        """Tell the client to go on, now and not with the answer that it makes possible."""
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            self.close_connection = True  # where the next request begins is not known
            raise _BadRequest(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        if int(length) > MAX_REQUEST_BYTES:
            self._discard(int(length))
            raise _BadRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {length} bytes and may have {MAX_REQUEST_BYTES}; send fewer or shorter queries",
            )
        return self.rfile.read(int(length))

    def _discard(self, length: int) -> None:
        """Read on for a while: a client that is still writing when the connection closes never sees the answer."""
        self.close_connection = True
        until = time.monotonic() + _FINISH_S
        left = min(length, 8 * MAX_REQUEST_BYTES)
        while left > 0 and time.monotonic() < until:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                return
            left -= len(piece)

    def _answer(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection or self.server.closing:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)
        # Now, while the request still counts as busy: a server that closes would otherwise cut it off.
        self.wfile.flush()


def _read_request(body: bytes, topk: int) -> _Request:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, f"the body is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, 'the body must be an object such as {"queries": ["..."], "topk": 3}')
    queries, asked, scores = content.get("queries"), content.get("topk"), content.get("return_scores")
    asked, scores = topk if asked is None else asked, False if scores is None else scores
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "queries must be a list of texts")
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MAX_TOPK:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, f"topk is {asked!r}; it must be a whole number from 1 to {MAX_TOPK}")
    if not isinstance(scores, bool):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, f"return_scores is {scores!r}; it must be true or false")
    return _Request(queries, asked, scores)
