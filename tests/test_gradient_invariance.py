"""One gradient whatever the rows look like: their order, their padding, and how they are cut into micro-batches.

Property tests on random episodes with several rows. The gradient is compared twice: with respect to the logprob of each
sampled token, one by one, and with respect to the weights of a real model.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from test_credit import make_episode  # noqa: E402
from torch.nn.functional import pad  # noqa: E402
from trainer_tools import make_trainer  # noqa: E402

from agent_gym.trainers.batch import TrainingEpisode, take  # noqa: E402

SETTINGS: dict[str, dict[str, Any]] = {
    "grpo, token": {"num_generations": 2},
    "gigpo, episode, beta": {
        "num_generations": 2, "advantage_estimator": "gigpo", "loss_normalization": "episode", "beta": 0.1,
    },
    "cispo, sequence": {
        "num_generations": 2, "loss_type": "cispo", "epsilon_high": 5.0, "loss_normalization": "sequence",
        "process_norm": "prime",
    },
    "dr_grpo, constant": {
        "num_generations": 2, "advantage_estimator": "dr_grpo", "loss_normalization": "constant",
        # As many as the episodes have, or the gradients would be too small to compare.
        "max_episode_tokens": 30, "max_turn_tokens": 8,
    },
    "StepPO": {
        "ppo": True, "advantage_estimator": "step_gae", "importance_sampling_level": "step",
        "loss_normalization": "step",
    },
    "ppo, bi-level": {"ppo": True, "advantage_estimator": "bilevel_gae", "lam": 0.9, "step_gamma": 0.9},
}  # fmt: skip


@pytest.fixture(scope="module", params=SETTINGS)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = make_trainer(tmp_path_factory.mktemp("run"), num_iterations=2, **SETTINGS[request.param])
    made.current_gradient_accumulation_steps = 1
    if hasattr(made.model, "critic"):
        # A critic that says something, or nothing would depend on it.
        torch.nn.init.normal_(made.model.critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return made


def lay_out(trainer: Any, episodes: list[TrainingEpisode]) -> dict[str, Any]:
    batch = trainer._lay_out(episodes)
    batch["input_ids"] %= 500
    batch["number_of"] = torch.tensor([episodes[i].number if i >= 0 else -1 for i in batch["episode_of"].tolist()])
    trainer._score_rows(batch)
    # As if an update had happened since, so that ratios and the value clip have something to do.
    shift = torch.sin(batch["input_ids"].float()) * batch["action_mask"]
    batch["old_logps"] = batch["old_logps"] + 0.3 * shift
    trainer._assign_credit(batch, episodes)
    return batch


def gradients(trainer: Any, pieces: list[dict[str, Any]]) -> tuple[dict[Any, float], dict[str, Any]]:
    """Return the gradient of each sampled token's logprob, and those of the weights."""
    trainer.model.zero_grad()
    per_token: dict[Any, float] = {}
    for piece in pieces:
        scores = trainer._forward(trainer.model, piece)
        scores.logps.retain_grad()
        trainer._loss(scores, piece).backward()
        seen: dict[Any, int] = {}
        for row, t in piece["action_mask"].nonzero().tolist():
            step = (int(piece["number_of"][row]), int(piece["step_of"][row, t]))
            seen[step] = seen.get(step, -1) + 1
            per_token[*step, seen[step]] = scores.logps.grad[row, t].item()
        assert (scores.logps.grad[~piece["action_mask"]] == 0).all()
    weights = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    return per_token, weights


@given(seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=12)
def test_layout_changes_no_gradient(trainer: Any, seed: int, data: st.DataObject) -> None:
    episodes = [make_episode(i, random.Random(seed + i), split=0.5) for i in range(4)]
    usual = lay_out(trainer, episodes)
    tokens, weights = gradients(trainer, [usual])
    assert any(abs(value) > 1e-4 for value in tokens.values())

    def same(pieces: list[dict[str, Any]]) -> None:
        found, moved = gradients(trainer, pieces)
        assert found.keys() == tokens.keys()
        assert max(abs(found[key] - tokens[key]) for key in tokens) < 1e-6
        assert max((moved[name] - weights[name]).abs().max().item() for name in weights) < 1e-5

    same([lay_out(trainer, data.draw(st.permutations(episodes)))])
    order = torch.tensor(data.draw(st.permutations(range(len(usual["input_ids"])))))
    cut = data.draw(st.integers(1, len(order)))
    same([take(usual, part) for part in order.split(cut)])
    args = trainer.args
    args.micro_batch_tokens, args.packing = data.draw(st.integers(2, 200)), data.draw(st.booleans())
    try:
        # The last row is a dummy, which fills the passes that only other processes need.
        same([take(usual, piece) for piece in [*trainer._pieces(usual), torch.tensor([len(order) - 1])]])
    finally:
        args.micro_batch_tokens, args.packing = None, False
    wide = {name: pad(value, (0, 3)) if value.ndim > 1 else value for name, value in usual.items()}
    wide["step_of"] = pad(usual["step_of"], (0, 3), value=-1)
    same([wide])
