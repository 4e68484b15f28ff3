"""No gradient comes from a token of the world, and none of the policy's is lost: shown in three independent ways.

There are two nets. The world's tokens have no label, so that no logprob of theirs exists; and their weight in the loss
is 0. Each net is tested with the other one removed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import make_trainer, played_by  # noqa: E402

from agent_gym.rollout import Episode  # noqa: E402
from agent_gym.transcript import action_mask  # noqa: E402

ENDINGS: dict[str, dict[str, Any]] = {
    "terminated with a last word": {},
    "truncated by the trainer's turns": {"env_kwargs": {"patient": True}, "max_turns": 2},
    "truncated by tokens": {"env_kwargs": {"patient": True}, "max_episode_tokens": 100},
    "terminated without a last word": {"env_kwargs": {"goodbye": False}},
}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_iterations": 2},
    {"beta": 0.1},
    {"num_iterations": 2, "beta": 0.1, "importance_sampling_level": "step", "loss_normalization": "step"},
    {"num_iterations": 2, "importance_sampling_level": "sequence", "use_vllm": True},
    {"loss_type": "cispo", "epsilon_high": 5.0, "entropy_coef": 0.1, "use_vllm": True},
]
"""Losses that look at logprobs in different ways; `use_vllm` weighs them against those of the engine."""


def rollout(trainer: Any) -> tuple[list[Episode], dict[str, Any]]:
    """Play one batch and return the episodes with the tensors made from them."""
    played = played_by(trainer)
    trainer.model.train()
    batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    trainer.current_gradient_accumulation_steps = 1
    return played, batch


def row_of(batch: dict[str, Any], ids: list[int]) -> tuple[int, int]:
    """Find the one row of a batch that begins like these ids, and its length."""
    lengths = batch["attention_mask"].sum(1).tolist()
    starts = [batch["input_ids"][i, :n].tolist() == ids[:n] for i, n in enumerate(lengths)]
    assert sum(starts) == 1
    i = starts.index(True)
    return i, lengths[i]


def gradients(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def worst(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("ending", ENDINGS)
def test_weights_and_rewards_lie_on_the_spans_of_the_policy_however_the_episode_ends(
    tmp_path: Path, ending: str
) -> None:
    trainer = make_trainer(tmp_path, **ENDINGS[ending])
    episodes, batch = rollout(trainer)
    assert torch.equal(batch["weights"] > 0, batch["action_mask"])
    returns = torch.tensor([episode.reward for episode in episodes]).view(-1, 4)
    expected = ((returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-4)).view(-1)
    assert len(episodes) == 8 and (expected.abs() > 1e-3).all()
    ends_with_world = 0
    for episode, value in zip(episodes, expected, strict=True):
        (row,) = episode.rows
        mine = action_mask(row.spans, len(row.token_ids))
        assert sum(mine) == episode.sampled_tokens > 0
        i, n = row_of(batch, row.token_ids)
        assert n == episode.steps[-1].stop, "the world's last word is left out"
        assert batch["action_mask"][i, :n].tolist() == mine[:n]
        in_loss = batch["advantages"][i] * (batch["weights"][i] > 0)
        assert torch.allclose(in_loss[:n], value * torch.tensor(mine[:n]), rtol=1e-4)
        ends_with_world += row.spans[-1].source == "env"
        assert episode.truncation == {"turns": "turns", "tokens": "tokens"}.get(ending.split()[-1])
    # A row that was cut off in mid-turn ends with the policy's token; all others end with the world's.
    assert (ends_with_world == 0) == (ending == "terminated without a last word")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_labels_logprobs_and_advantages_of_the_world_change_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    trainer = make_trainer(tmp_path, **options)
    _, batch = rollout(trainer)
    usual, mine = gradients(trainer, batch), batch["action_mask"]
    assert (batch["attention_mask"].bool() & ~mine).any()
    model, generator = trainer.model, torch.Generator().manual_seed(0)

    def forward(*args: Any, shift_labels: torch.Tensor, **kwargs: Any) -> Any:
        # The world's tokens have no label, and no place that the output layer reads.
        assert torch.equal(shift_labels[0], batch["input_ids"][mine]) and not mine[:, 0].any()
        noise = torch.randint(3, 512, shift_labels.shape, generator=generator)
        return plain(*args, shift_labels=noise, **kwargs)

    plain = model.forward
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", forward)
        assert worst(usual, gradients(trainer, batch)) > 1e-3, "the comparison sees a label that does count"
    # Computed before the loss only where several updates share a rollout; from the engine's logprobs, which are noisy.
    batch.pop("engine_ratio", None)
    usual = gradients(trainer, batch)
    names = {"engine_logps", "old_logps", "ref_logps", "advantages"} & set(batch)
    assert len(names) == 2 + ("num_iterations" in options) + ("beta" in options)
    noise = torch.randn(mine.shape, generator=generator)
    other = {n: v + noise * ~mine if n in names else v for n, v in batch.items()}
    assert worst(usual, gradients(trainer, other)) == 0.0
    for name in names - set(() if "use_vllm" in options else ("engine_logps",)):
        inside = batch | {name: batch[name] + noise * mine}
        assert worst(usual, gradients(trainer, inside)) > 1e-5, name


@pytest.mark.parametrize("by", ["token", "sequence", "step", "episode"])
def test_the_gradient_of_each_logprob_is_its_share_of_the_advantage_or_exactly_zero(tmp_path: Path, by: str) -> None:
    # The third turn has a context of its own: rows that hold several steps, episodes that hold several rows.
    several = {"env_kwargs": {"patient": True}, "max_turns": 3, "context": "window:1"}
    trainer = make_trainer(tmp_path, loss_normalization=by, **several)
    _, batch = rollout(trainer)
    outputs = []
    forward = trainer._forward

    def keep(*args: Any, **kwargs: Any) -> Any:
        scores = forward(*args, **kwargs)
        scores.logps.retain_grad()
        outputs.append(scores.logps)
        return scores

    trainer._forward = keep
    trainer.compute_loss(trainer.model, dict(batch)).backward()
    (logps,) = outputs
    units = {}  # whose vote each sampled token (row, column) shares
    for i, t in batch["action_mask"].nonzero().tolist():
        episode, step = int(batch["episode_of"][i]), int(batch["step_of"][i, t])
        units[i, t] = {"token": (i, t), "sequence": (i,), "step": (episode, step), "episode": (episode,)}[by]
    sizes = Counter(units.values())
    share = torch.zeros(batch["weights"].shape)
    for place, unit in units.items():
        share[place] = 1 / len(sizes) / sizes[unit]
    # The loss is -advantage * ratio, whose ratio is 1 with a gradient of 1.
    assert torch.allclose(logps.grad, -batch["advantages"] * share, atol=1e-9)
    assert (logps.grad[~batch["action_mask"]] == 0.0).all()
    assert (logps.grad[batch["action_mask"]] != 0.0).float().mean() > 0.9
    assert len(sizes) == {"token": len(units), "sequence": 16, "step": 24, "episode": 8}[by]
