"""The other end of a server of JSON over HTTP: what the clients of search engines and sandboxes share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3

from agent_gym.errors import AgentGymError, ConfigError, EnvFailure
from agent_gym.shared import Shared

RETRIES = 6
"""They take 11 seconds in all: a server may be ended and started again in that time."""

_BUSY = (429, 502, 503, 504)  # the server, or what stands before it, did not take the request
_BACKOFF_S = 0.2
_LONGEST_PAUSE_S = 5.0


class JsonClient(Shared):
    """Posts to one address. Safe to call from several threads; connections are kept open, and each process has its own.

    Args:
        url: "http://host:8000", or with a path other than the usual one.
        path: the usual one.
        server: what it is, for messages: "search server".
        command: what starts one, for messages.
        retries: how often to try again when a connection cannot be made or the server is too busy: at once, then after
            0.4, 0.8 seconds and so on, at most 5. Anything else that the server answers is final.
        repeats: how often to try again, at most `retries` times, when a connection breaks or falls silent after the
            request was sent, so that the server may have done what was asked already.
        connections: how many to keep.
        headers: sent with each request, for example an API key.
        failure: what to raise when the server cannot be reached or fails.

    Raises:
        ConfigError: for an address that is none.
    """

    live = ("_pool",)

    def __init__(
        self,
        url: str,
        path: str,
        *,
        server: str,
        command: str,
        retries: int,
        repeats: int,
        connections: int,
        headers: Mapping[str, str] | None = None,
        failure: type[AgentGymError] = EnvFailure,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"url is {url!r}; it must be like 'http://127.0.0.1:8000' or 'http://host:8000{path}'")
        self.url, self._connections, self._failure = url, connections, failure
        self._server, self._command = server, command
        self._tries, self._repeats = retries + 1, min(repeats, retries)
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._path = (parts.path if parts.path not in ("", "/") else path) + (f"?{parts.query}" if parts.query else "")
        self._retry = urllib3.Retry(
            total=None,
            connect=retries,
            status=retries,
            read=self._repeats,
            redirect=False,
            other=False,
            allowed_methods=None,
            status_forcelist=_BUSY,
            raise_on_status=False,
            backoff_factor=_BACKOFF_S,
            backoff_max=_LONGEST_PAUSE_S,
        )
        super().__init__()

    def renew(self) -> None:
        """Begin without connections: two processes on one would read each other's answers."""
        self._pool = urllib3.connection_from_url(self.url, maxsize=self._connections)

    def post(self, content: Any, timeout_s: float) -> bytes:
        """Send and wait for the answer; see `send`.

        Raises:
            EnvFailure: or what `failure` says, if the server cannot be reached or answers with an error.
        """
        answer = self.send(content, timeout_s)
        if answer.status != 200:
            raise self._failure(f"the {self._server} {self.url} answered {answer.status} {said(answer)}")
        return answer.data

    def send(self, content: Any, timeout_s: float, *, whole: bool = True) -> urllib3.BaseHTTPResponse:
        """Send and wait for an answer, whatever its status is.

        Args:
            content: anything that JSON holds.
            timeout_s: seconds to wait for a connection, and for each piece of an answer.
            whole: whether to wait for its body; else the caller reads the body and closes the answer.

        Raises:
            EnvFailure: or what `failure` says, if the server cannot be reached.
        """
        body = json.dumps(content).encode()
        try:
            timeout = urllib3.Timeout(timeout_s)
            return self._pool.urlopen(
                "POST",
                self._path,
                body,
                self._headers,
                self._retry,
                redirect=False,
                timeout=timeout,
                preload_content=whole,
            )
        except urllib3.exceptions.HTTPError as error:
            gave_up = isinstance(error, urllib3.exceptions.MaxRetryError)
            reason = (error.__cause__ or error) if gave_up else error
            begun = not isinstance(
                reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
            )
            tries = 1 if not gave_up else self._repeats + 1 if begun else self._tries
            raise self._failure(
                f"the {self._server} {self.url} cannot be reached ({type(reason).__name__}: {reason}), tried {tries} "
                f"times; start one with `{self._command}`, or correct the address"
            ) from error

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._pool.close()


def said(answer: urllib3.BaseHTTPResponse) -> str:
    """Return what a server that refused has said."""
    return f"{answer.reason}: {answer.data[:300].decode(errors='replace')}"
