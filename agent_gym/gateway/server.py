"""The endpoint: requests of many episodes at one address, each under the key of its episode.

    client --POST--> Gateway --Exchange--> Session.inbox --next()--> the environment of the episode, in its thread
           <--JSON or events--  Exchange.resolve(answer)  <------------------------'

A key is an API key, or the first part of the path. The requests of one key are answered one after the other, in the
order of their coming. A request that is sent again because its answer did not arrive gets that answer, and nothing is
sampled twice; one whose client has gone before its turn came is dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent_gym.errors import EnvFailure
from agent_gym.gateway import anthropic, chat, responses
from agent_gym.gateway.bodies import Bodies
from agent_gym.gateway.exchange import Answer, Asked, Refused
from agent_gym.serve.server import HTTPException, Request, Response, Route, Server, bind, get, json_response, read_body
from agent_gym.transcript import plain_action

PROTOCOLS = {"chat/completions": chat.PROTOCOL, "responses": responses.PROTOCOL, "messages": anthropic.PROTOCOL}
MAX_REQUEST_BYTES = 64 << 20
_OVER = "the episode of this key is over: the agent or its world ended, or a limit of tokens, turns or time is reached"
_LOCK = threading.Lock()
_shared: Gateway | None = None  # of this process
_RETRIED = "x-stainless-retry-count"  # the clients of OpenAI and Anthropic send it with each try after the first


class Exchange:
    """A request and its answer. `waiting` connections want it; `delivered` once one of them has it to its end."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.waiting, self.delivered, self.dropped = 0, False, False
        self.result: Answer | Refused | None = None
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def resolve(self, result: Answer | Refused) -> None:
        """Answer the request; any thread may call it."""
        self.result = result
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self.done.set)


@dataclass(slots=True)
class Ended:
    """The agent of a session has ended, with a result or by an error."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """The agent of a session acts in its world."""

    action: str
    answer: Future[str] = field(default_factory=Future)


@dataclass(eq=False)
class AgentSession:
    """The requests of one episode. Its environment takes them by `next`, its agent acts by `act` and ends by `end`."""

    key: str
    root: str  # the address of the gateway; Anthropic's clients add the version to it themselves
    _forget: Callable[[], object]  # lets the gateway refuse the key
    on_answer: Callable[..., object] = lambda *turn: (
        None
    )  # gets each turn before it is answered, see `Journal.answered`
    bodies: Bodies = field(default_factory=Bodies)  # the last ones, as far as they were read
    _inbox: queue.SimpleQueue[Exchange | Ended | Act] = field(default_factory=queue.SimpleQueue)
    _known: dict[bytes, Exchange] = field(default_factory=dict)  # the last exchange of each body
    _asked: list[Exchange] = field(default_factory=list)  # all: bodies may be equal, as in a vote
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    @property
    def url(self) -> str:
        """The base URL for clients of OpenAI's protocols."""
        return f"{self.root}/v1"

    def ask(self, digest: bytes, asked: Asked, again: bool) -> Exchange:
        """Queue a request, or find the exchange of which it is a repetition; called by the server."""
        with self._lock:
            if self._closed:
                raise Refused(410, _OVER)
            known = self._known.get(digest)
            if known and not known.dropped and not isinstance(known.result, Refused):
                if again or not (known.delivered or known.waiting):
                    known.waiting += 1
                    return known
            made = self._known[digest] = Exchange(asked)
            made.waiting = 1
            self._asked.append(made)
            self._inbox.put(made)
            return made

    def next(self, patience_s: float) -> Exchange | Ended | Act:
        """Wait for the agent's next request or act, or for its end; `EnvFailure` if there is none for so long."""
        while True:
            try:
                entry = self._inbox.get(timeout=patience_s)
            except queue.Empty:
                raise EnvFailure(f"the agent asked nothing and did not end for {patience_s:g} s") from None
            if isinstance(entry, Exchange):
                with self._lock:
                    entry.dropped = not entry.waiting
                if entry.dropped:
                    continue
            return entry

    def act(self, action: str) -> str:
        """Let the thread of the environment act in the world when it waits for the agent, and return the answer.

        `EnvFailure` if the episode is over, `TypeError` for an action that is not a text.
        """
        made = Act(plain_action(action))
        with self._lock:
            if self._closed:
                raise EnvFailure(_OVER)
            self._inbox.put(made)
        return made.answer.result()

    def end(self, ended: Ended) -> None:
        self._inbox.put(ended)

    def close(self) -> None:
        """Refuse the unanswered request and all later ones."""
        self._forget()
        with self._lock:
            self._closed = True
        with suppress(queue.Empty):
            while True:
                if isinstance(entry := self._inbox.get_nowait(), Act):
                    entry.answer.set_exception(EnvFailure(_OVER))
        for exchange in self._asked:
            if exchange.result is None:
                exchange.resolve(Refused(410, _OVER))


class Gateway:
    """The server, in a separate thread.

    Args:
        listener: where it listens, from `serve.server.bind`; by default a free port of this machine.
        on_new: called, in the server's thread, with a session that a key which is not known has opened; None refuses
            such keys.
        most: how many sessions may be open; a new key beyond them is answered with 429 and the reason.
    """

    def __init__(
        self,
        listener: socket.socket | None = None,
        on_new: Callable[[AgentSession], None] | None = None,
        most: int | None = None,
    ) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._on_new, self._most = on_new, most
        models = {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "agent-gym"}]}
        routes = [Route(prefix + "/v1/{what:path}", self._answer, methods=["POST"]) for prefix in ("", "/{key}")]
        routes += [get(prefix + "/v1/models", lambda: models) for prefix in ("", "/{key}")]
        self._server = Server(listener or bind(port=0), routes)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.serve_forever, name="gateway", daemon=True)
        self._thread.start()

    def open(self, key: str | None = None) -> AgentSession:
        """Open a session under a key, by default one that cannot be guessed, or return the one that is open."""
        key = key or secrets.token_urlsafe(16)
        forget = partial(self._sessions.pop, key, None)
        return self._sessions.setdefault(key, AgentSession(key, f"{self.url}/{key}", forget))

    @property
    def sessions(self) -> list[AgentSession]:
        """The open sessions."""
        return [*self._sessions.values()]

    def close(self) -> None:
        """Close all sessions and the server."""
        global _shared
        with _LOCK:
            _shared = None if _shared is self else _shared
        for session in self.sessions:
            session.close()
        self._server.__exit__()

    def _key(self, request: Request) -> str:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        return request.path_params.get("key") or request.headers.get("x-api-key") or bearer

    def _session(self, request: Request) -> AgentSession:
        key = self._key(request)
        if session := self._sessions.get(key):
            return session
        if not self._on_new:
            raise Refused(401, "no episode has this key; it may be over")
        # A key that a client was given for another server must not get into files.
        name = "key-" + hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
        if name not in self._sessions:
            if self._most is not None and len(self._sessions) >= self._most:
                live = f"{self._most} conversations are live, as many as this gateway holds"
                cure = "when one has ended, or start it with a larger --max_conversations or a smaller --idle"
                raise Refused(429, f"{live}: try again {cure}")
            self._on_new(self.open(name))
        return self._sessions[name]

    async def _answer(self, request: Request) -> Response:
        what = request.path_params["what"]
        protocol = PROTOCOLS.get(what, chat.PROTOCOL)
        try:
            if what not in PROTOCOLS:
                raise Refused(404, f"there is no /v1/{what}; there are {', '.join(PROTOCOLS)}")
            content = await read_body(request, MAX_REQUEST_BYTES, "shorten the conversation")
            known = self._sessions.get(self._key(request))
            body, asked = (known.bodies if known else Bodies()).read(protocol, content)
            again = request.headers.get(_RETRIED, "0") != "0"
            digest = hashlib.blake2b(what.encode() + b"\0" + content).digest()
            exchange = self._session(request).ask(digest, asked, again)
            answer = await _result(request, exchange)
        except Refused as refused:
            return json_response(protocol.error(refused.status, str(refused)), refused.status)
        except HTTPException as error:
            return json_response(protocol.error(error.status_code, str(error.detail)), error.status_code)
        if body.get("stream"):
            from starlette.responses import StreamingResponse

            events = _send(request, exchange, protocol.events(body, answer))
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        exchange.delivered = True
        return json_response(protocol.write(body, answer))


async def _send(request: Request, exchange: Exchange, events: Iterator[str]) -> AsyncIterator[str]:
    """Send events; the answer is delivered when the last of them is sent to a client that is still there."""
    for event in events:
        yield event
        if await request.is_disconnected():  # data sent then is lost without an error
            return
    exchange.delivered = True


async def _result(request: Request, exchange: Exchange) -> Answer:
    """Wait for the answer; `Refused` if there is none, or if the client goes away first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    ends = [asyncio.ensure_future(end) for end in (exchange.done.wait(), gone())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        exchange.waiting -= 1
        for end in ends:
            end.cancel()
    if exchange.result is None:
        raise Refused(499, "the client went away")
    if isinstance(exchange.result, Refused):
        raise exchange.result
    return exchange.result


def shared_gateway(gateway: Gateway | None = None) -> Gateway:
    """Return the gateway of this process, which starts with the first episode; one that is given takes its place."""
    global _shared
    with _LOCK:
        _shared = gateway or _shared or Gateway()
        return _shared
