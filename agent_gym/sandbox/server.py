"""The sandbox as a server that speaks SandboxFusion's `/run_code`, so that one machine runs the programs of many.

Its clients (`RemoteSandbox`, those of verl and others) need not know more than its address. What it does not do is
said, never ignored: files to put in or take out, and other languages.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Execution, Limits, SandboxError
from agent_gym.sandbox.local import LocalSandbox
from agent_gym.serving import BadRequest, JsonHandler, JsonServer, json_object

_LARGEST = 1e9  # of a limit that a client asks for; any number above the server's limits means the same


class SandboxServer(JsonServer):
    """Answers `POST /run_code`, `GET /v1/ping` and `GET /health`, in the thread that calls `serve_forever`.

    Args:
        sandbox: runs the programs; its slots say how many at once, and what a request asks for can only be less than
            its limits.
        listener: where to listen, from `agent_gym.serving.bind`.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    def __init__(self, sandbox: LocalSandbox, listener: socket.socket) -> None:
        self.sandbox = sandbox
        about = {"slots": sandbox.slots, "limits": asdict(sandbox.limits), "report": sandbox.report}
        super().__init__(listener, _Handler, about)


class _Handler(JsonHandler):
    server: SandboxServer

    places = "there are POST /run_code, GET /v1/ping and GET /health"
    max_request_bytes = 16 << 20
    too_long = "send a shorter program"

    def look(self, path: str) -> Any:
        return "pong" if path == "/v1/ping" else super().look(path)

    def work(self, path: str, body: bytes) -> Mapping[str, Any]:
        if path != "/run_code":
            raise BadRequest(HTTPStatus.NOT_FOUND, self.places)
        request = json_object(body, '{"code": "print(1)", "language": "python"}')
        code, stdin, seed, limits = _read(request, self.server.sandbox.limits)
        try:
            done = self.server.sandbox.run(code, seed=seed, stdin=stdin, limits=limits)
        except SandboxError as error:
            return _answer("SandboxError", None) | {"message": str(error)}
        return _answer("Success" if done.succeeded else "Failed", done)


def _read(request: dict[str, Any], most: Limits) -> tuple[str, str, int, Limits]:
    code, stdin = request.get("code"), request.get("stdin") or ""
    if not isinstance(code, str) or not isinstance(stdin, str):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "code must be a text, and stdin a text or null")
    language = request.get("language", "python")
    if language != "python":
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"language is {language!r}; this server runs python only")
    for name in ("files", "fetch_files"):
        if request.get(name):
            raise BadRequest(
                HTTPStatus.BAD_REQUEST, f"{name} is not supported: programs here read and write no files; use stdin"
            )
    seed = request.get("seed") or 0
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"seed is {seed!r}; it must be a whole number")
    wall, memory = _number(request, "run_timeout"), _number(request, "memory_limit_MB")
    # A client of ours tells both; to others a time limit is one of any time.
    cpu = _number(request, "cpu_limit_s") or wall
    try:
        limits = most.tightened(cpu, wall, None if memory is None else int(memory))
    except ConfigError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, str(error)) from error
    return code, stdin, seed, limits


def _number(request: dict[str, Any], name: str) -> float | None:
    """A limit; nothing, 0 and -1 (SandboxFusion's own default) mean that there is none beside the server's."""
    value = request.get(name)
    if value is None:
        return None
    none = (0, -1)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 < value < math.inf or value in none):
        said = f"{name} is {value!r}; it must be a finite number above 0, or 0 or -1 for no limit of one's own"
        raise BadRequest(HTTPStatus.BAD_REQUEST, said)
    return None if value in none else float(min(value, _LARGEST))


def _answer(status: str, done: Execution | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"status": status, "message": "", "compile_result": None, "run_result": None}
    if done is not None:
        late = done.status in ("cpu_limit", "wall_limit")
        answer["run_result"] = {
            "status": "TimeLimitExceeded" if late else "Finished",
            "execution_time": done.cpu_seconds,
            "return_code": done.exit_code,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }
        answer["agent_gym"] = asdict(done)
    return answer | {"executor_pod_name": None, "files": {}}
