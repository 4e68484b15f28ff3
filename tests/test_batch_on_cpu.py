"""The batch of a rollout stays on the CPU, in few bytes; a pass takes its rows to the device of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import make_trainer  # noqa: E402

from agent_gym.trainers.batch import TrainingEpisode, TrainingRow, collate, select_rows  # noqa: E402

BYTES = 14
"""Of a cell before it is scored: ids 4, step 4, logprob of the engine 4, two masks."""


def episode(length: int, number: int = 0) -> TrainingEpisode:
    steps = np.where(np.arange(length) < 3, -1, 0).astype(np.int32)
    row = TrainingRow(np.arange(length, dtype=np.int32), steps, np.zeros(length, np.float32))
    return TrainingEpisode(number, 0, True, [row], [1.0], [0.0], [0])


def test_a_cell_takes_fourteen_bytes_and_a_pass_is_in_the_types_of_a_model() -> None:
    batch = collate([episode(50), episode(9)], 3, 0)
    cells = {name: column for name, column in batch.items() if column.ndim == 2}
    assert sum(column.element_size() for column in cells.values()) == BYTES
    assert all(column.device.type == "cpu" for column in batch.values())
    passed = select_rows(batch, torch.tensor([1]), torch.device("meta"))
    assert all(column.device.type == "meta" for column in passed.values())
    assert {name: (column.dtype, column.shape) for name, column in passed.items() if column.ndim == 2} == {
        name: (kind, (1, 9))
        for name, kind in {
            "input_ids": torch.long,
            "attention_mask": torch.long,
            "action_mask": torch.bool,
            "step_of": torch.long,
            "engine_logps": torch.float32,
        }.items()
    }


class OnCPU(torch.Tensor):
    """A tensor of the batch, as if the model were on a GPU: no operation may take it together with a tensor of a model.

    What is computed from it alone is of the same class. `to(device)` makes a plain tensor of it.
    """

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = [value for arg in args for value in (arg if isinstance(arg, list | tuple) else [arg])]
        for value in (*flat, *(kwargs or {}).values()):
            wrong = (
                isinstance(value, torch.Tensor) and not isinstance(value, cls) and value.ndim and value.requires_grad
            )
            assert not wrong, f"{function.__name__} takes a tensor of the batch and one of the model"
        found = super().__torch_function__(function, types, args, kwargs or {})
        moved = function is torch.Tensor.to and any(isinstance(value, torch.device) for value in args[1:])
        return found.as_subclass(torch.Tensor) if moved else found


SETTINGS: list[dict[str, Any]] = [
    {"beta": 0.1, "num_iterations": 2, "micro_batch_tokens": 300},
    {"beta": 0.1, "num_iterations": 2, "kl_in": "reward", "loss_normalization": "step"},
    {"ppo": True, "critic": "head"},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_the_model_meets_only_rows_that_were_moved(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = collate

    def on_cpu(*args: Any) -> Any:
        return {name: column.as_subclass(OnCPU) for name, column in made(*args).items()}

    monkeypatch.setattr("agent_gym.trainers.grpo.collate", on_cpu)
    trainer = make_trainer(tmp_path, max_steps=2, **options)
    read, forward = [], trainer._forward

    def checked(model: Any, batch: Any, **kwargs: Any) -> Any:
        read.append(sum(isinstance(column, OnCPU) for column in batch.values()))
        return forward(model, batch, **kwargs)

    trainer._forward = checked
    trainer.train()
    assert len(read) > 2 and not any(read), "a pass reads columns that were not moved"
    kept = trainer._generated
    assert kept["input_ids"].dtype == torch.int32 and kept["attention_mask"].dtype == torch.bool
    assert all(isinstance(kept[name], OnCPU) for name in ("input_ids", "step_of", "action_mask"))
    assert all(column.dtype != torch.long for column in kept.values() if column.ndim == 2)
