"""Rows that share what they begin with, and frozen layers that run once, give the weights that plain passes give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import SGD, batches_of, distance, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

UPDATES: dict[str, Any] = {"num_iterations": 3, "max_steps": 6, **SGD, "micro_batch_size": 3}


def upper_half(attention: str = "sdpa") -> Any:
    """A tiny model of which the last layer and the last norm are trained."""
    folder = model_folder(seed=1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    model.requires_grad_(False)
    for part in (model.model.layers[-1], model.model.norm):
        part.requires_grad_(True)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.1},
        {"context": "window:1"},
        pytest.param({"ppo": True, "critic": "head"}, marks=pytest.mark.slow),
        {"ppo": True, "critic": "model", "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_updates_begin_above_the_frozen_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    def run(attention: str) -> tuple[Any, list[int]]:
        trainer = make_trainer(tmp_path, model=upper_half(attention), **UPDATES, **options)
        passes, layers = [0, 0], trainer.accelerator.unwrap_model(trainer.model).model.layers
        for number in (0, -1):
            layers[number].mlp.register_forward_hook(lambda *_, n=number: passes.__setitem__(n, passes[n] + 1))
        batches = batches_of(trainer)
        lay_out, begun = trainer._lay_out, list[int]()

        def count_from_here(episodes: Any) -> Any:
            if not begun:
                passes[:] = begun[:] = [0, 0]  # without the passes that compare the model with itself
            return lay_out(episodes)

        monkeypatch.setattr(trainer, "_lay_out", count_from_here)
        trainer.train()
        assert all(("below" in batch) == bool(trainer.frozen) for batch in batches)
        return trainer, passes

    ours, few = run("sdpa")
    assert ours.shares_openings and len(ours.frozen) == 1
    monkeypatch.setattr("agent_gym.trainers.rows.skippable_layers", lambda trainer: [])
    plain, many = run("eager")  # whose rows are padded
    assert not plain.shares_openings and many[0] >= many[1] > 2 * few[0]
    start = weights(make_trainer(tmp_path, model=upper_half(), **UPDATES, **options).model)
    assert distance(weights(plain.model), weights(ours.model)) <= 3e-6 < 1e-4 < distance(start, weights(ours.model))
