"""A search engine and a sandbox as servers, so that one machine searches, or runs programs, for many.

They speak Search-R1's `/retrieve` and SandboxFusion's `/run_code`, so that other clients need only the address. A
server refuses unsupported requests and never ignores them: files to put in or take out, and other languages.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import SandboxError
from agent_gym.sandbox.local import LocalSandbox
from agent_gym.search.base import Retriever
from agent_gym.search.engines import response
from agent_gym.serve.server import HTTPException, Server, bind, get, post

__all__ = ["SandboxServer", "SearchServer", "bind"]

# A full batch of the longest queries, with twelve bytes for an emoji in JSON, and some room.
MAX_REQUEST_BYTES = 16 << 20
MAX_TOPK = 1000
_LARGEST = 1e9  # of a limit that a client asks for; any number above the server's limits means the same


class SearchServer(Server):
    """Answers `POST /retrieve` and `GET /health`, which has `about`; `topk` is for requests without a number.

    Many threads call the engine, so it is best wrapped in a `MicroBatcher`.
    """

    def __init__(
        self, retriever: Retriever, listener: socket.socket, *, topk: int = 3, about: Mapping[str, Any] | None = None
    ) -> None:
        self.retriever, self.topk = retriever, topk
        example = '{"queries": ["..."], "topk": 3}'
        retrieve = post("/retrieve", self._retrieve, example, MAX_REQUEST_BYTES, "send fewer or shorter queries")
        super().__init__(listener, [retrieve], about)

    def _retrieve(self, request: dict[str, Any]) -> dict[str, Any]:
        queries, topk, scores = request.get("queries"), request.get("topk"), request.get("return_scores")
        topk, scores = self.topk if topk is None else topk, False if scores is None else scores
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise HTTPException(400, "queries must be a list of texts")
        if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
            raise HTTPException(400, f"topk is {topk!r}; it must be a whole number from 1 to {MAX_TOPK}")
        if not isinstance(scores, bool):
            raise HTTPException(400, f"return_scores is {scores!r}; it must be true or false")
        return response(self.retriever.search(queries, topk), scores)


class SandboxServer(Server):
    """Answers `POST /run_code`, `GET /v1/ping` and `GET /health`; a request can only lower the sandbox's limits."""

    def __init__(self, sandbox: LocalSandbox, listener: socket.socket) -> None:
        self.sandbox = sandbox
        example = '{"code": "print(1)", "language": "python"}'
        run_code = post("/run_code", self._run_code, example, MAX_REQUEST_BYTES, "send a shorter program")
        about = {"slots": sandbox.slots, "limits": asdict(sandbox.limits), "report": sandbox.report}
        super().__init__(listener, [run_code, get("/v1/ping", lambda: "pong")], about)

    def _run_code(self, request: dict[str, Any]) -> dict[str, Any]:
        code, stdin, seed = request.get("code"), request.get("stdin") or "", request.get("seed") or 0
        if not isinstance(code, str) or not isinstance(stdin, str):
            raise HTTPException(400, "code must be a text, and stdin a text or null")
        language = request.get("language", "python")
        if language != "python":
            raise HTTPException(400, f"language is {language!r}; this server runs python only")
        for name in ("files", "fetch_files"):
            if request.get(name):
                raise HTTPException(400, f"{name} is not supported: programs here read and write no files; use stdin")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise HTTPException(400, f"seed is {seed!r}; it must be a whole number")
        wall, memory = _limit(request, "run_timeout"), _limit(request, "memory_limit_MB")
        # A client of ours sends both; for others a time limit is one of any time.
        cpu = _limit(request, "cpu_limit_s") or wall
        answer: dict[str, Any] = dict.fromkeys(("compile_result", "run_result", "executor_pod_name"))
        answer |= {"message": "", "files": {}}
        try:
            lower = {"cpu_seconds": cpu, "wall_seconds": wall, "memory_mb": memory and max(int(memory), 1)}
            limits = self.sandbox.limits.tightened(**lower)
            done = self.sandbox.run(code, seed=seed, stdin=stdin, limits=limits)
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error
        except SandboxError as error:
            return answer | {"status": "SandboxError", "message": str(error)}
        return answer | {
            "status": "Success" if done.succeeded else "Failed",
            "run_result": {
                "status": "TimeLimitExceeded" if done.status in ("cpu_limit", "wall_limit") else "Finished",
                "execution_time": done.cpu_seconds,
                "return_code": done.exit_code,
                "stdout": done.stdout,
                "stderr": done.stderr,
            },
            "agent_gym": asdict(done),
        }


def _limit(request: dict[str, Any], name: str) -> float | None:
    """Read a limit; null, 0 and -1 (SandboxFusion's own default) mean that there is none but the server's."""
    value = request.get(name)
    if value is None or (value in (0, -1) and not isinstance(value, bool)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        allowed = "a finite number above 0, or 0 or -1 for no limit of one's own"
        raise HTTPException(400, f"{name} is {value!r}; it must be {allowed}")
    return float(min(value, _LARGEST))
