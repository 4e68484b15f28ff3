"""When one process of a distributed run fails, all stop with its message, instead of waiting for it forever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from agent_gym.errors import RolloutError


@contextmanager
def together(distributed: bool) -> Iterator[None]:
    """Do something in all processes, or fail in all of them.

    Args:
        distributed: whether there are other processes, all of which come here.

    Raises:
        Exception: what the block raised in this process.
        RolloutError: what it raised in another.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    failures = [None if error is None else str(error) or repr(error)]
    if distributed:
        mine, failures = failures[0], [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(failures, mine)
    if error is not None:
        raise error
    for process, failure in enumerate(failures):
        if failure is not None:
            raise RolloutError(f"process {process} failed: {failure}")
