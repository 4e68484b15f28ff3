"""No gradient comes from a token of the world, and none of the policy's is lost: shown in four independent ways.

There are two nets. The world's tokens have no label, so that no logprob of theirs exists; and the mask that TRL
multiplies the loss with leaves them out. Each net is tested with the other one removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import make_trainer  # noqa: E402
from trl import GRPOTrainer  # noqa: E402
from trl.trainer.utils import FusedCausalLMOutput  # noqa: E402

from agent_gym.rollout import Episode  # noqa: E402
from agent_gym.transcript import action_mask  # noqa: E402

ENDINGS: dict[str, dict[str, Any]] = {
    "terminated with a last word": {},
    "truncated by the trainer's turns": {"env_kwargs": {"patient": True}, "max_turns": 2},
    "truncated by the environment's turns": {"env_kwargs": {"patient": True, "max_turns": 2}},
    "truncated by tokens": {"env_kwargs": {"patient": True}, "max_episode_tokens": 100},
    "terminated without a last word": {"env_kwargs": {"goodbye": False}},
}


def rollout(trainer: Any) -> tuple[list[Episode], dict[str, Any]]:
    """Play one batch and return the episodes with the tensors made from them."""
    played: list[Episode] = []
    play = trainer.rollout
    trainer.rollout = lambda *args: played.extend(play(*args)) or played
    trainer.model.train()
    batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    trainer.rollout = play
    trainer.current_gradient_accumulation_steps = 1
    return played, batch


def by_ids(batch: dict[str, Any]) -> dict[tuple[int, ...], int]:
    """Find rows of a batch by their ids."""
    found = {}
    for i in range(len(batch["prompt_ids"])):
        n = int(batch["completion_mask"][i].sum())
        found[(int(batch["prompt_ids"][i, 0]), *batch["completion_ids"][i, :n].tolist())] = i
    return found


def gradients(trainer: Any, batch: dict[str, Any], model: Any = None) -> dict[str, Any]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model if model is None else model, dict(batch))
    loss.backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def worst(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


def world(batch: dict[str, Any]) -> Any:
    """(B, T) True where the token is attended and not the policy's."""
    return batch["completion_mask"].bool() & ~batch["tool_mask"].bool()


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_mask_trl_multiplies_with_is_the_one_of_the_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    seen: list[dict[str, Any]] = []
    stock = GRPOTrainer._compute_loss
    monkeypatch.setattr(
        GRPOTrainer, "_compute_loss", lambda self, model, inputs: (seen.append(inputs), stock(self, model, inputs))[1]
    )
    trainer = make_trainer(tmp_path, max_steps=1, micro_batch_size=3, **ENDINGS[ending])
    played: list[Episode] = []
    play = trainer.rollout
    trainer.rollout = lambda *args: played.extend(play(*args)) or played
    trainer.train()
    masks = {}
    for inputs in seen:
        for ids, i in by_ids(inputs).items():
            masks[ids] = (inputs["completion_mask"][i] * inputs["tool_mask"][i])[: len(ids) - 1].bool().tolist()
    assert len(played) == 8
    for episode in played:
        (row,) = episode.rows
        expected = action_mask(row.spans, len(row.token_ids))
        assert sum(expected) == episode.sampled_tokens > 0
        assert masks[tuple(row.token_ids)] == expected[1:]


def test_tokens_of_the_world_have_no_label(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    _, batch = rollout(trainer)
    labels = []
    hook = trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: labels.append(kwargs["labels"]), with_kwargs=True
    )
    gradients(trainer, batch)
    hook.remove()
    assert world(batch).any()
    scored = batch["tool_mask"].bool()
    assert torch.equal(labels[0][:, 1:] != -100, scored)
    assert torch.equal(labels[0][:, 1:][scored], batch["completion_ids"][scored])
    assert (labels[0][:, 0] == -100).all()


def test_other_labels_for_the_world_change_no_gradient(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    _, batch = rollout(trainer)
    model, generator = trainer.model, torch.Generator().manual_seed(0)
    usual = gradients(trainer, batch)

    def scored(everywhere: bool) -> dict[str, Any]:
        """Give every unlabelled token a random label, in the same context, or the policy's tokens a wrong one."""

        def relabelled(**kwargs: Any) -> Any:
            labels = kwargs["labels"]
            noise = torch.randint(3, 512, labels.shape, generator=generator)
            kwargs["labels"] = noise if everywhere else torch.where(labels == -100, noise, labels)
            return model(**kwargs)

        return gradients(trainer, batch, relabelled)

    assert worst(usual, scored(everywhere=False)) < 1e-7
    assert worst(usual, scored(everywhere=True)) > 1e-3  # the comparison sees a label that does count


@pytest.mark.parametrize("options", [{"num_iterations": 2}, {"beta": 0.1}, {"num_iterations": 2, "beta": 0.1}])
def test_logprobs_and_advantages_of_the_world_change_no_gradient(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = make_trainer(tmp_path, **options)
    _, batch = rollout(trainer)
    usual, outside = gradients(trainer, batch), ~batch["tool_mask"].bool()
    names = {"sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps", "advantages"} & set(batch)
    assert len(names) == 2 + ("num_iterations" in options) + ("beta" in options)
    noise = torch.randn(outside.shape, generator=torch.Generator().manual_seed(0))
    other = {n: v + noise * outside if n in names else v for n, v in batch.items()}
    assert worst(usual, gradients(trainer, other)) == 0.0
    inside = {n: v + noise * ~outside if n in names else v for n, v in batch.items()}
    assert worst(usual, gradients(trainer, inside)) > 1e-3


def test_the_gradient_of_each_logprob_is_its_advantage_or_exactly_zero(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    _, batch = rollout(trainer)
    outputs = []
    score = trainer._sampled_logps

    def keep(*args: Any, **kwargs: Any) -> Any:
        output = score(*args, **kwargs)
        output.log_probs.retain_grad()
        outputs.append(output.log_probs)
        return output

    trainer._sampled_logps = keep
    trainer.compute_loss(trainer.model, dict(batch)).backward()
    (logps,) = outputs
    mask = batch["tool_mask"]
    # The mean over all sampled tokens of -advantage * ratio, whose ratio is 1 with a gradient of 1.
    assert torch.allclose(logps.grad, -batch["advantages"] * mask / mask.sum(), atol=1e-9)
    assert (logps.grad[world(batch)] == 0.0).all()
    assert (logps.grad[mask.bool()] != 0.0).float().mean() > 0.9


class LogitTable(torch.nn.Module):
    """A toy model that is its logits: one free number per row, position and token."""

    def __init__(self, shape: tuple[int, int, int], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Any, labels: Any, **kwargs: Any) -> FusedCausalLMOutput:
        logps = self.logits[:, :-1].log_softmax(-1)
        # Every token is scored, the world's too, so that only the mask in the loss stands between them and a gradient.
        chosen = logps.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return FusedCausalLMOutput(log_probs=chosen, entropy=-(logps.exp() * logps).sum(-1))


def test_finite_differences_in_the_logits(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    rows, length, vocabulary = 2, 7, 5
    ids = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 1, 0, 0, 0]])
    attended = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    advantages = torch.tensor([[1.5] * 6, [-0.5] * 6], dtype=torch.float64) * mask
    batch = {
        "prompt_ids": ids[:, :1], "prompt_mask": torch.ones(rows, 1, dtype=torch.long), "completion_ids": ids[:, 1:],
        "completion_mask": attended, "tool_mask": mask, "advantages": advantages,
        "sampling_per_token_logps": torch.zeros(rows, 6), "num_items_in_batch": mask.sum(),
        # Given, because the loss would otherwise take the present logprobs, and the ratio would always be 1.
        "old_per_token_logps": torch.full((rows, 6), -1.6, dtype=torch.float64),
    }  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.epsilon_low = trainer.epsilon_high = 1e6
    toy = LogitTable((rows, length, vocabulary), seed=0)

    def loss() -> Any:
        return trainer.compute_loss(toy, dict(batch))

    loss().backward()
    analytic = toy.logits.grad.clone()
    numeric = torch.zeros_like(analytic)
    step = 1e-5
    with torch.no_grad():
        for place in torch.cartesian_prod(*map(torch.arange, toy.logits.shape)).tolist():
            at = tuple(place)
            value = toy.logits[at].item()
            losses = []
            for sign in (1, -1):
                toy.logits[at] = value + sign * step
                losses.append(loss().item())
            toy.logits[at] = value
            numeric[at] = (losses[0] - losses[1]) / (2 * step)
    assert torch.allclose(numeric, analytic, atol=1e-8)
    # The logits at position t decide token t + 1, which is entry t of the completion.
    assert (numeric[:, :-1][mask == 0] == 0.0).all()
    assert (numeric[:, -1] == 0.0).all()
    assert (numeric[:, :-1][mask == 1].abs().sum(-1) > 1e-3).all()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_reward_reaches_the_last_agent_token_however_the_episode_ends(tmp_path: Path, ending: str) -> None:
    trainer = make_trainer(tmp_path, **ENDINGS[ending])
    episodes, batch = rollout(trainer)
    rows = by_ids(batch)
    in_loss = batch["advantages"] * batch["completion_mask"] * batch["tool_mask"]
    returns = torch.tensor([episode.reward for episode in episodes]).view(-1, 4)
    expected = ((returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-4)).view(-1)
    assert (expected.abs() > 1e-3).all()
    ends_with_world = 0
    for episode, value in zip(episodes, expected, strict=True):
        (row,) = episode.rows
        at = in_loss[rows[tuple(row.token_ids)]]
        last = episode.steps[-1]
        ends_with_world += row.spans[-1].source == "env"
        # Entry t of the completion is token t + 1 of the row.
        for step in episode.steps:
            assert torch.allclose(at[step.start - 1 : step.stop - 1], value.expand(step.stop - step.start), rtol=1e-4)
        assert at[last.stop - 2] != 0.0
        assert at.ne(0).sum() == episode.sampled_tokens
        why = {"turns": "turns", "tokens": "tokens"}.get(ending.split()[-1])
        assert episode.truncation == why
    # A row that was cut off in mid-turn ends with the policy's token; all others end with the world's.
    assert ends_with_world == {"terminated without a last word": 0}.get(ending, ends_with_world)
    if ending != "terminated without a last word":
        assert ends_with_world >= 1
