"""Weights on their way from the trainer to servers, as files in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from agent_gym.errors import RolloutError

_SHARD_BYTES = 2 << 30  # what is held in memory besides the files
_MEMORY = Path("/dev/shm")


@contextmanager
def in_files(named_weights: Iterable[tuple[str, torch.Tensor]], folder: str | Path | None) -> Iterator[Path]:
    """Write weights to a new folder, and remove it afterwards.

    Args:
        named_weights: names and tensors.
        folder: where to make the folder; None for this machine's memory, or its disk where that is not a file system.

    Raises:
        RolloutError: if they cannot be written.
    """
    place = folder or (_MEMORY if _MEMORY.is_dir() else None)
    made: Path | None = None
    try:
        try:
            made = Path(tempfile.mkdtemp(prefix="agent-gym-weights-", dir=place))
            _write(named_weights, made)
        except Exception as error:  # a full disk has many classes
            raise RolloutError(f"the weights cannot be written to {place}: {error}") from error
        yield made
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _write(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    from safetensors.torch import save_file

    shard: dict[str, torch.Tensor] = {}
    size = count = 0
    for name, weight in weights:
        shard[name] = weight.detach().to("cpu", copy=True).contiguous()
        size += shard[name].nbytes
        if size >= _SHARD_BYTES:
            save_file(shard, folder / f"{count:05d}.safetensors")
            shard, size, count = {}, 0, count + 1
    if shard:
        save_file(shard, folder / f"{count:05d}.safetensors")
