"""Tools of MCP servers (Model Context Protocol, https://modelcontextprotocol.io) as tools of an environment.

    tools = mcp_tools("python my_server.py")            # a command, spoken to through its standard input and output
    tools = mcp_tools("http://127.0.0.1:8000/mcp")      # or an address, by streamable HTTP

The official package does the protocol (`pip install 'agentic-gym[mcp]'`). It is asynchronous and environments are not,
so one thread of this process runs its loop, with one connection per server for all environments, until the process
ends. A forked process connects anew when it first calls.

A result marked `isError`, or invalid arguments, is the policy's fault and an observation. A server that is gone, late,
or breaks the protocol is an `EnvFailure`. A lost connection is made again, once per call; a call under way is then
called a second time. Left out on purpose: resources, prompts, sampling, and servers that keep a state for one caller.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shlex
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

from agent_gym.contrib.mcp_listing import CleanedStream, Listing
from agent_gym.errors import ConfigError, EnvFailure, clipped, described, require
from agent_gym.tool_results import MAX_RESULT_CHARS, checked_limit, cut_text
from agent_gym.tools import Tool, ToolResult

_START_S = 60.0  # a server may import a lot before it answers
_STOP_S = 10.0  # the package gives a process 2 s to end by itself, then terminates it, then kills it
_SLACK_S = 5.0  # the package watches the time of a call itself; this is for a loop that does not run any more
_KEPT_BYTES = 2000  # of the end of a server's standard error, which our errors show

_T = TypeVar("_T")


class _Server(NamedTuple):
    """The settings of a server; equal ones share a connection."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    timeout_s: float

    def __str__(self) -> str:
        return shlex.join(self.words)


def mcp_tools(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    max_chars: int = MAX_RESULT_CHARS,
) -> list[MCPTool]:
    """Connect to an MCP server and return its tools. Equal settings share one connection.

    A tool whose schema cannot be used (no `"type": "object"`, a `$ref` to nowhere) is left out, with a line on stderr.

    Args:
        server: an address (http:// or https://), or a command line, as a text or as a list of words.
        env: environment variables of the command, added to PATH, HOME and the like. It gets no others of this process.
        timeout_s: seconds that one call may take.
        max_chars: a longer result is cut, with a mark at its end that says so; at least 100.

    Raises:
        ConfigError: if the package is missing, the server does not start or cannot be reached, or has no tools
            that can be used.
    """
    require("mcp", "mcp")
    try:
        words = tuple(shlex.split(server) if isinstance(server, str) else server)  # an address is one word
    except (TypeError, ValueError):  # a path, or a quotation without an end
        words = ()
    known_time = isinstance(timeout_s, int | float) and timeout_s > 0
    if not words or not all(isinstance(word, str) for word in words) or not known_time:
        raise ConfigError(
            f"server is {server!r} and timeout_s {timeout_s!r}; they must be an address such as "
            "'http://127.0.0.1:8000/mcp' or a command such as 'python my_server.py', and a number of seconds above 0"
        )
    if not all(isinstance(text, str) for pair in (env or {}).items() for text in pair):
        raise ConfigError("env holds something else than texts; write numbers in it as texts, such as {'PORT': '8000'}")
    checked_limit(max_chars)
    known = _Server(words, tuple(sorted((env or {}).items())), float(timeout_s))
    try:
        connection = _connected(known)
    except EnvFailure as error:
        raise ConfigError(f"{error}; it must be the command or the address of an MCP server that runs") from error
    if not connection.listed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in connection.listing.left_out.items())
        left_out = f" that can be used; left out are {reasons:.1000}" if reasons else ""
        raise ConfigError(f"the MCP server {known} has no tools{left_out}")
    return [
        MCPTool(known, tool.name, tool.description or "", tool.input_schema, max_chars) for tool in connection.listed
    ]


class MCPTool(Tool):
    """A tool that an MCP server runs; made by `mcp_tools`. Its schema is the server's, which also checks arguments."""

    def __init__(
        self,
        server: _Server,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        max_chars: int = MAX_RESULT_CHARS,
    ) -> None:
        super().__init__(name, description, parameters)
        self._server, self.max_chars = server, max_chars

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            # Lone surrogates, infinities and nesting without end are not JSON, and would break the connection.
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            return ToolResult(f"Error: the arguments of {self.name} are no JSON: {clipped(error, 200)}", error=True)
        return self._call(dict(arguments))

    def _call(self, arguments: dict[str, Any]) -> ToolResult:
        import mcp

        server, name = self._server, self.name
        for _ in range(2):
            connection = _connected(server)
            future = _submit(connection.client.call_tool(name, arguments, server.timeout_s))
            try:
                result = future.result(server.timeout_s + _SLACK_S)
            except mcp.MCPError as error:
                if error.code == mcp.types.INVALID_PARAMS:
                    return ToolResult(cut_text(f"Error: {error.message}", self.max_chars), error=True)
                if error.code == mcp.types.REQUEST_TIMEOUT:
                    raise EnvFailure(f"the MCP server {server} took over {server.timeout_s:g} s for {name}") from error
                broken: Exception = error
            except TimeoutError as error:
                _drop(server, connection)
                raise EnvFailure(f"the connection to the MCP server {server} hangs") from error
            except Exception as error:
                broken = error
            else:
                return ToolResult(cut_text(_text(result), self.max_chars), error=bool(result.is_error))
            _drop(server, connection)
        raise EnvFailure(f"the MCP server {server} broke over {name}: {_reason(broken)}{connection.words}") from broken


class _Connection:
    """One session with a server. The package's client has to be entered and left by the same task, which is `_hold`."""

    def __init__(self, server: _Server) -> None:
        self._stderr = b""
        self.listing = Listing(str(server))
        self._leave = asyncio.Event()
        self._ready: Future[None] = Future()
        self._task = _submit(self._hold(server.words, dict(server.env)))
        try:
            self._ready.result(_START_S)
        except TimeoutError as error:
            self.close()
            raise EnvFailure(f"the MCP server {server} does not answer after {_START_S:g} s{self.words}") from error
        except Exception as error:
            raise EnvFailure(f"the MCP server {server} cannot be used: {_reason(error)}{self.words}") from error

    async def _hold(self, words: Sequence[str], env: dict[str, str]) -> None:
        import mcp
        from mcp.client.streamable_http import streamable_http_client

        address = words[0].startswith(("http://", "https://"))
        try:
            transport = streamable_http_client(words[0]) if address else self._command(words, env)
            async with mcp.Client(self._cleaned(transport)) as self.client:
                page = await self.client.list_tools()
                self.listed = page.tools
                while page.next_cursor is not None:
                    page = await self.client.list_tools(cursor=page.next_cursor)
                    self.listed += page.tools
                self._ready.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if not self._ready.done():
                await asyncio.sleep(0.1)  # its last words may still be on their way
                self._ready.set_exception(error)

    @asynccontextmanager
    async def _cleaned(self, transport: Any) -> AsyncIterator[Any]:
        """A transport whose listings have only tools that can be used."""
        async with transport as (read, write):
            yield CleanedStream(read, self.listing), write

    @asynccontextmanager
    async def _command(self, words: Sequence[str], env: dict[str, str]) -> AsyncIterator[Any]:
        """The package's transport to a command, with our end of a pipe as its standard error."""
        import mcp

        read, write = os.pipe()
        loop = asyncio.get_running_loop()

        def hear() -> None:
            chunk = os.read(read, 1 << 16)
            self._stderr = (self._stderr + chunk)[-_KEPT_BYTES:]
            if not chunk:
                loop.remove_reader(read)
                os.close(read)

        loop.add_reader(read, hear)
        parameters = mcp.StdioServerParameters(command=words[0], args=list(words[1:]), env=env)
        with os.fdopen(write, "w") as errors:
            async with mcp.stdio_client(parameters, errlog=errors) as streams:
                errors.close()  # the server has its end now
                yield streams

    @property
    def words(self) -> str:  # the end of an error message
        text = self._stderr.decode(errors="replace").strip()
        return f"; its output:\n{text}" if text else ""

    def close(self) -> None:
        with suppress(Exception):
            _get_loop().call_soon_threadsafe(self._leave.set)
            if not self._ready.done():
                self._task.cancel()
            self._task.result(_STOP_S)


def _text(result: Any) -> str:
    """The policy's view of an answer: its texts, and in brackets its other contents."""
    parts = []
    for part in result.content:
        resource = getattr(part, "resource", part)
        text = getattr(resource, "text", None)
        about = getattr(resource, "uri", None) or getattr(resource, "mime_type", None)
        parts.append(f"[{part.type}: {about}]" if text is None else text)
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts) or ("Error: the tool failed" if result.is_error else "")


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the package's tasks make groups of one error
        error = error.exceptions[0]
    return described(error)


_lock = threading.RLock()
_connections: dict[_Server, _Connection] = {}
_loop: asyncio.AbstractEventLoop | None = None
_inherited: list[Any] = []


def _connected(server: _Server) -> _Connection:
    if (connection := _connections.get(server)) is None:
        with _lock:
            if (connection := _connections.get(server)) is None:
                connection = _connections[server] = _Connection(server)
    return connection


def _drop(server: _Server, connection: _Connection) -> None:
    """Close a connection; the next call makes another. Another thread may have done so already."""
    with _lock:
        if _connections.get(server) is not connection:
            return
        del _connections[server]
    connection.close()


def _get_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock if _loop is None else nullcontext():
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="mcp", daemon=True).start()
        return _loop


def _submit(work: Coroutine[Any, Any, _T]) -> Future[_T]:
    return asyncio.run_coroutine_threadsafe(work, _get_loop())


def _close_all() -> None:
    for server, connection in list(_connections.items()):
        _drop(server, connection)


def _after_fork() -> None:
    """Leave the connections to the process that made them: two that read one would miss each other's answers."""
    global _loop, _lock, _connections
    # Kept, so that nothing is done about processes and sockets that are not ours.
    _inherited.append((_loop, _connections))
    _loop, _lock, _connections = None, threading.RLock(), {}


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
