"""The trainer's weights on their way to vLLM: into an engine's model, and before that to servers.

`WeightSender` belongs to rank 0 of a trainer. It hands weights to servers as files, in a folder that all see, or by a
broadcast (broadcast.py). `WeightReceiver` is the other end: `agent-gym serve model` gives the class to vLLM as
`--worker-extension-cls`, which mixes it into each of its workers.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.vllm import process
from agent_gym.policies.vllm.broadcast import Channel, buckets, open_store, own_address, reach_store

if TYPE_CHECKING:
    from agent_gym.policies.vllm.server import VLLMServerPolicy

Weights = Iterable[tuple[str, torch.Tensor]]
"""Names as in the checkpoint, and tensors on any device. Tied weights may come once or twice."""

TRANSFERS = ("auto", "files", "broadcast")
_SHARD_BYTES = 2 << 30  # what is held in memory besides the files
_MEMORY = Path("/dev/shm")


def replace_weights(worker: Any, named_weights: Weights, *, on_cpu: bool) -> None:
    """Replace every weight of the model of a `vllm.v1.worker.gpu_worker.Worker`; on a CPU, packed copies as well.

    What reading the weights raises goes through.

    Raises:
        RolloutError: if names or shapes are not those of the model, or do not cover it. Some weights may be replaced.
    """
    model = worker.model_runner.get_model()
    wanted = {name for name, _ in model.named_parameters()}
    loaded: set[str] = set()
    load_weights = model.load_weights

    def recording_load(weights: Weights) -> set[str]:
        loaded.update(load_weights(weights))
        return loaded

    # `reload_weights` only logs the names of weights that did not come, and keeps the old values for them. For
    # on-policy training that is a failure, so what came is counted here.
    model.load_weights = recording_load
    failures: list[Exception] = []

    def read() -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name, weight in named_weights:
                # Cloned, because a layer is processed when its last part has come, and by then a sharded trainer may
                # have freed the first.
                yield name, weight.detach().clone()
        except Exception as error:
            failures.append(error)
            raise

    try:
        # Not the method of the model runner: this one sets vLLM's configuration, which mixtures of experts and
        # quantized layers ask for when weights come.
        worker.reload_weights(weights_iterator=read())
    except Exception as error:  # each layer has errors of its own
        if failures:
            raise failures[0] from None
        raise RolloutError(f"vLLM does not know the trainer's weights: {type(error).__name__}: {error}") from error
    finally:
        del model.load_weights
    if missing := sorted(wanted - loaded):
        raise RolloutError(f"the trainer sent no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    if on_cpu:
        process.repack_head(model)


class WeightReceiver:
    """A part of `vllm.v1.worker.gpu_worker.Worker`; its methods are called by `POST /collective_rpc`.

    What fails is returned as {"error": why}: an exception would end the server.
    """

    model_runner: Any
    parallel_config: Any
    _channel: Channel | None = None

    def describe(self) -> dict[str, str]:
        return {"device": self.model_runner.device.type}

    def receive_files(self, folder: str) -> dict[str, str]:
        """Replace the model's weights by those in a folder, whose safetensors files hold every weight once."""
        return self._receive(_read(Path(folder)))

    def join_trainer(self, host: str, port: int, first_rank: int, size: int, backend: str) -> dict[str, str]:
        """Become a member of the trainer's group of `size`, in which this server's first worker has `first_rank`."""
        self._channel = None
        config = self.parallel_config
        rank = first_rank + config.data_parallel_index * config.world_size + config.rank
        try:
            self._channel = Channel(reach_store(host, port), rank, size, backend)
        except Exception as error:
            return {"error": f"no group with the trainer at {host}: {_words(error)}"}
        return {}

    def receive_broadcast(self) -> dict[str, str]:
        """Replace the model's weights by those that the trainer sends to the group."""
        if self._channel is None:
            return {"error": "the server is in no group with a trainer"}
        weights = self._channel.receive()
        answer = self._receive(weights)
        try:
            # The trainer sends to the end, also what this server has refused.
            for _ in weights:
                pass
        except Exception as error:
            answer = answer or {"error": _words(error)}
        return answer

    def _receive(self, weights: Weights) -> dict[str, str]:
        on_cpu = self.model_runner.device.type == "cpu"
        try:
            if on_cpu:
                process.install_sampler(self.model_runner)
                torch.compiler.set_stance("force_eager")  # see process.eager
            replace_weights(self, weights, on_cpu=on_cpu)
        except Exception as error:
            return {"error": _words(error)}
        return {}


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"


class WeightSender:
    """Hands weights to the workers of servers.

    Args:
        transfer: "files"; "broadcast", by NCCL where trainer and servers are on GPUs and by gloo elsewhere; or "auto",
            which broadcasts between GPUs if they can reach each other, and writes files otherwise.
        folder: where files are handed over, which all servers must see; None for this machine's memory.
    """

    def __init__(self, servers: VLLMServerPolicy, transfer: str, folder: str | Path | None) -> None:
        if transfer not in TRANSFERS:
            raise ConfigError(f"weights_transfer is {transfer!r}; allowed: {', '.join(TRANSFERS)}")
        self._servers, self._folder = servers, folder
        self._transfer = "files" if folder is not None and transfer == "auto" else transfer
        self._channel: Channel | None = None

    def send(self, named_weights: Weights) -> None:
        """Replace the weights of all servers, or raise `RolloutError`; the caller then reads what is left of them."""
        if self._transfer != "files" and self._channel is None:
            self._channel = self._join()
        if self._channel is None:
            with in_files(named_weights, self._folder) as folder:
                self._on_all("receive_files", {"folder": str(folder)}).result()
            return
        channel = self._channel
        taken = self._on_all("receive_broadcast", {})
        # Where a server has died, NCCL would wait for it: its connection, which has broken, ends the wait.
        taken.add_done_callback(lambda future: channel.close() if future.exception() else None)
        try:
            channel.send(named_weights)
        except RuntimeError as error:
            self.close()
            # A server that can report what happened knows more than the broken group.
            taken.result()
            raise RolloutError(f"the weights could not be broadcast: {error}") from error
        taken.result()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _on_all(self, method: str, arguments: dict[str, Any]) -> Future[list[Any]]:
        return self._servers.call_workers(method, [arguments] * len(self._servers.urls))

    def _join(self) -> Channel | None:
        """Make a group with all workers; None if there is to be none."""
        devices = [worker["device"] for workers in self._on_all("describe", {}).result() for worker in workers]
        nccl = torch.cuda.is_available() and set(devices) == {"cuda"}
        if self._transfer == "auto" and not nccl:
            self._transfer = "files"
            return None
        sizes = self._servers.world_sizes()
        first_ranks = list(itertools.accumulate(sizes[:-1], initial=1))
        store = open_store(own_address(self._servers.urls))
        group = {"host": store.host, "port": store.port, "size": 1 + sum(sizes), "backend": "nccl" if nccl else "gloo"}
        joined = self._servers.call_workers("join_trainer", [{**group, "first_rank": rank} for rank in first_ranks])
        try:
            channel = Channel(store, 0, group["size"], group["backend"])
            joined.result()
        except RuntimeError as error:  # of torch, and RolloutError of a worker
            if self._transfer == "broadcast":
                raise RolloutError(f"trainer and servers cannot reach each other for a broadcast: {error}") from error
            warnings.warn(f"weights go through files, because a broadcast is not possible: {error}", stacklevel=2)
            self._transfer = "files"
            return None
        return channel


@contextmanager
def in_files(named_weights: Weights, folder: str | Path | None) -> Iterator[Path]:
    """Write weights to a new folder in `folder` or this machine's memory, and remove it afterwards."""
    from safetensors.torch import save_file

    place = folder or (_MEMORY if _MEMORY.is_dir() else None)
    made: Path | None = None
    try:
        try:
            made = Path(tempfile.mkdtemp(prefix="agent-gym-weights-", dir=place))
            for number, shard in enumerate(buckets(named_weights, _SHARD_BYTES, torch.device("cpu"))):
                save_file(shard, made / f"{number:05d}.safetensors")
        except Exception as error:  # a full disk has many classes
            raise RolloutError(f"the weights cannot be written to {place}: {error}") from error
        yield made
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RolloutError(f"the server sees no weights in {folder}; trainer and server must share that folder")
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  (it is no dictionary)
                yield name, shard.get_tensor(name)
