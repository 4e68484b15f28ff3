"""Buckets: pieces of memory in which the trainer's weights travel to vLLM, several weights in each.

    Bucket        in the trainer's memory, for a broadcast (broadcast.py)
    FileBucket    in a file that servers read
    SharedBucket  in the memory of a GPU on which the server is, too (CUDA IPC)

A bucket's `address` goes to servers by HTTP, where `Finder` finds its bytes.
"""

from __future__ import annotations

import base64
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from agent_gym.errors import RolloutError

Weights = Iterable[tuple[str, torch.Tensor]]
"""Names as in the checkpoint, and tensors on any device. Tied weights may come once or twice."""
Contents = list[tuple[str, str, list[int], int]]
"""An entry of a bucket: name, type, shape, and the byte at which it begins."""
Address = str | list[Any] | None
"""A file, or torch's handle of shared memory, or None for a broadcast."""

_BUCKET_BYTES = 64 << 20  # at least; new pages of memory cost more than the requests that larger buckets save
_ALIGNED = 16  # bytes: where a number of any type may begin
_MEMORY = Path("/dev/shm")


class Bucket:
    """Memory on a device; `memory` are its bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.memory = device, torch.empty(0, dtype=torch.uint8, device=device)

    def grow(self, size: int) -> None:
        """Take new memory, `size` bytes; its old content is lost."""
        self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)

    def address(self, used: int) -> Address:
        """Return where servers find the first bytes, which are not changed until the servers have answered."""
        return None

    def close(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8, device=self.device)


class FileBucket(Bucket):
    """In a file in a folder that servers see; by default in this machine's memory, where the bucket is the file.

    `RolloutError` when the file cannot be written.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._mapped = folder is None and _MEMORY.is_dir()
        self._folder = folder or (_MEMORY if self._mapped else tempfile.gettempdir())
        self._file: Any = None
        super().__init__(torch.device("cpu"))

    def grow(self, size: int) -> None:
        self.close()
        try:
            self._file = tempfile.NamedTemporaryFile(prefix="agent-gym-weights-", dir=self._folder)  # noqa: SIM115
            if not self._mapped:
                super().grow(size)
                return
            # Without it a lack of memory would be a signal that kills the trainer, in the middle of a copy.
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            raise self._unwritten(error) from error
        self.memory = torch.from_file(self._file.name, shared=True, size=size, dtype=torch.uint8)

    def address(self, used: int) -> Address:
        name = self._file.name
        if not self._mapped:
            try:
                # Closed: only then do other machines see it.
                with open(name, "r+b") as opened:
                    opened.write(self.memory[:used].numpy().data)
            except OSError as error:
                raise self._unwritten(error) from error
        return name

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unwritten(self, error: OSError) -> RolloutError:
        return RolloutError(f"the weights cannot be written to {self._folder}: {error}")


class SharedBucket(Bucket):
    """In the memory of this process's GPU, for one server process that is on it.

    `RuntimeError` where torch cannot share it.
    """

    def grow(self, size: int) -> None:
        super().grow(size)
        # Once for each memory: torch counts who was given it and who is done, and takes it back when these are equal.
        _, *handle = self.memory.untyped_storage()._share_cuda_()
        self._handle = [base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in handle]

    def address(self, used: int) -> Address:
        torch.cuda.synchronize(self.device)  # so far the GPU has only been asked to fill it
        return self._handle

    def close(self) -> None:
        super().close()
        torch.cuda.ipc_collect()


class Finder:
    """Finds the bytes of buckets in a server's process, whose GPU is `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._shared: dict[str, torch.Tensor] = {}  # by address, the last used is the last

    def find(self, address: Address, size: int) -> torch.Tensor:
        """Return the bytes; `RolloutError` or `RuntimeError` if they are not in this process's reach."""
        if isinstance(address, str):
            if not Path(address).exists():
                raise RolloutError(f"the server does not see {address}; trainer and server must share that folder")
            return torch.from_file(address, shared=False, size=size, dtype=torch.uint8)
        memory = self._shared.pop(str(address), None)
        if memory is None:
            values = [base64.b64decode(value) if isinstance(value, str) else value for value in address or ()]
            storage = torch.UntypedStorage._new_shared_cuda(self._device.index, *values)
            memory = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        # Two are in use. One that has grown has another address: its old memory goes back.
        self._shared = {**dict(list(self._shared.items())[-1:]), str(address): memory}
        return memory[:size]


def card(device: torch.device) -> str | None:
    """Return a GPU's identifier, the same in all processes; None for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def pack(
    named_weights: Weights, dtype: torch.dtype | None, buckets: Sequence[Bucket]
) -> Iterator[tuple[Contents, Bucket, int]]:
    """Copy weights to buckets, and yield each that is full, as (contents, bucket, bytes used).

    Two buckets take turns: one is overwritten when the one after the next is asked for. One that is too small for a
    weight grows, and is filled up to that size from then on. Floating-point weights become `dtype` where that is
    smaller. Each may change when the next is asked for.
    """
    contents: Contents = []
    number = used = 0
    for name, weight in named_weights:
        kind = weight.dtype
        if dtype is not None and weight.is_floating_point() and dtype.itemsize < kind.itemsize:
            kind = dtype
        size = weight.numel() * kind.itemsize
        begin = -(-used // _ALIGNED) * _ALIGNED
        if contents and begin + size > len(buckets[number].memory):
            yield contents, buckets[number], used
            contents, begin, number = [], 0, 1 - number
        bucket = buckets[number]
        if begin + size > len(bucket.memory):
            bucket.grow(max(size, _BUCKET_BYTES))
        used = begin + size
        bucket.memory[begin:used].view(kind).view(weight.shape).copy_(weight.detach())
        contents.append((name, str(kind).removeprefix("torch."), list(weight.shape), begin))
    if contents:
        yield contents, buckets[number], used


def unpack(contents: Contents, memory: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a bucket, which are parts of its memory."""
    for name, dtype, shape, begin in contents:
        kind = getattr(torch, dtype)
        yield name, memory[begin : begin + math.prod(shape) * kind.itemsize].view(kind).view(shape)
