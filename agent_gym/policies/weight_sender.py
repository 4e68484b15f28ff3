"""How a trainer's weights get to its servers: through files, or by broadcast from memory to memory."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.weight_broadcast import Channel, open_store, own_address
from agent_gym.policies.weight_files import in_files

TRANSFERS = ("auto", "files", "broadcast")


class Servers(Protocol):
    """What the sender wants of servers."""

    urls: list[str]

    def tell_workers(self, method: str, arguments: Sequence[dict[str, Any]]) -> Future[list[Any]]:
        """Call a method of `WeightReceiver` with the arguments for each server; return what its workers returned."""
        ...

    def world_sizes(self) -> list[int]:
        """Count the workers of each server."""
        ...


class WeightSender:
    """Hands weights to servers.

    Args:
        servers: the servers.
        transfer: "files"; "broadcast", by NCCL where trainer and servers are on GPUs and by gloo elsewhere; or "auto",
            which broadcasts between GPUs if they can reach each other, and writes files otherwise.
        folder: where files are handed over; None for this machine's memory.

    Raises:
        ConfigError: for another transfer.
    """

    def __init__(self, servers: Servers, transfer: str, folder: str | Path | None) -> None:
        if transfer not in TRANSFERS:
            raise ConfigError(f"weights_transfer is {transfer!r}; allowed: {', '.join(TRANSFERS)}")
        self._servers, self._folder = servers, folder
        self._transfer = "files" if folder is not None and transfer == "auto" else transfer
        self._channel: Channel | None = None

    def send(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights of all servers.

        Args:
            named_weights: names and tensors. Where this fails, the caller reads what is left of them.

        Raises:
            RolloutError: if the weights cannot be written or sent, or a server does not take them.
        """
        if self._transfer != "files" and self._channel is None:
            self._channel = self._join()
        if self._channel is None:
            with in_files(named_weights, self._folder) as folder:
                self._on_all("receive_files", {"folder": str(folder)}).result()
        else:
            self._broadcast(self._channel, named_weights)

    def close(self) -> None:
        """Leave the servers."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _on_all(self, method: str, arguments: dict[str, Any]) -> Future[list[Any]]:
        return self._servers.tell_workers(method, [arguments] * len(self._servers.urls))

    def _broadcast(self, channel: Channel, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        taken = self._on_all("receive_broadcast", {})
        # Where a server has died, NCCL would wait for it: its connection, which has broken, ends the wait.
        taken.add_done_callback(lambda future: channel.close() if future.exception() else None)
        try:
            channel.send(named_weights)
        except RuntimeError as error:
            self.close()
            # A server that can say what happened knows more than the broken group.
            taken.result()
            raise RolloutError(f"the weights could not be broadcast: {error}") from error
        taken.result()

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
        joined = self._servers.tell_workers("join_trainer", [{**group, "first_rank": rank} for rank in first_ranks])
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
