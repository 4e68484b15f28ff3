"""Servers of JSON over HTTP, from the standard library: what those of the search engines and the sandbox share.

A thread per connection is right here: trainers keep a few hundred connections open, and the work is done elsewhere.
What makes the standard server slow is switched off: a delay of 40 ms per answer (Nagle's algorithm, which waits to fill
a packet), a queue of five connections, a look-up of this machine's name, and a line of log per request.

It knows no users and no encryption. It listens to its own machine unless told otherwise. Pages of other sites that are
open in a browser on that machine get nothing: neither by its address (their `Origin` is not the server's) nor by a name
of theirs that was made to lead there (DNS rebinding; the `Host` is not this machine's).
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError

_log = logging.getLogger(__name__)

_IDLE_S = 120.0  # a connection that says nothing for so long is closed
_CROWDED_IDLE_S = 10.0  # the same while there is no room for others
_ARRIVAL_S = 60.0  # how long the head of a request may take to arrive, and its body
_QUEUE = 1024  # connections that wait to be accepted
_CONNECTIONS = 4096  # at once, each with a thread; where fewer files may be open, half as many as may be
_OPEN_FILES = 1 << 16
_PAUSE_S = 0.05  # before the next try to accept a connection for which there is no room
_LINGER_S = 0.5  # a client that is refused has so long to read why
_FINISH_S = 10.0  # how long requests that have begun may take when the server is closed


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


class JsonServer(ThreadingHTTPServer):
    """Answers in the thread that calls `serve_forever`.

    As a context, it ends well: requests that have begun are answered, and then the connections are closed.

    Args:
        listener: where to listen, from `bind`.
        handler: answers the requests of a connection.
        about: what `/health` tells besides that all is well.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, handler: type[JsonHandler], about: Mapping[str, Any] | None = None
    ) -> None:
        self.about = dict(about or {})
        self.closing = False
        self._busy, self._changed = 0, threading.Condition()
        self._connections: set[Any] = set()
        self._room = min(_CONNECTIONS, _open_files() // 2)
        self._awaited: dict[Any, tuple[float, float]] = {}  # since when, and for how long
        self._refused: deque[tuple[float, Any]] = deque()  # when to close them
        address = listener.getsockname()
        super().__init__(address, handler, bind_and_activate=False)
        self.socket.close()  # it made one of its own
        self.socket, self.server_address = listener, address
        self.local = ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
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

    def expect(self, connection: Any, seconds: float | None) -> None:
        """Let a connection take so long for what it is to send next; None if nothing is expected of it."""
        with self._changed:
            if seconds is None:
                self._awaited.pop(connection, None)
            else:
                self._awaited[connection] = time.monotonic(), seconds

    def service_actions(self) -> None:
        """End what takes too long: the thread that reads from such a connection finds that nothing more comes."""
        now = time.monotonic()
        while self._refused and self._refused[0][0] <= now:
            super().shutdown_request(self._refused.popleft()[1])
        with self._changed:
            crowded = len(self._connections) >= self._room
            for connection, (since, seconds) in self._awaited.items():
                if now - since > (_CROWDED_IDLE_S if crowded and seconds == _IDLE_S else seconds):
                    try:
                        connection.shutdown(socket.SHUT_RD)
                    except OSError:
                        pass  # the other side was faster

    def get_request(self) -> Any:
        """Accept a connection. Where that fails for lack of descriptors, wait a moment: it would fail again at once."""
        try:
            if len(self._refused) >= self._room // 2:
                raise OSError("too many connections were refused just now")
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection and start its thread, or refuse it."""
        with self._changed:
            room = len(self._connections) < self._room
            if room:
                self._connections.add(request)
        try:
            if not room:
                raise RuntimeError(f"the server has its {self._room} connections")
            super().process_request(request, client_address)
        except RuntimeError as full:  # also where no more threads can be started
            self._refuse(request, str(full))

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and forget it."""
        with self._changed:
            self._connections.discard(request)
            self._awaited.pop(request, None)
        super().shutdown_request(request)

    def _refuse(self, connection: Any, reason: str) -> None:
        with self._changed:
            self._connections.discard(connection)
        body = json.dumps({"detail": f"{reason}; try again in a moment"}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        connection.setblocking(False)
        try:
            connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except OSError:
            pass
        # Not closed now: with its request unread, the client would get an error of the connection and not the answer.
        self._refused.append((time.monotonic() + _LINGER_S, connection))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a connection died of; that a client went away is its own business."""
        _log.debug("connection of %s", client_address, exc_info=True)


def _open_files() -> int:
    """Let this process open as many files as it may, and return how many that are."""
    try:
        import resource
    except ImportError:  # Windows
        return _OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS has a lower limit beside it
            wanted = soft
    return wanted


class BadRequest(Exception):
    """What the client got wrong."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class JsonHandler(BaseHTTPRequestHandler):
    """Reads requests and writes answers; a subclass says what there is in `places`, and does it in `work`."""

    server: JsonServer
    places: ClassVar[str]
    """What a client is told that asks for something else."""
    max_request_bytes: ClassVar[int]
    too_long: ClassVar[str]
    """What a client should do whose request is longer."""

    protocol_version = "HTTP/1.1"
    server_version = "agent-gym"
    sys_version = ""
    timeout = _IDLE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together
    error_content_type = "application/json"
    error_message_format = '{"detail": "%(message)s"}'

    def handle_one_request(self) -> None:
        """Wait for a request, and give it a time to arrive."""
        self.server.expect(self.connection, _IDLE_S)
        try:
            self.rfile.peek(1)  # type: ignore[attr-defined]
        except TimeoutError:
            self.close_connection = True
            return
        self.server.expect(self.connection, _ARRIVAL_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head; refuse what pages of other sites ask."""
        good = super().parse_request()
        self.server.expect(self.connection, None)
        if good and (reason := self._foreign()):
            self._discard(self._length() or 0)
            self._answer(HTTPStatus.FORBIDDEN, {"detail": reason})
            good = False
        return good

    def _foreign(self) -> str:
        """Why this request may come from another site's page; nothing if it cannot."""
        # Browsers send a Host with every request, and with those of a page that may do something its Origin.
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if host is not None and self.server.local and not _is_this_machine(host):
            return (
                f"Host is {host!r}; a server that listens to its own machine only is asked by localhost or 127.0.0.1. "
                "Start it with another --host if it should be reached by other names"
            )
        if origin is not None and origin.lower().partition("://")[2] != (host or "").lower():
            return f"Origin is {origin!r}; this server answers its own pages only"
        return ""

    def _length(self) -> int | None:
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None

    def look(self, path: str) -> Any:
        """Answer `GET path`, or return None if there is no such place."""
        return {"status": "ok", **self.server.about} if path == "/health" else None

    def work(self, path: str, body: bytes) -> Mapping[str, Any]:
        """Answer `POST path`. Any error but a `BadRequest` is one of the server.

        Raises:
            BadRequest: if the client got something wrong.
        """
        raise BadRequest(HTTPStatus.NOT_FOUND, self.places)

    def do_GET(self) -> None:
        """Look."""
        content = self.look(self.path.partition("?")[0])
        if content is None:
            self._answer(HTTPStatus.NOT_FOUND, {"detail": self.places})
        else:
            self._answer(HTTPStatus.OK, content)

    def do_POST(self) -> None:
        """Work."""
        with self.server.busy():
            try:
                content = self.work(self.path.partition("?")[0], self._body())
            except BadRequest as error:
                self._answer(error.status, {"detail": str(error)})
            except Exception as error:
                _log.exception("a request failed")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"detail": f"{type(error).__name__}: {error}"})
            else:
                self._answer(HTTPStatus.OK, content)

    def handle_expect_100(self) -> bool:
        """Tell the client to go on, now and not with the answer that it makes possible."""
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def log_message(self, format: str, *args: Any) -> None:
        """Log quietly."""
        _log.debug(format, *args)

    def _body(self) -> bytes:
        length = self._length()
        if length is None:
            self.close_connection = True  # where the next request begins is not known
            raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        if length > self.max_request_bytes:
            self._discard(length)
            raise BadRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {length} bytes and may have {self.max_request_bytes}; {self.too_long}",
            )
        self.server.expect(self.connection, _ARRIVAL_S)
        body = self.rfile.read(length)
        self.server.expect(self.connection, None)
        if len(body) < length:
            self.close_connection = True
            raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, f"{len(body)} of {length} bytes arrived in {_ARRIVAL_S:g} s")
        return body

    def _discard(self, length: int) -> None:
        """Read on for a while: a client that is still writing when the connection closes never sees the answer."""
        self.close_connection = True
        left = min(length, 8 * self.max_request_bytes)
        self.server.expect(self.connection, _FINISH_S)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)
        self.server.expect(self.connection, None)

    def _answer(self, status: HTTPStatus, content: Any) -> None:
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


def _is_this_machine(host: str) -> bool:
    """Whether a Host names this machine by an address or name that nobody else can give it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def json_object(body: bytes, example: str) -> dict[str, Any]:
    """Read the body of a request.

    Raises:
        BadRequest: if it is no JSON object.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"the body is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"the body must be an object such as {example}")
    return content
