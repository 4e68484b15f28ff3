"""Which weights a speedrun trains: the last layers, or an adapter."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from test_speedrun import MINI  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies.loading import load_model  # noqa: E402
from agent_gym.speedrun.run import run_speedrun  # noqa: E402
from agent_gym.speedrun.tiny import make_tiny_model  # noqa: E402
from agent_gym.trainers.engine import merged_weights  # noqa: E402


@pytest.mark.slow
def test_only_the_last_layers_are_trained_where_a_preset_says_so(tmp_path: Path) -> None:
    preset = dataclasses.replace(MINI, train_layers=1, grpo={**MINI.grpo, "entropy_coef": 0.1, "warmup_steps": 0})
    run_speedrun(preset, 1, tmp_path, engine="transformers")
    start, imitated, trained = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("tiny", "sft", "grpo")
    )
    last = f"model.layers.{max(int(name.split('.')[2]) for name in start if '.layers.' in name)}."
    for before, after in ((start, imitated), (imitated, trained)):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved and all(name.startswith(last) or name == "model.norm.weight" for name in moved)


@pytest.mark.slow
def test_a_preset_trains_a_lora_and_nothing_else(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path / "made", MINI.env_id, MINI.env_kwargs, **MINI.tiny))
    grpo = {**MINI.grpo, "entropy_coef": 0.1, "warmup_steps": 0}
    adapted = dataclasses.replace(
        MINI, model=model, tiny={}, imitation=(), lora={"r": 2, "target_modules": ["q_proj"]}, grpo=grpo
    )
    ends = []
    for seed in (1, 2):
        run_speedrun(adapted, seed, tmp_path / f"{seed}", engine="transformers")
        kept = tmp_path / f"{seed}" / "grpo"
        assert (kept / "adapter_model.safetensors").is_file() and not (kept / "model.safetensors").exists()
        ends.append(dict(merged_weights(load_model(str(kept)))))
    start = AutoModelForCausalLM.from_pretrained(model).state_dict()
    for end in ends:
        moved = {name for name in end if not torch.equal(start[name], end[name])}
        assert moved and all(name.endswith("q_proj.weight") for name in moved)
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in moved), "the adapter's start is the seed's"
    with pytest.raises(ConfigError, match="a LoRA and phases of imitation"):
        run_speedrun(dataclasses.replace(adapted, imitation=MINI.imitation), 1, tmp_path / "both")
