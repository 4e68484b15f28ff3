"""Programs that run on another machine, behind a server that speaks SandboxFusion's `/run_code`.

See https://github.com/bytedance/SandboxFusion. `agent-gym serve sandbox` is such a server; it adds a key
"agent_gym" to its answers, with what that protocol has no place for.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections import deque
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError
from agent_gym.sandbox import streams
from agent_gym.sandbox.base import Execution, Limits, SandboxError, Session

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_BUSY = (429, 502, 503, 504)  # the server, or what stands before it, did not take the request
_SLACK_S = 60.0  # beyond a program's own time, for its turn in the server's queue


class RemoteSandbox:
    """Asks a server. Safe to call from several threads; connections are kept open.

    Args:
        url: "http://host:8080", or with a path other than `/run_code`.
        limits: sent with each program; the server may have lower ones. Of outputs no more is kept than they say.
        concurrency: requests at the same time; others wait here.
        retries: how often to try again when a connection cannot be made or the server is too busy, after 0.2, 0.4, 0.8
            seconds and so on. Anything else that the server answers is final.

    Raises:
        ConfigError: for an address that is none.
    """

    def __init__(self, url: str, *, limits: Limits | None = None, concurrency: int = 64, retries: int = 5) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"url is {url!r}; it must be like 'http://127.0.0.1:8080' or 'http://host:8080/run_code'")
        if concurrency < 1 or retries < 0:
            raise ConfigError(f"concurrency is {concurrency} and retries {retries}; at least 1 and at least 0")
        self.url, self.limits, self.concurrency, self.retries = url, limits or Limits(), concurrency, retries
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, port
        self._path = parts.path if parts.path not in ("", "/") else "/run_code"
        self._renew()

    def run(self, code: str, *, seed: int = 0, stdin: str = "", limits: Limits | None = None) -> Execution:
        """Run a program; see `LocalSandbox.run`. A server other than ours does not know of seeds.

        Raises:
            SandboxError: if the server cannot be reached, or failed.
        """
        limits = limits or self.limits
        body = {
            # Lone surrogates are refused by many readers of JSON; nothing that a program says may be our failure.
            "code": _LONE_SURROGATE.sub("\ufffd", code),
            "language": "python",
            "run_timeout": limits.wall_seconds,
            "memory_limit_MB": limits.memory_mb,
            "stdin": _LONE_SURROGATE.sub("\ufffd", stdin),
            "cpu_limit_s": limits.cpu_seconds,
            "seed": seed,
        }
        self._own()
        with self._turn:
            data = self._post(json.dumps(body).encode(), limits.wall_seconds + _SLACK_S)
        try:
            answer = json.loads(data)
            return self._read(answer, limits)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SandboxError(f"{self.url} does not speak SandboxFusion's protocol: {error!r}") from error

    def session(self, *, seed: int = 0) -> Session:
        """Refuse: the protocol has no programs that share names.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"a remote sandbox ({self.url}) has no sessions; use sandbox='local' for them")

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._turn = threading.BoundedSemaphore(self.concurrency)
        self._idle: deque[http.client.HTTPConnection] = deque()

    def _own(self) -> None:
        """Begin anew in a forked process: two on one connection would read each other's answers."""
        if self._process != os.getpid():
            self._renew()

    def _read(self, answer: dict[str, Any], limits: Limits) -> Execution:
        if answer["status"] == "SandboxError":
            raise SandboxError(f"the sandbox server {self.url} failed: {str(answer.get('message'))[:500]}")
        result = answer["run_result"]
        if result["status"] == "Error":
            raise SandboxError(f"the sandbox server {self.url} failed: {str(answer.get('message') or result)[:500]}")
        ours = answer.get("agent_gym")
        if ours is not None:
            return Execution(**ours)
        texts = [str(result.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr")]
        (stdout, less_out), (stderr, less_err) = (streams.shorten(text, limits.output_bytes) for text in texts)
        seconds = float(result.get("execution_time") or 0.0)
        if result["status"] == "TimeLimitExceeded":
            return Execution("wall_limit", stdout, stderr, None, seconds, less_out or less_err)
        code = int(result["return_code"])
        status = streams.status_of(code, stderr)
        return Execution(status, stdout, stderr, code, seconds, less_out or less_err)

    def _post(self, body: bytes, timeout: float) -> bytes:
        failures = 0
        while True:
            try:
                connection, fresh = self._connection(timeout)
            except OSError as error:
                failures = self._pause(failures, error)
                continue
            try:
                connection.request("POST", self._path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not fresh and isinstance(error, ConnectionError):
                    continue  # the server closed a connection that nobody used for a while: no failure
                self._fail(error, failures)
            except BaseException:
                connection.close()  # interrupted: the answer would be read by whoever comes next
                raise
            if answer.will_close:
                connection.close()
            else:
                self._idle.append(connection)
            if answer.status == 200:
                return data
            said = data[:300].decode(errors="replace")
            refusal = SandboxError(f"the sandbox server {self.url} answered {answer.status}: {said}")
            if answer.status not in _BUSY:
                raise refusal
            failures = self._pause(failures, refusal)

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """Take the connection that was used last, or make one; say whether it is new."""
        try:
            connection, fresh = self._idle.pop(), False
        except IndexError:
            connection, fresh = self._kind(self._host, self._port, timeout=timeout), True
            connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection, fresh

    def _pause(self, failures: int, error: Exception) -> int:
        """Wait before the next try, or give up."""
        if failures >= self.retries:
            self._fail(error, failures)
        time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**failures))
        return failures + 1

    def _fail(self, error: Exception, failures: int) -> NoReturn:
        if isinstance(error, SandboxError):
            raise error
        raise SandboxError(
            f"the sandbox server {self.url} cannot be reached ({type(error).__name__}: {error}), tried {failures + 1} "
            "times; start one with `agent-gym serve sandbox`, or correct the address"
        ) from error

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        return _remake, (self.url, self.limits, self.concurrency, self.retries)


def _remake(url: str, limits: Limits, concurrency: int, retries: int) -> RemoteSandbox:
    return RemoteSandbox(url, limits=limits, concurrency=concurrency, retries=retries)
