"""A checkpoint in shares that is written while training goes on: each process of FSDP2 its own, by torch's DCP.

Training stands still for a copy to the memory of the CPU, which takes as many bytes as the share until it is written:
for AdamW in float32 12 bytes a parameter over the number of processes. The files are those of accelerate, which reads
them when a run is resumed, as does trainers/export_model.py.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from torch import distributed

from agent_gym.errors import RolloutError
from agent_gym.policies.ranks import gather


class ShareWriter:
    """Writes one checkpoint at a time; all processes call its methods at the same points."""

    def __init__(self) -> None:
        self._writes: list[Future[Any]] = []
        self._groups: list[Any] = []

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and not waited for."""
        return bool(self._writes)

    def begin(self, model: Any, optimizer: Any, folder: Path) -> None:
        """Copy this process's share of weights and optimizer, and begin to write them into a folder."""
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

        states: dict[str, dict[str, Any]] = {
            f"{FSDP_MODEL_NAME}_0": {"model": get_model_state_dict(model)},
            f"{OPTIMIZER_NAME}_0": {"optimizer": get_optimizer_state_dict(model, optimizer)},
        }
        # Two writes at the same time must not share a group, and the run's own may know GPUs only.
        self._groups = self._groups or [distributed.new_group(backend="gloo") for _ in states]
        for group, (name, state) in zip(self._groups, states.items(), strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            writer = dcp.FileSystemWriter(str(folder / name))
            write: Any = dcp.async_save(state, storage_writer=writer, process_group=group)
            self._writes.append(write)

    def is_done(self) -> bool:
        """Whether all processes have written, or failed to."""
        return all(gather(all(write.done() for write in self._writes)))

    def wait(self) -> None:
        """Wait for the end, and raise in all processes what one has failed with."""
        from torch.distributed.checkpoint import CheckpointException

        writes, self._writes = self._writes, []
        failures = [failure for write in writes if (failure := write.exception()) is not None]
        for failure in failures:
            if isinstance(failure, CheckpointException):  # no `Exception`, and a page of tracebacks
                process, (cause, _) = next(iter(failure.failures.items()))
                raise RolloutError(f"process {process}: {cause}") from failure
            raise failure
