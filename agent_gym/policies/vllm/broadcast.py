"""Weights on their way from the trainer to servers, from memory to memory: NCCL between GPUs, gloo otherwise.

Rank 0 of the trainer and all workers of all servers form a process group of their own. Weights travel in buckets, so
that a large model needs few messages, and no more memory than a bucket on either side:

    length of the header | header: [[name, dtype, shape], ...] | the bytes of these weights, one after the other

A header of length 0 ends the message. vLLM's own engines for this (`vllm.distributed.weight_transfer`) want all shapes
before the first weight is gathered, take no weights on CPUs, and do not report when a weight has not come.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed

from agent_gym.errors import RolloutError

_BUCKET_BYTES = 256 << 20
_JOIN_S = 120.0  # in which all workers must have come
_SEND_S = 1800.0  # for one bucket; a large model's shards are gathered meanwhile


def open_store(host: str) -> Any:
    """Open the store where the members of a group meet, on a free port."""
    # A program that reaches it can become a member and read the weights. So it listens at this address of the machine
    # only: the socket that torch would make listens at all of them.
    listener = socket.create_server((host, 0))
    port, wait = listener.getsockname()[1], timedelta(seconds=_JOIN_S)
    return distributed.TCPStore(
        host, port, None, True, wait, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def reach_store(host: str, port: int) -> Any:
    """Connect to the store of the trainer."""
    return distributed.TCPStore(host, port, None, False, timedelta(seconds=_JOIN_S))


class Channel:
    """One member's end of the group, which meets at the store; the trainer has rank 0, `backend` is "nccl" or "gloo".

    `RuntimeError` if not all members come, or they cannot reach each other.
    """

    def __init__(self, store: Any, rank: int, size: int, backend: str) -> None:
        self.rank = rank
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        timeout = timedelta(seconds=_SEND_S)
        if backend == "nccl":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: Any = distributed.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = distributed.ProcessGroupGloo(store, rank, size, timeout)
        # The first message makes the connections, or fails.
        self._broadcast(torch.ones(1, dtype=torch.uint8, device=self.device))

    def send(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send weights to all other members; `RuntimeError` if one of them is gone."""
        try:
            for bucket in buckets(named_weights, _BUCKET_BYTES, self.device):
                header = [[n, str(w.dtype).removeprefix("torch."), list(w.shape)] for n, w in bucket.items()]
                self._send_header(json.dumps(header).encode())
                self._broadcast(torch.cat([weight.view(-1).view(torch.uint8) for weight in bucket.values()]))
        finally:
            # Also where reading the weights has failed: the others would wait for the rest.
            self._send_header(b"")

    def receive(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what is sent until all has been; `RuntimeError` if the trainer is gone."""
        while True:
            length = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._broadcast(length)
            if not length:
                return
            header = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
            self._broadcast(header)
            weights = [
                (name, getattr(torch, dtype), shape) for name, dtype, shape in json.loads(bytes(header.tolist()))
            ]
            sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in weights]
            bucket = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
            self._broadcast(bucket)
            for (name, dtype, shape), part in zip(weights, bucket.split(sizes), strict=True):
                # Cloned, because a part may begin where no number of its type may.
                yield name, part.clone().view(dtype).view(shape)

    def close(self) -> None:
        self._group.abort()

    def _send_header(self, header: bytes) -> None:
        self._broadcast(torch.tensor([len(header)], device=self.device))
        if header:
            self._broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(self.device))

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._group.broadcast(tensor, 0).wait()
        if tensor.is_cuda:
            # NCCL has only been asked so far; without this, buckets of a whole model would pile up.
            torch.cuda.synchronize()


def own_address(urls: Iterable[str]) -> str:
    """Return the address of this machine that the servers can reach, judged by how it reaches them."""
    found = set()
    for url in urls:
        place = urlsplit(url)
        # Connecting a datagram socket sends nothing: it only chooses the way.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((place.hostname, place.port or 80))
            except OSError as error:
                raise RolloutError(f"there is no way to {url}: {error}") from error
            found.add(probe.getsockname()[0])
    return min(found, key=lambda address: address.startswith("127."))


def buckets(
    named_weights: Iterable[tuple[str, torch.Tensor]], size: int, device: torch.device
) -> Iterator[dict[str, torch.Tensor]]:
    """Copy weights to a device, and yield them as soon as there are so many bytes."""
    bucket: dict[str, torch.Tensor] = {}
    for name, weight in named_weights:
        # Copied, because a gathered weight may be freed when the next is asked for.
        bucket[name] = weight.detach().to(device, copy=True).contiguous()
        if sum(copy.nbytes for copy in bucket.values()) >= size:
            yield bucket
            bucket = {}
    if bucket:
        yield bucket
