"""The trainer's weights on their way to vLLM servers.

Weights travel in buckets (buckets.py): while the servers take one, the trainer gathers the next, so that it holds two
and never the model. They have the engine's type, which halves the bytes where a model is trained in float32 and served
in bfloat16.

`WeightSender` belongs to rank 0 of a trainer. It hands buckets over in memory of a GPU that both are on, by a broadcast
(broadcast.py), or in files in a folder that all see. `WeightReceiver` is the other end: `agent-gym serve model` gives
the class to vLLM as `--worker-extension-cls`, which mixes it into each of its workers.

vLLM's own engines for this (`vllm.distributed.weight_transfer`) take no weights on CPUs, keep the trainer's type, and
do not report when a weight has not come. Its "nccl" wants all shapes before the first weight is gathered; its "ipc"
wants a bucket for the largest weight, has one and not two, and gathers the weights that it sends from all ranks of the
trainer, each of which has its own server here.
"""

from __future__ import annotations

import itertools
import secrets
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.vllm import process
from agent_gym.policies.vllm.broadcast import Channel, open_store, own_address, reach_store
from agent_gym.policies.vllm.buckets import (
    Address,
    Bucket,
    Contents,
    FileBucket,
    Finder,
    SharedBucket,
    Weights,
    card,
    pack,
    unpack,
)
from agent_gym.policies.vllm.reload import Reload

if TYPE_CHECKING:
    from agent_gym.policies.vllm.server import VLLMServerPolicy

TRANSFERS = ("auto", "files", "broadcast")


class WeightReceiver:
    """A part of `vllm.v1.worker.gpu_worker.Worker`; its methods are called by `POST /collective_rpc`.

    An error is returned as {"error": why}: an exception would end the server.
    """

    model_runner: Any
    parallel_config: Any
    _channel: Channel | None = None
    _reload: Reload | None = None
    _finder: Finder | None = None  # as long as weights come
    _memory: torch.Tensor | None = None  # of the broadcast weights, as long as weights come

    def describe(self) -> dict[str, str | None]:
        """Return the kind of device and its name, and the type of the weights; None where there are several types."""
        parameters = self.model_runner.get_model().parameters()
        kinds = {str(p.dtype).removeprefix("torch.") for p in parameters if p.is_floating_point()}
        device = self.model_runner.device
        return {"device": device.type, "card": card(device), "dtype": kinds.pop() if len(kinds) == 1 else None}

    def read_bucket(self, address: Address, size: int) -> dict[str, Any]:
        """Return the bytes of a bucket, by which the trainer sees whether this process reads the same memory."""
        try:
            return {"bytes": Finder(self.model_runner.device).find(address, size).tolist()}
        except Exception as error:
            return {"error": _words(error)}

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

    def receive_bucket(self, contents: Contents, size: int, first: bool, address: Address = None) -> dict[str, str]:
        """Replace weights by the ones of a bucket, broadcast or at an address; the `first` begins a new replacement."""
        device = self.model_runner.device
        try:
            if first:
                self._finder = None
            memory = self._bytes(size, address)
            if first or self._reload is None:
                if device.type == "cpu":
                    process.install_sampler(self.model_runner)
                    torch.compiler.set_stance("force_eager")  # see process.eager
                self._reload = Reload(self)
            self._reload.load(unpack(contents, memory))
            self._reload.keep(memory)
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # the trainer overwrites the bucket when this is answered
        except Exception as error:
            return {"error": _words(error)}
        return {}

    def finish_weights(self) -> dict[str, str]:
        """End the replacement."""
        reload, self._reload, self._memory, self._finder = self._reload, None, None, None
        try:
            (reload or Reload(self)).finish()
        except Exception as error:
            return {"error": _words(error)}
        return {}

    def _bytes(self, size: int, address: Address) -> torch.Tensor:
        if address is not None:
            self._finder = self._finder or Finder(self.model_runner.device)
            return self._finder.find(address, size)
        if self._channel is None:
            raise RolloutError("the server is in no group with a trainer")
        if self._memory is None or len(self._memory) < size:
            self._memory = torch.empty(size, dtype=torch.uint8, device=self._channel.device)
        self._channel.broadcast(self._memory[:size])
        return self._memory[:size]


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"


class WeightSender:
    """Hands weights to the workers of servers.

    Args:
        transfer: "files"; "broadcast", by NCCL where trainer and servers are on GPUs and by gloo elsewhere; or "auto":
            in memory of the GPU that the trainer shares with the only worker, or a broadcast between GPUs that can
            reach each other, or else files.
        folder: where the files are, which all servers must see; None for this machine's memory.
    """

    def __init__(self, servers: VLLMServerPolicy, transfer: str, folder: str | Path | None) -> None:
        if transfer not in TRANSFERS:
            raise ConfigError(f"weights_transfer is {transfer!r}; allowed: {', '.join(TRANSFERS)}")
        self._servers, self._folder = servers, folder
        self._transfer = "files" if folder is not None and transfer == "auto" else transfer
        self._workers: list[dict[str, str | None]] = []
        self._shares = False
        self._channel: Channel | None = None

    def send(self, named_weights: Weights) -> None:
        """Replace the weights of all servers, or raise `RolloutError`; the caller then checks the servers."""
        if not self._workers:
            self._workers = list(itertools.chain(*self._on_all("describe").result()))
        kinds = {worker["dtype"] or "" for worker in self._workers}
        dtype = getattr(torch, kinds.pop(), None) if len(kinds) == 1 else None
        buckets = self._buckets()
        try:
            with ThreadPoolExecutor(1) as carrier:
                carried: list[Future[None]] = []
                for contents, bucket, used in pack(named_weights, dtype, buckets):
                    for last in carried:
                        last.result()
                    carried = [carrier.submit(self._carry, contents, bucket, used, not carried)]
                for last in carried:
                    last.result()
            self._on_all("finish_weights").result()
        finally:
            for bucket in buckets:
                bucket.close()

    def forget(self) -> None:
        """Find out anew which workers there are."""
        self.close()
        self._workers, self._shares = [], False

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _buckets(self) -> list[Bucket]:
        """Choose the way, and return two buckets for it."""
        if self._transfer == "auto" and self._channel is None and not self._shares:
            self._shares = self._on_one_card()
        if self._shares:
            return [SharedBucket(_own_device()) for _ in range(2)]
        if self._transfer != "files" and self._channel is None:
            self._channel = self._join()
        if self._channel is not None:
            return [Bucket(self._channel.device) for _ in range(2)]
        return [FileBucket(self._folder) for _ in range(2)]

    def _carry(self, contents: Contents, bucket: Bucket, used: int, first: bool) -> None:
        """Hand over a bucket, and wait until the servers have taken it."""
        arguments: dict[str, Any] = {
            "contents": contents,
            "size": used,
            "first": first,
            "address": bucket.address(used),
        }
        taken, channel = self._on_all("receive_bucket", arguments), self._channel
        if channel is not None:
            # Where a server has died, NCCL would wait for it: its connection, which has broken, ends the wait.
            taken.add_done_callback(lambda future: channel.close() if future.exception() else None)
            try:
                channel.broadcast(bucket.memory[:used])
            except RuntimeError as error:
                self.close()
                # A server that can report the error knows more than the broken group.
                taken.result()
                raise RolloutError(f"the weights could not be broadcast: {error}") from error
        taken.result()

    def _on_all(self, method: str, arguments: dict[str, Any] | None = None) -> Future[list[Any]]:
        # A broadcast waits for all members of its group.
        spare, count = self._channel is None, len(self._servers.living)
        return self._servers.call_workers(method, [arguments or {}] * count, spare=spare)

    def _on_one_card(self) -> bool:
        """Whether the only worker is on this process's GPU and shares its memory; warn if it does not."""
        cards = {worker.get("card") for worker in self._workers}
        # torch counts one reader for each memory that it shares.
        if len(self._workers) > 1 or not torch.cuda.is_available() or cards != {card(_own_device())}:
            return False
        bucket, written = SharedBucket(_own_device()), list(secrets.token_bytes(16))
        try:
            bucket.grow(len(written))
            bucket.memory.copy_(torch.tensor(written, dtype=torch.uint8))
            arguments = {"address": bucket.address(len(written)), "size": len(written)}
            [[worker]] = self._on_all("read_bucket", arguments).result()
            if worker["bytes"] != written:
                raise RolloutError("it reads other bytes")
            return True
        except RuntimeError as error:  # of torch, and RolloutError of the worker
            warnings.warn(
                f"weights go through files, because the engine's process cannot read this one's GPU memory: {error} "
                "(ruled out by expandable_segments in PYTORCH_CUDA_ALLOC_CONF, and by some containers)",
                stacklevel=2,
            )
            self._transfer = "files"
            return False
        finally:
            bucket.close()

    def _join(self) -> Channel | None:
        """Make a group with all workers; None if there is to be none."""
        nccl = torch.cuda.is_available() and all(worker["device"] == "cuda" for worker in self._workers)
        if self._transfer == "auto" and not nccl:
            self._transfer = "files"
            return None
        sizes = self._servers.world_sizes()
        first_ranks = list(itertools.accumulate(sizes[:-1], initial=1))
        store = open_store(own_address(self._servers.living))
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


def _own_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
