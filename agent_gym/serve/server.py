"""JSON over HTTP with starlette and uvicorn: the common part of all servers of this package.

A server knows no users and no encryption. It listens to its own machine unless another address is given. Pages of other
sites that are open in a browser on that machine get no answer: neither by its address (their `Origin` is not the
server's) nor by a name of theirs that leads there (DNS rebinding; the `Host` is not this machine's). Its own pages may
load nothing but their own files, and no other page may show them in a frame, by their Content-Security-Policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError, described, require

try:
    import uvicorn
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:
    require("starlette", "serve")
    require("uvicorn", "serve")
    require("httptools", "serve")
    raise

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_HEAD_S = 10.0  # how long the head of a request may take to arrive
_BODY_S = 60.0  # and its body
_IDLE_S = 30.0  # a connection is closed after so long without a request
_FINISH_S = 10.0  # how long requests that have begun may take when the server ends
_DISCARD_S = 10.0  # how long the body of a refused request is read
_QUEUE = 1024  # connections that wait to be accepted
_OPEN_FILES = 1 << 16
_PAGE = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def bind(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """Take an address, "127.0.0.1" for this machine only, "0.0.0.0" for all its networks; port 0 is a free one.

    Until a server listens there, connections are refused. `ConfigError` if it does not exist or is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only for a socket that names its protocol asyncio switches Nagle's algorithm off, which costs 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose another port or address") from error
    return listener


class Server:
    """Answers in the thread that calls `serve_forever`, until SIGINT, SIGTERM or `shutdown`.

    Then requests that have begun are answered, for at most 10 seconds, and the connections are closed. As a context it
    ends with its block. `ConfigError` if another server was faster to listen there.

    `listener` comes from `bind`; `about` is added to the status in answers of `GET /health`.
    """

    def __init__(
        self, listener: socket.socket, routes: Sequence[Route], about: Mapping[str, Any] | None = None
    ) -> None:
        self._listener, self.address = listener, listener.getsockname()
        host, port = self.address[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        local = ipaddress.ip_address(host.partition("%")[0]).is_loopback
        health = get("/health", lambda: {"status": "ok", **(about or {})})
        places = ", ".join(f"{min((route.methods or {'GET'}) - {'HEAD'})} {route.path}" for route in (*routes, health))
        app = Starlette(
            routes=[*routes, health, Mount("/", app=refusal(404, f"there are {places}"))],
            middleware=[Middleware(_Gate, local=local)],
            exception_handlers={HTTPException: lambda request, error: refusal(error.status_code, error.detail)},
        )
        config = uvicorn.Config(
            app,
            http=_Protocol,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=_QUEUE,
            timeout_keep_alive=int(_IDLE_S),
            timeout_graceful_shutdown=int(_FINISH_S),
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._ended.set()
        self._crowded = False  # whether a connection had to wait for a file descriptor
        _allow_open_files()
        try:
            listener.listen(_QUEUE)
        except OSError as error:
            raise ConfigError(f"cannot listen at {self.url}: {error.strerror}; choose another port") from error

    def serve_forever(self) -> None:
        """Answer requests until the end, see the class."""

        async def run() -> None:
            asyncio.get_running_loop().set_exception_handler(self._report)
            await self._server.serve(sockets=[self._listener])

        self._ended.clear()
        try:
            if not self._server.should_exit:
                asyncio.run(run())
        finally:
            self._ended.set()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report once that descriptors are lacking; asyncio would write a traceback for each place in the queue."""
        if getattr(context.get("exception"), "errno", None) not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif not self._crowded:
            self._crowded = True
            _log.warning("%s has no free file descriptors: new connections wait; raise `ulimit -n`", self.url)

    def shutdown(self) -> None:
        """Let `serve_forever` end; any thread may call it."""
        self._server.should_exit = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._ended.wait()
        self._listener.close()


class _Protocol(HttpToolsProtocol):
    """Closes connections whose request does not begin or whose head does not arrive; uvicorn itself would wait."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._late.cancel()
        self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._late.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


def _allow_open_files() -> None:
    """Let this process open as many files as it may: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has another, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Gate:
    """ASGI middleware that refuses requests from pages of other sites."""

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self._app, self._local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # Browsers send a Host with every request, and, with requests of a page that may change anything, its Origin.
        host, origin = request.headers.get("host"), request.headers.get("origin")
        reason = ""
        if host is not None and self._local and not _is_this_machine(host):
            reason = (
                f"Host is {host!r}; a server that listens to its own machine only is asked by localhost or 127.0.0.1. "
                "Start it with another --host if it should be reached by other names"
            )
        elif origin is not None and origin.lower().partition("://")[2] != (host or "").lower():
            reason = f"Origin is {origin!r}; this server answers its own pages only"
        if reason:
            # A client that is still writing when the connection closes never sees the answer.
            with contextlib.suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(_DISCARD_S):
                    async for _ in request.stream():
                        pass
        await (refusal(403, reason) if reason else self._app)(scope, receive, send)


def _is_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


# Requests and answers.


def get(path: str, function: Callable[[], Any]) -> Route:
    """Make a route that answers `GET path` with the result of a function that returns at once."""

    async def endpoint(request: Request) -> Response:
        return json_response(function())

    return Route(path, endpoint)


def post(path: str, work: Callable[[dict[str, Any]], Any], example: str, most_bytes: int, too_long: str) -> Route:
    """Make a route that answers `POST path`.

    `work` takes the JSON object of the request and returns the answer, in a thread. It raises `HTTPException` for a
    mistake of the client; any other exception is one of the server. `example` is a request, for clients that send
    something else, and `too_long` advice for clients that send more than `most_bytes`.
    """

    def answer(body: bytes) -> Response:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise HTTPException(400, f"the body must be an object such as {example}")
        return json_response(work(content))

    async def endpoint(request: Request) -> Response:
        body = await read_body(request, most_bytes, too_long)
        try:
            return await in_thread(lambda: answer(body))
        except HTTPException:
            raise
        except Exception as error:
            _log.exception("a request failed")
            return json_response({"detail": described(error)}, 500)

    return Route(path, endpoint, methods=["POST"])


def page_routes(package: str) -> list[Route]:
    """Make the routes of the page of a package: page.html, which is "/", page.css and page.js."""

    async def endpoint(request: Request) -> Response:
        name = request.url.path.strip("/") or "page.html"
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(resources.files(package).joinpath(name).read_bytes(), headers=headers, media_type=_PAGE[name])

    return [Route(path, endpoint) for path in ("/", "/page.css", "/page.js")]


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Write JSON in ASCII: lone surrogates and infinite numbers pass, which starlette's own refuses."""
    return Response(json.dumps(content), status, headers, media_type="application/json")


def refusal(status: int, reason: str) -> Response:
    """Make the answer to a request that is not served."""
    # The bytes after a request that was not read to its end are not the next request.
    headers = {"Connection": "close"} if status in (403, 408, 413) else None
    return json_response({"detail": reason}, status, headers)


async def in_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread; each call has its own limiter, for anyio's has 40 threads for all of them."""
    try:
        return await to_thread.run_sync(function, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    except RuntimeError as error:
        if str(error) != "can't start new thread":
            raise
        raise HTTPException(503, f"the server has no more threads ({error}); try again in a moment") from error


async def read_body(request: Request, most_bytes: int, too_long: str) -> bytes:
    """Read a body of at most so many bytes; `HTTPException` if it is longer, or does not arrive."""
    body, length = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                length += len(piece)
                if length <= most_bytes:
                    body += piece
                elif length > 8 * most_bytes:
                    break
    except TimeoutError:
        raise HTTPException(408, f"{length} bytes arrived in {_BODY_S:g} s, and not all") from None
    except ClientDisconnect:
        raise HTTPException(400, f"the connection ended after {length} bytes") from None
    if length > most_bytes:
        raise HTTPException(413, f"the request has {length} bytes or more and may have {most_bytes}; {too_long}")
    return bytes(body)
