"""Programs that run on another machine, at a server that speaks SandboxFusion's `/run_code`.

See https://github.com/bytedance/SandboxFusion. `agent-gym serve sandbox` is such a server; it adds a key "agent_gym" to
its answers, with the fields that this protocol lacks.
"""

from __future__ import annotations

import json
import re
import threading
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Execution, Limits, SandboxError, shorten, status_of
from agent_gym.sandbox.session import Session
from agent_gym.search.base import ForkSafe
from agent_gym.serve.client import RETRIES, JsonClient

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REPEATS = 2  # a program changes nothing and may run again, but one that ends the server should not do so for ever
_SLACK_S = 60.0  # beyond a program's own time, for its turn in the server's queue


class RemoteSandbox(ForkSafe):
    """Asks a server. Safe to call from several threads; connections are kept open.

    The address is "http://host:8080", or has a path other than `/run_code`; `ConfigError` for anything else. The limits
    are sent with each program; the server may have lower ones. Of outputs no more is kept than they allow. Of requests
    `concurrency` run at the same time; others wait here. `retries` are for when a connection cannot be made or the
    server is too busy, see `JsonClient`. A program whose server was lost is run again, twice at most.
    """

    def __init__(
        self, url: str, *, limits: Limits | None = None, concurrency: int = 64, retries: int = RETRIES
    ) -> None:
        if concurrency < 1 or retries < 0:
            raise ConfigError(f"concurrency is {concurrency} and retries {retries}; at least 1 and at least 0")
        self.url, self.limits, self.concurrency, self.retries = url, limits or Limits(), concurrency, retries
        super().__init__()

    def renew(self) -> None:
        self._turn = threading.BoundedSemaphore(self.concurrency)
        self._client = JsonClient(
            self.url,
            "/run_code",
            server="sandbox server",
            command="agent-gym serve sandbox",
            retries=self.retries,
            repeats=_REPEATS,
            connections=self.concurrency,
            failure=SandboxError,
        )

    def run(self, code: str, *, seed: int = 0, stdin: str = "", limits: Limits | None = None) -> Execution:
        """Run a program; see `LocalSandbox.run`. A server other than ours does not know of seeds."""
        limits = limits or self.limits
        body = {
            # Lone surrogates are refused by many readers of JSON; no text of a program may be our failure.
            "code": _LONE_SURROGATE.sub("\ufffd", code),
            "language": "python",
            "run_timeout": limits.wall_seconds,
            "memory_limit_MB": limits.memory_mb,
            "stdin": _LONE_SURROGATE.sub("\ufffd", stdin),
            "cpu_limit_s": limits.cpu_seconds,
            "seed": seed,
        }
        with self._turn:
            data = self._client.post(body, limits.wall_seconds + _SLACK_S)
        try:
            return self._read(json.loads(data), limits)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise SandboxError(f"{self.url} does not speak SandboxFusion's protocol: {error!r}") from error

    def session(self, *, seed: int = 0) -> Session:
        """Raise `ConfigError`: the protocol has no programs that share names."""
        raise ConfigError(f"a remote sandbox ({self.url}) has no sessions; use sandbox='local' for them")

    def close(self) -> None:
        self._client.close()

    def _read(self, answer: dict[str, Any], limits: Limits) -> Execution:
        result: dict[str, Any] = answer.get("run_result") or {}
        if answer["status"] == "SandboxError" or result["status"] == "Error":
            raise SandboxError(f"the sandbox server {self.url} failed: {str(answer.get('message') or result)[:500]}")
        ours = answer.get("agent_gym")
        if ours is not None:
            return Execution(**ours)
        texts = [str(result.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr")]
        (stdout, less_out), (stderr, less_err) = (shorten(text, limits.output_bytes) for text in texts)
        late = result["status"] == "TimeLimitExceeded"
        code = None if late else int(result["return_code"])
        status = "wall_limit" if code is None else status_of(code, stderr)
        return Execution(status, stdout, stderr, code, float(result.get("execution_time") or 0), less_out or less_err)
