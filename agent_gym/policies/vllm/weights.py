"""The trainer's weights on their way to vLLM: into an engine's model, and before that to servers.

Weights travel in buckets: while the servers take one, the trainer gathers the next, so that it holds two and never the
model. They have the engine's type, which halves the bytes where a model is trained in float32 and served in bfloat16.

`WeightSender` belongs to rank 0 of a trainer. It hands buckets to servers through a file, in a folder that all see, or
by a broadcast (broadcast.py). `WeightReceiver` is the other end: `agent-gym serve model` gives the class to vLLM as
`--worker-extension-cls`, which mixes it into each of its workers. vLLM's own engines for this
(`vllm.distributed.weight_transfer`) want all shapes before the first weight is gathered, take no weights on CPUs, and
do not report when a weight has not come.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.vllm import process
from agent_gym.policies.vllm.broadcast import Channel, open_store, own_address, reach_store

if TYPE_CHECKING:
    from agent_gym.policies.vllm.server import VLLMServerPolicy

Weights = Iterable[tuple[str, torch.Tensor]]
"""Names as in the checkpoint, and tensors on any device. Tied weights may come once or twice."""
Contents = list[tuple[str, str, list[int], int]]
"""What is in a bucket: name, type, shape, and the byte at which it begins."""

TRANSFERS = ("auto", "files", "broadcast")
_BUCKET_BYTES = 32 << 20
_ALIGNED = 16  # bytes: where a number of any type may begin
_MEMORY = Path("/dev/shm")


def pack(
    named_weights: Weights, dtype: torch.dtype | None, device: torch.device
) -> Iterator[tuple[Contents, torch.Tensor]]:
    """Copy weights to buckets on a device, and yield each that is full, as (contents, bytes).

    Two pieces of memory take turns: a bucket is overwritten when the one after the next is asked for. A weight that is
    larger than a bucket has one of its own. Floating-point weights become `dtype` where that is smaller. Each may
    change when the next is asked for.
    """
    memory = [torch.empty(0, dtype=torch.uint8, device=device)] * 2
    contents: Contents = []
    number = used = 0
    for name, weight in named_weights:
        kind = weight.dtype
        if dtype is not None and weight.is_floating_point() and dtype.itemsize < kind.itemsize:
            kind = dtype
        size = weight.numel() * kind.itemsize
        begin = -(-used // _ALIGNED) * _ALIGNED
        if contents and begin + size > _BUCKET_BYTES:
            yield contents, memory[number][:used]
            contents, begin, number = [], 0, 1 - number
        if begin + size > len(memory[number]):
            memory[number] = torch.empty(max(size, _BUCKET_BYTES), dtype=torch.uint8, device=device)
        used = begin + size
        memory[number][begin:used].view(kind).view(weight.shape).copy_(weight.detach())
        contents.append((name, str(kind).removeprefix("torch."), list(weight.shape), begin))
    if contents:
        yield contents, memory[number][:used]


def unpack(contents: Contents, bucket: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a bucket, which are parts of it."""
    for name, dtype, shape, begin in contents:
        kind = getattr(torch, dtype)
        yield name, bucket[begin : begin + math.prod(shape) * kind.itemsize].view(kind).view(shape)


class Reload:
    """Replaces every weight of the model of a `vllm.v1.worker.gpu_worker.Worker`, in as many parts as there are.

    vLLM builds a layer anew when the last of its weights has come. The steps are those of `Worker.reload_weights`,
    which wants all weights in one call. What reading the weights raises goes through. After any error, or where a
    reload was never finished, the next one begins from the start.
    """

    def __init__(self, worker: Any) -> None:
        from vllm.model_executor.model_loader.reload import layerwise

        self._worker, self._layerwise = worker, layerwise
        self._model = worker.model_runner.get_model()
        self._loaded: set[str] = set()
        with self._configured():
            for layer in self._model.modules():
                info = layerwise.get_layerwise_info(layer)
                info.loaded_weights.clear()
                info.load_numel = 0
            self._finalize()  # puts the weights of layers that an earlier reload has not completed back in place
            self._wanted = {name for name, _ in self._model.named_parameters()}
            layerwise.initialize_layerwise_reload(self._model)

    def load(self, named_weights: Weights) -> None:
        """Replace weights; they must stay as they are until `finish` or `keep`.

        `RolloutError` if names or shapes are not those of the model.
        """
        failures: list[Exception] = []

        def read() -> Iterator[tuple[str, torch.Tensor]]:
            try:
                for name, weight in named_weights:
                    yield name, weight.detach()
            except Exception as error:
                failures.append(error)
                raise

        try:
            with self._configured():
                self._loaded |= self._model.load_weights(read())
        except Exception as error:  # each layer has errors of its own
            if failures:
                raise failures[0] from None
            raise RolloutError(f"vLLM does not know the trainer's weights: {type(error).__name__}: {error}") from error

    def keep(self, bucket: torch.Tensor) -> None:
        """Copy what lies in a bucket and waits for the rest of its layer, since the bucket will be overwritten."""
        begin, end = bucket.data_ptr(), bucket.data_ptr() + bucket.nbytes
        for layer in self._model.modules():
            for _, call in self._layerwise.get_layerwise_info(layer).loaded_weights:
                for name, value in call.arguments.items():
                    if isinstance(value, torch.Tensor) and begin <= value.data_ptr() < end:
                        call.arguments[name] = value.clone()

    def finish(self) -> None:
        """End the reload, on a CPU with packed copies as well; `RolloutError` if weights have not come."""
        runner = self._worker.model_runner
        with self._configured():
            self._finalize()
        for reset in (runner.reset_lora_state, runner.reset_encoder_cache, runner.reset_mm_cache):
            reset()
        # vLLM reports the weights of experts as those of the layer around them.
        if missing := sorted(n for n in self._wanted if n.replace(".routed_experts.", ".") not in self._loaded):
            raise RolloutError(f"the trainer sent no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
        if runner.device.type == "cpu":
            process.repack(self._model)

    @contextmanager
    def _configured(self) -> Iterator[None]:
        from vllm.config import set_current_vllm_config

        # Mixtures of experts and quantized layers ask for the configuration when weights come.
        with set_current_vllm_config(self._worker.vllm_config), torch.no_grad():
            yield

    def _finalize(self) -> None:
        self._layerwise.finalize_layerwise_reload(self._model, self._worker.model_runner.model_config)


class WeightReceiver:
    """A part of `vllm.v1.worker.gpu_worker.Worker`; its methods are called by `POST /collective_rpc`.

    What fails is returned as {"error": why}: an exception would end the server.
    """

    model_runner: Any
    parallel_config: Any
    _channel: Channel | None = None
    _reload: Reload | None = None
    _memory: torch.Tensor | None = None  # of what is broadcast, as long as weights come

    def describe(self) -> dict[str, str | None]:
        """Return the kind of device, and the type of the weights; None where there are several types."""
        parameters = self.model_runner.get_model().parameters()
        kinds = {str(p.dtype).removeprefix("torch.") for p in parameters if p.is_floating_point()}
        return {"device": self.model_runner.device.type, "dtype": kinds.pop() if len(kinds) == 1 else None}

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

    def receive_bucket(self, contents: Contents, size: int, first: bool, file: str | None = None) -> dict[str, str]:
        """Replace weights by those of a bucket, in a file or broadcast; the `first` one begins a new replacement."""
        try:
            bucket = self._bucket(size, file)
            if first or self._reload is None:
                if self.model_runner.device.type == "cpu":
                    process.install_sampler(self.model_runner)
                    torch.compiler.set_stance("force_eager")  # see process.eager
                self._reload = Reload(self)
            self._reload.load(unpack(contents, bucket))
            self._reload.keep(bucket)
        except Exception as error:
            return {"error": _words(error)}
        return {}

    def finish_weights(self) -> dict[str, str]:
        """End the replacement."""
        reload, self._reload, self._memory = self._reload, None, None
        try:
            (reload or Reload(self)).finish()
        except Exception as error:
            return {"error": _words(error)}
        return {}

    def _bucket(self, size: int, file: str | None) -> torch.Tensor:
        if file is None:
            if self._channel is None:
                raise RolloutError("the server is in no group with a trainer")
            if self._memory is None or len(self._memory) < size:
                self._memory = torch.empty(size, dtype=torch.uint8, device=self._channel.device)
            self._channel.broadcast(self._memory[:size])
            return self._memory[:size]
        if not Path(file).exists():
            raise RolloutError(f"the server does not see {file}; trainer and server must share that folder")
        return torch.from_file(file, shared=False, size=size, dtype=torch.uint8)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"


class WeightSender:
    """Hands weights to the workers of servers.

    Args:
        transfer: "files"; "broadcast", by NCCL where trainer and servers are on GPUs and by gloo elsewhere; or "auto",
            which broadcasts between GPUs if they can reach each other, and goes through files otherwise.
        folder: where the file is, which all servers must see; None for this machine's memory.
    """

    def __init__(self, servers: VLLMServerPolicy, transfer: str, folder: str | Path | None) -> None:
        if transfer not in TRANSFERS:
            raise ConfigError(f"weights_transfer is {transfer!r}; allowed: {', '.join(TRANSFERS)}")
        self._servers, self._folder = servers, folder or (_MEMORY if _MEMORY.is_dir() else tempfile.gettempdir())
        self._transfer = "files" if folder is not None and transfer == "auto" else transfer
        self._workers: list[dict[str, str | None]] = []
        self._channel: Channel | None = None

    def send(self, named_weights: Weights) -> None:
        """Replace the weights of all servers, or raise `RolloutError`; the caller then reads what is left of them."""
        if not self._workers:
            self._workers = list(itertools.chain(*self._on_all("describe").result()))
        if self._transfer != "files" and self._channel is None:
            self._channel = self._join()
        kinds = {worker["dtype"] or "" for worker in self._workers}
        dtype = getattr(torch, kinds.pop(), None) if len(kinds) == 1 else None
        device = torch.device("cpu") if self._channel is None else self._channel.device
        try:
            file = tempfile.NamedTemporaryFile(prefix="agent-gym-weights-", dir=self._folder)  # noqa: SIM115
        except OSError as error:
            raise RolloutError(f"the weights cannot be written to {self._folder}: {error}") from error
        with file, ThreadPoolExecutor(1) as carrier:
            carried: list[Future[None]] = []
            for contents, bucket in pack(named_weights, dtype, device):
                for last in carried:
                    last.result()
                carried = [carrier.submit(self._carry, contents, bucket, not carried, Path(file.name))]
            for last in carried:
                last.result()
        self._on_all("finish_weights").result()

    def forget(self) -> None:
        """Find out anew which workers there are."""
        self.close()
        self._workers = []

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _carry(self, contents: Contents, bucket: torch.Tensor, first: bool, file: Path) -> None:
        """Hand over a bucket, and wait until the servers have taken it."""
        arguments: dict[str, Any] = {"contents": contents, "size": len(bucket), "first": first}
        channel = self._channel
        if channel is None:
            try:
                # Written over: new pages cost more than the copy. Closed: only then do other machines see it.
                with file.open("r+b") as opened:
                    opened.write(bucket.numpy().data)
            except OSError as error:
                raise RolloutError(f"the weights cannot be written to {file.parent}: {error}") from error
            self._on_all("receive_bucket", {**arguments, "file": str(file)}).result()
            return
        taken = self._on_all("receive_bucket", arguments)
        # Where a server has died, NCCL would wait for it: its connection, which has broken, ends the wait.
        taken.add_done_callback(lambda future: channel.close() if future.exception() else None)
        try:
            channel.broadcast(bucket)
        except RuntimeError as error:
            self.close()
            # A server that can report what happened knows more than the broken group.
            taken.result()
            raise RolloutError(f"the weights could not be broadcast: {error}") from error
        taken.result()

    def _on_all(self, method: str, arguments: dict[str, Any] | None = None) -> Future[list[Any]]:
        # A broadcast waits for all members of its group.
        spare, count = self._channel is None, len(self._servers.living)
        return self._servers.call_workers(method, [arguments or {}] * count, spare=spare)

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
