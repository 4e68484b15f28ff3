"""A way for bytes from the trainer to servers, from memory to memory: NCCL between GPUs, gloo otherwise.

Rank 0 of the trainer and all workers of all servers form a separate process group. The servers are
told by HTTP how many bytes come, and which weights are in them (weights.py).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed

from agent_gym.errors import RolloutError

_JOIN_S = 120.0  # in which all workers must have come
_SEND_S = 600.0  # for one bucket


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
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        timeout = timedelta(seconds=_SEND_S)
        if backend == "nccl":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: Any = distributed.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = distributed.ProcessGroupGloo(store, rank, size, timeout)
        # The first message makes the connections, or fails.
        self.broadcast(torch.ones(1, dtype=torch.uint8, device=self.device))

    def broadcast(self, memory: torch.Tensor) -> None:
        """Send these bytes, or as another member receive as many; `RuntimeError` if a member is gone."""
        self._group.broadcast(memory, 0).wait()
        if memory.is_cuda:
            # NCCL has only been asked so far, and the trainer will overwrite these bytes.
            torch.cuda.synchronize(memory.device)

    def close(self) -> None:
        self._group.abort()


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
