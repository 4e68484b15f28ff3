"""vLLM in a separate process that belongs to one trainer process: started by it, on its device, and ended with it.

An engine in the trainer's process gives up the interpreter's lock at each of the hundreds of calls of a decode step,
and waits 5 ms to have it back whenever an environment computes in Python. Here both have separate locks
(benchmarks/engine_process.py). It costs a start of vLLM, a second copy of its libraries in memory, and HTTP.

The server listens at a socket in a folder of this user, so that no port has to be found. Weights go through this
machine's memory.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Generation, Request
from agent_gym.policies.vllm import is_cpu_build, set_environment
from agent_gym.policies.vllm.buckets import Weights
from agent_gym.policies.vllm.launch import ENVIRONMENT, VARIABLE, end_group, server_command, start_server
from agent_gym.policies.vllm.server import VLLMServerPolicy

_URL = "http://localhost"
_LINES = 12  # of its log, for an error
_RAISED = re.compile(r"[\w.]*(?:Error|Exception): .+(?:\n  .+)*")
# Prefixes of variables with which launchers make the trainer a member of a group, and one for an engine in its process.
_NOT_OURS = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ TORCHELASTIC_ VLLM_ENABLE_V1_MULTIPROCESSING".split()


class VLLMChildPolicy(VLLMServerPolicy):
    """Samples from a vLLM server that this process starts.

    Each rank of a distributed run has its own, and hands its weights to it. The arguments are the ones of `VLLMPolicy`;
    images are not served. `ConfigError`, with the last lines of vLLM's log, when it does not start.
    """

    def __init__(
        self,
        model: str | Path,
        eos_token_ids: Collection[int | None],
        *,
        context: int,
        max_num_seqs: int = 64,
        dtype: str | None = None,
        kv_cache_gib: float = 1.0,
        gpu_memory_utilization: float = 0.4,
        sleep: bool = False,
        seed: int = 0,
        start_timeout_s: float = 240.0,
    ) -> None:
        self._sleeps = sleep and not is_cpu_build()
        self._asleep: set[str] = set()  # whose memory was given up, by vLLM's names
        self._folder = Path(tempfile.mkdtemp(prefix="agent-gym-engine-"))
        socket, key = str(self._folder / "socket"), secrets.token_urlsafe(32)
        further = ["--uds", socket, "--disable-uvicorn-access-log", *([] if dtype is None else ["--dtype", dtype])]
        if not is_cpu_build():
            further += ["--gpu-memory-utilization", str(gpu_memory_utilization)]
            further += ["--enable-sleep-mode"] if self._sleeps else []
        sizes: dict[str, Any] = {"context": context, "max_num_seqs": max_num_seqs, "kv_cache_gib": kv_cache_gib}
        command = server_command(str(model), host="localhost", port=0, **sizes, further=further)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the engine may take memory that the trainer has freed
        self._server = _start(command, self._folder / "log.txt", key)
        # Also where the trainer ends without closing its policy.
        self._end = weakref.finalize(self, _end, self._server, self._folder)
        by: dict[str, Any] = {"key": key, "socket": socket}
        try:
            super().__init__([_URL], eos_token_ids, context=context, seed=seed, start_timeout_s=start_timeout_s, **by)
        except BaseException:
            self._end()
            raise
        self._sends = True

    def submit(self, request: Request) -> None:
        if self._asleep:
            raise RolloutError("the engine sleeps; call sync before submit")
        super().submit(request)

    def sync(self, named_weights: Weights) -> None:
        with self._explained():
            super().sync(named_weights)

    def wake(self, what: str = "weights") -> None:
        """Take back the memory of weights given up by `sleep`; `sync` does so too, and then takes the rest."""
        if what in self._asleep:
            torch.cuda.empty_cache()  # the allocator of torch keeps memory that the trainer freed
            self._call(self._post(_URL, f"/wake_up?tags={what}", {}))
            self._asleep.remove(what)

    def sleep(self) -> None:
        """Give back the memory of weights and cache; on a CPU, or without `sleep=True`, do nothing."""
        if self._sleeps and not self._asleep:
            self._call(self._post(_URL, "/sleep?level=2", {}))
            self._asleep = {"weights", "kv_cache"}

    def close(self) -> None:
        super().close()
        self._end()

    def poll(self) -> list[Generation]:
        with self._explained():
            return super().poll()

    def interrupt(self) -> list[Generation]:
        with self._explained():
            return super().interrupt()

    def _hand_over(self, weights: Weights) -> None:
        self.wake()
        super()._hand_over(weights)
        self.wake("kv_cache")  # last: the gathered weights are free again

    def _check_start(self) -> None:
        if self._server.poll() is not None:
            raise ConfigError(f"vLLM does not start in a separate process; {self._last_words()}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the log's errors to an error if the server has ended, and end its remaining processes."""
        try:
            yield
        except RolloutError as error:
            try:
                self._server.wait(2.0)  # its parts end one after the other
            except subprocess.TimeoutExpired:
                raise error from None
            end_group(self._server)  # an engine whose server was killed keeps running, and holds its memory
            raise RolloutError(
                "the engine's process has ended; the last checkpoint is whole, resume with --resume_from_checkpoint; "
                f"{self._last_words()}"
            ) from error

    def _last_words(self) -> str:
        log = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        # Most lines are tracebacks of other processes that ended then. The first error is the cause.
        raised = list(dict.fromkeys(_RAISED.findall(log)))[:_LINES]
        last = log.splitlines()[-_LINES:] or ["(it is empty)"]
        return "\n".join(["the errors in its log:", *raised] if raised else ["the last lines of its log:", *last])


def _start(command: list[str], log: Path, key: str) -> subprocess.Popen[bytes]:
    set_environment()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(tuple(_NOT_OURS))}
    environment |= {**ENVIRONMENT, VARIABLE: key}
    if torch.cuda.is_available():
        here, visible = torch.cuda.current_device(), os.environ.get("CUDA_VISIBLE_DEVICES")
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[here].strip() if visible else str(here)
    with log.open("wb") as file:
        return start_server(command, environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    end_group(server)
    shutil.rmtree(folder, ignore_errors=True)
