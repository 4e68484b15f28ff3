"""Communication between the processes of a run: small things to all, an episode to the process that trains on it.

Everything here goes between CPUs, by gloo: it needs no memory of a GPU, and it may wait as long as the slowest rollout
takes, where NCCL would end the run. A process that is gone breaks its connections, which ends the wait.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from agent_gym.errors import RolloutError

Item = TypeVar("Item")

_PATIENCE = timedelta(days=7)
_groups: dict[Any, Any] = {}  # the group between CPUs, by the process group of the run


def gather(mine: Any) -> list[Any]:
    """Return the item of each process, in the order of their ranks; all of them call it at the same point."""
    group = _group()
    if group is None:
        return [mine]
    from torch import distributed

    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, mine, group)
    return found


def gather_items(mine: Sequence[Item]) -> list[Item]:
    """Return the items of all processes as one list, in the order of their ranks."""
    return [item for part in gather(mine) for item in part]


def exchange(parcels: Sequence[Any]) -> list[Any]:
    """Send one parcel to each process, by rank, and return the parcels for this one, in the order of their ranks."""
    group = _group()
    if group is None:
        return list(parcels)
    import torch
    from torch import distributed

    packed = [pickle.dumps(parcel, pickle.HIGHEST_PROTOCOL) for parcel in parcels]
    sizes = torch.tensor([len(one) for one in packed])
    coming = torch.empty_like(sizes)
    distributed.all_to_all_single(coming, sizes, group=group)
    sent = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8)
    received = torch.empty(int(coming.sum()), dtype=torch.uint8)
    distributed.all_to_all_single(received, sent, coming.tolist(), sizes.tolist(), group=group)
    return [pickle.loads(part.numpy().tobytes()) for part in received.split(coming.tolist())]


@contextmanager
def barrier_on_error() -> Iterator[None]:
    """Do something in all processes, or fail in all of them; `RolloutError` has the error of another process."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    messages = gather(None if error is None else str(error) or repr(error))
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise RolloutError(f"process {process} failed: {message}")


def _group() -> Any:
    """Return the group between CPUs, made at its first use, or None for a single process."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    world = distributed.group.WORLD
    if world not in _groups:
        _groups.clear()  # ids of groups that were destroyed
        _groups[world] = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    return _groups[world]
