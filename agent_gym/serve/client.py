"""The client of a server of JSON over HTTP: the common part of the clients of search engines and sandboxes."""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from agent_gym.errors import AgentGymError, ConfigError, EnvFailure

if TYPE_CHECKING:
    import httpx

RETRIES = 6
"""They take 11 seconds in all: a server may be ended and started again in that time."""

_BUSY = (429, 502, 503, 504)  # the server, or a proxy before it, did not take the request
_BACKOFF_S = 0.2
_LONGEST_PAUSE_S = 5.0
_KEEP_S = 20.0  # an idle connection is not used again after so long; a server of ours closes it after 30 s


@dataclass(eq=False)
class JsonClient:
    """Posts to one address. Safe to call from several threads of one process; connections are kept open.

    A forked process must make another one: two processes on one connection would read each other's answers.
    `ConfigError` for an address that is none.
    """

    url: str  # "http://host:8000", or with a path other than the usual one
    path: str  # the usual one
    server: str  # its kind, for messages: "search server"
    command: str  # the command that starts one, for messages
    # How often to try again when a connection cannot be made or the server is too busy: at once, then after 0.4, 0.8
    # seconds and so on, at most 5. Anything else that the server answers is final.
    retries: int
    # How often, within these, when a connection breaks or is silent after the request was sent, so that the server may
    # have done its work already.
    repeats: int
    connections: int  # how many to keep
    failure: type[AgentGymError] = EnvFailure  # the error to raise when the server cannot be reached or fails

    def __post_init__(self) -> None:
        parts = split_address(self.url, self.path)
        self._address = (parts._replace(path=self.path) if parts.path in ("", "/") else parts).geturl()
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {b64encode(user).decode()}"
        # A transport and no client, which takes three times the CPU for a request; and one per connection, because
        # threads that share a pool wait for its lock, and 64 of them take five times the CPU (httpx 0.28).
        self._idle: list[httpx.HTTPTransport] = []

    def post(self, content: Any, timeout_s: float) -> bytes:
        """Send JSON and return the body of the answer; wait so long for a connection, and for each piece of the answer.

        Raises `failure` if the server cannot be reached or answers with an error.
        """
        import httpx

        body, tries, repeats = json.dumps(content).encode(), 0, 0
        while True:
            tries += 1
            try:
                answer = self._send(body, timeout_s)
            except httpx.RequestError as error:
                repeats += not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if tries > self.retries or repeats > self.repeats:
                    raise self.failure(
                        f"the {self.server} {self.url} cannot be reached ({type(error).__name__}: {error}), tried "
                        f"{tries} times; start one with `{self.command}`, or correct the address"
                    ) from error
            else:
                if answer.status_code == 200:
                    return answer.content
                if answer.status_code not in _BUSY or tries > self.retries:
                    reason = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:300]}"
                    raise self.failure(f"the {self.server} {self.url} answered {reason}")
            if tries > 1:
                time.sleep(min(_BACKOFF_S * 2 ** (tries - 1), _LONGEST_PAUSE_S))

    def _send(self, body: bytes, timeout_s: float) -> httpx.Response:
        import httpx

        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        request = httpx.Request(
            "POST", self._address, headers=self._headers, content=body, extensions={"timeout": timeouts}
        )
        try:
            transport = self._idle.pop()
        except IndexError:
            # The certificates of the system; reading them takes a while, and plain HTTP needs none.
            verify = ssl.create_default_context() if self._address.startswith("https") else False
            limits = httpx.Limits(keepalive_expiry=_KEEP_S)
            transport = httpx.HTTPTransport(verify=verify, limits=limits, trust_env=False)
        try:
            with closing(transport.handle_request(request)) as answer:
                answer.read()
            return answer
        finally:
            if len(self._idle) < self.connections:
                self._idle.append(transport)
            else:
                transport.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def split_address(url: str, path: str) -> SplitResult:
    """Return the parts of an address; `ConfigError`, which names the usual path, for one that is none."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise ConfigError(f"url is {url!r}; it must be like 'http://127.0.0.1:8000' or 'http://host:8000{path}'")
    return parts
