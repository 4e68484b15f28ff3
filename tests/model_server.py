"""Real vLLM servers for the tests: started as `agent-gym serve model` starts them, on free ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent_gym.policies.vllm.launch import ENVIRONMENT, server_command


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def model_server(
    model: Path, log: Path, *, context: int = 512, further: Sequence[str] = ()
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a server that has loaded, and its process; `further` are arguments of vLLM."""
    with model_servers(model, [log], context=context, further=further) as [server]:
        yield server


@contextmanager
def model_servers(
    model: Path, logs: list[Path], *, context: int = 512, further: Sequence[str] = ()
) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """Yield the addresses of servers that have loaded, one per log file, and their processes."""
    with ExitStack() as stack:
        started = [stack.enter_context(_started(model, log, context, further)) for log in logs]
        deadline = time.monotonic() + 600
        for (url, process), log in zip(started, logs, strict=True):
            while not _lives(url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                time.sleep(0.5)
        yield started


@contextmanager
def _started(
    model: Path, log: Path, context: int, further: Sequence[str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    sizes: dict[str, Any] = {"context": context, "max_num_seqs": 64, "kv_cache_gib": 0.1}
    command = server_command(str(model), host="127.0.0.1", port=port, **sizes, further=further)
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # which an engine in this process has set
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
    with log.open("wb") as file:
        # A session of its own, so that its engine and workers can be ended with it.
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lives(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
