"""A search engine that runs somewhere else, so that one index serves many processes and machines."""

from __future__ import annotations

import http.client
import json
import time
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.retrieval.base import Hit
from agent_gym.retrieval.protocol import MAX_QUERIES, read_response
from agent_gym.retrieval.shared import Shared, checked

_FIRST_PAUSE_S = 0.2


class RemoteRetriever(Shared):
    """Asks a server that speaks Search-R1's protocol. Safe to call from several threads; connections are kept open.

    Args:
        url: "http://host:8000", or with a path other than `/retrieve`.
        timeout_s: seconds to wait for a connection, and for each piece of an answer.
        retries: how often to try again when the connection fails, after 0.2, 0.4, 0.8 seconds and so on. What the
            server answers is final, also an error.

    Raises:
        ConfigError: for an address that is none.
    """

    live = ("_idle",)

    def __init__(self, url: str, *, timeout_s: float = 30.0, retries: int = 3) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"url is {url!r}; it must be like 'http://127.0.0.1:8000' or 'http://host:8000/retrieve'")
        if not timeout_s > 0 or retries < 0:
            raise ConfigError(f"timeout_s is {timeout_s} and retries {retries}; above 0 seconds and at least 0 times")
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        self._path = parts.path if parts.path not in ("", "/") else "/retrieve"
        if parts.query:
            self._path += f"?{parts.query}"
        super().__init__()

    def renew(self) -> None:
        """Begin without connections: two processes on one would read each other's answers."""
        self._idle: deque[http.client.HTTPConnection] = deque()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Ask the server, with at most 64 queries at a time."""
        queries = checked(queries, k)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), MAX_QUERIES):
            asked = queries[start : start + MAX_QUERIES]
            request = {"queries": asked, "topk": k, "return_scores": True}
            data = self._post(json.dumps(request).encode())
            try:
                found += [hits[:k] for hits in read_response(data, len(asked))]
            except ValueError as error:
                raise EnvFailure(f"{self.url} does not speak Search-R1's protocol: {error}") from error
        return found

    def _post(self, body: bytes) -> bytes:
        failures = 0
        while True:
            connection, fresh = self._connection()
            try:
                connection.request("POST", self._path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not fresh and isinstance(error, ConnectionError):
                    continue  # the server closed a connection that nobody used for a while: no failure
                failures += 1
                if failures > self.retries:
                    raise EnvFailure(
                        f"the search server {self.url} cannot be reached ({type(error).__name__}: {error}), tried "
                        f"{failures} times; start one with `agent-gym serve search`, or correct the address"
                    ) from error
                time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1))
            except BaseException:
                connection.close()  # interrupted: the answer would be read by whoever comes next
                raise
            else:
                if answer.will_close:
                    connection.close()
                else:
                    self._idle.append(connection)
                if answer.status != 200:
                    said = data[:300].decode(errors="replace")
                    raise EnvFailure(f"the search server {self.url} answered {answer.status} {answer.reason}: {said}")
                return data

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Take the connection that was used last, or make one; say whether it is new."""
        try:
            return self._idle.pop(), False
        except IndexError:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            return kind(self._host, self._port, timeout=self.timeout_s), True
