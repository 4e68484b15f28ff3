"""Teachers: advantages that a plain forward pass gives again, the world's tokens left alone, hints, sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import (  # noqa: E402
    SGD,
    RandomPolicy,
    batches_of,
    distance,
    in_ranks,
    logged,
    lora,
    make_trainer,
    model_folder,
    played_by,
    train,
    trained,
    weights,
)
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.rollout import EpisodeSpec  # noqa: E402
from agent_gym.trainers.batch import WORLD  # noqa: E402


def teacher() -> str:
    return model_folder(seed=1)


@torch.no_grad()
def plain(model: Any, ids: list[int], temperature: float = 1.0) -> Any:
    """(T,) logprob of each token of one row after those before it, by a pass without any layout; 0 of the first."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    scores = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1), scores])


def gaps(batch: dict[str, Any], policy: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """(B, T) log p_teacher - log p_policy of the sampled tokens of a batch, by plain passes."""
    found = torch.zeros(batch["input_ids"].shape)
    for row, (ids, length) in enumerate(zip(batch["input_ids"].tolist(), batch["attention_mask"].sum(1), strict=True)):
        both = [plain(model, ids[:length], temperature) for model in (teacher, policy)]
        found[row, :length] = both[0] - both[1]
    return torch.where(batch["action_mask"], found, 0.0)


def discounted(batch: dict[str, Any], gap: Any, gamma: float) -> Any:
    """Sum up the gaps of the tokens of an episode that were sampled later, token by token."""
    found = torch.zeros_like(gap)
    owner, steps = batch["episode_of"].tolist(), batch["step_of"]
    for episode in set(owner) - {-1}:
        rows = [row for row, one in enumerate(owner) if one == episode]
        places = [(int(steps[r, t]), r, t) for r in rows for t in range(steps.size(1)) if steps[r, t] != WORLD]
        later = 0.0
        for _, row, token in sorted(places, reverse=True):
            later = found[row, token] = gap[row, token] + gamma * later
    return found


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("padded", {"model_init_kwargs": {"dtype": "float32", "attn_implementation": "eager"}}),
        ("shared", {"teacher_gamma": 0.9, "num_iterations": 2}),
        ("packed", {"packing": True, "micro_batch_tokens": 300, "temperature": 0.7}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_advantage_is_that_of_plain_forward_passes(tmp_path: Path, layout: str, settings: dict[str, Any]) -> None:
    options = {"max_steps": 1, "context": "window:1", **settings}
    alone, before, _ = trained(tmp_path, **{k: v for k, v in options.items() if k != "teacher_gamma"})
    trainer, (batch,), _ = trained(tmp_path, teacher=teacher(), teacher_coef=0.5, reward_coef=0.25, **options)
    assert trainer.shares_openings == (layout == "shared")
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (model_folder(), teacher())]
    gap = gaps(batch, *models, trainer.temperature)
    own = discounted(batch, gap, settings.get("teacher_gamma", 0.0))
    assert torch.equal(before[0]["input_ids"], batch["input_ids"]), "the same episodes"
    expected = 0.5 * own + 0.25 * before[0]["advantages"]
    assert (batch["advantages"] - expected).abs().max() < 1e-5 < own.abs().max()
    assert len({row for row, one in enumerate(batch["episode_of"].tolist()) if one == 0}) >= 1
    (kl,) = logged(trainer, "teacher/kl")[:1]
    assert kl == pytest.approx(-gap[batch["action_mask"]].mean().item(), abs=1e-5)
