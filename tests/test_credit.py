"""From rows to episodes and back: how rows look, are padded, ordered and cut changes no advantage and no gradient.

Property tests on random episodes with several rows. The gradient is compared twice: with respect to the logprob of each
sampled token, one by one, and with respect to the weights of a real model.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from estimator_tools import everywhere, longer, make_row  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from property_tools import FULL  # noqa: E402
from torch.nn.functional import pad  # noqa: E402
from trainer_tools import make_trainer  # noqa: E402

from agent_gym.trainers.batch import NOT_SAMPLED, TrainingEpisode, collate, select_rows  # noqa: E402
from agent_gym.trainers.credit import Timeline, experience  # noqa: E402
from agent_gym.trainers.estimators import ESTIMATORS, Credit, assign  # noqa: E402

CPU = torch.device("cpu")
CREDIT = Credit(gamma=0.99, lam=0.9, step_gamma=0.95, step_lam=0.8)


def make_episode(number: int, rng: random.Random, *, split: float = 0.3) -> TrainingEpisode:
    """Draw an episode of a group of two, whose sampled ids are 1000 x episode + 10 x step + place.

    A new row begins before a step with the probability `split`.
    """
    n_steps = rng.randint(1, 4)
    rows = [make_row([7], [NOT_SAMPLED], [0.0])]
    for k in range(n_steps):
        if k and rng.random() < split:
            rows.append(make_row([7], [NOT_SAMPLED], [0.0]))
        n_tokens, n_world = rng.randint(1, 3), rng.randint(0, 3)
        ids = [1000 * (number + 1) + 10 * k + i for i in range(n_tokens)]
        steps, logprobs = [NOT_SAMPLED] * n_world + [k] * n_tokens, [0.0] * n_world + [-1.0] * n_tokens
        rows[-1] = longer(rows[-1], [8] * n_world + ids, steps, logprobs)
    return TrainingEpisode(
        number=number,
        group=number // 2,
        terminated=rng.random() < 0.5,
        rows=rows,
        outcome=[rng.choice([0.0, 0.0, 1.0, rng.random()]) for _ in range(n_steps)],
        process=[rng.choice([0.0, 0.2, -0.1]) for _ in range(n_steps)],
        anchors=[0, *(rng.randint(1, 2) for _ in range(n_steps - 1))],
        success=rng.random() < 0.5,
    )


def value_of(ids: Any) -> Any:
    """The value that a critic has for the state before each token, decided by that token."""
    return ((ids * 37) % 101).double() / 100


def advantages(
    name: str, shares: list[list[TrainingEpisode]], *, extra_rows: int = 1, process_norm: str | None = None
) -> dict[int, list[float]]:
    """Compute the advantage, and with a critic return and value mask, of each sampled token, by its id."""

    def process(episodes: list[TrainingEpisode]) -> Any:
        def run(gather: Any) -> dict[int, list[float]]:
            batch = collate(episodes, sum(len(e.rows) for e in episodes) + extra_rows, 0)
            timeline, known = Timeline(batch, len(episodes)), dict[str, Any]()
            if ESTIMATORS[name].needs_critic:
                known["values"] = timeline.read(value_of(batch["input_ids"]))
            local, numbers = experience(episodes, timeline, **known), [e.number for e in episodes]
            # The first of each group stands for its greedy episode.
            greedy = [number for number in numbers if number % 2 == 0]
            options: dict[str, Any] = {"greedy": greedy, "process_norm": process_norm, "gather": gather}
            options["running_means"] = {} if ESTIMATORS[name].needs_means else None
            estimate, mask = assign(ESTIMATORS[name], CREDIT, local, numbers, **options), batch["action_mask"]
            columns = [c for c in (estimate.advantages, estimate.returns, estimate.value_mask) if c is not None]
            laid = torch.stack([timeline.write(column).double() for column in columns], -1)
            assert (laid[~mask] == 0).all() and laid.isfinite().all()
            return dict(zip(batch["input_ids"][mask].tolist(), laid[mask].tolist(), strict=True))

        return run

    by_id: dict[int, list[float]] = {}
    for part in everywhere(*map(process, shares)):
        by_id |= part
    return by_id


def same(one: dict[int, list[float]], other: dict[int, list[float]]) -> None:
    assert one.keys() == other.keys()
    assert all(other[token] == pytest.approx(expected, abs=1e-6) for token, expected in one.items())


@pytest.mark.parametrize("name", ESTIMATORS)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([1, 2, 4, 6]), norm=st.sampled_from([None, "prime", "group"]))
@settings(max_examples=40 if FULL else 8)
def test_padding_world_tokens_rows_and_processes_change_nothing(name: str, seed: int, n: int, norm: str | None) -> None:
    episodes = [make_episode(i, random.Random(seed + i)) for i in range(n)]
    usual = advantages(name, [episodes], process_norm=norm)
    rng = random.Random(seed)

    # The same episodes in other company: shuffled, padded by more rows, shared out to three processes.
    shuffled = rng.sample(episodes, n)
    same(usual, advantages(name, [shuffled], extra_rows=3, process_norm=norm))
    cuts = sorted(rng.randint(0, n) for _ in range(2))
    shares = [shuffled[: cuts[0]], shuffled[cuts[0] : cuts[1]], shuffled[cuts[1] :]]
    same(usual, advantages(name, shares, process_norm=norm))

    # The same steps in other rows, with other words of the world between them.
    def relaid(episode: TrainingEpisode) -> TrainingEpisode:
        rows = [make_row([7], [NOT_SAMPLED], [0.0])]
        for k in range(len(episode.outcome)):
            if k and rng.random() < 0.5:
                rows.append(make_row([7], [NOT_SAMPLED], [0.0]))
            words = rng.randint(0, 5)
            ids = [
                t for row in episode.rows for t, s in zip(row.token_ids.tolist(), row.step_of, strict=True) if s == k
            ]
            rows[-1] = longer(rows[-1], [9] * words + ids, [NOT_SAMPLED] * words + [k] * len(ids))
        return dataclasses.replace(episode, rows=rows)

    same(usual, advantages(name, [[relaid(episode) for episode in episodes]], process_norm=norm))


def test_a_timeline_reads_and_writes_the_same_tokens() -> None:
    episodes = [make_episode(i, random.Random(i), split=0.7) for i in range(5)]
    batch = collate(episodes, 30, 0)
    timeline = Timeline(batch, 5)
    ids = timeline.read(batch["input_ids"]).long()
    for i, episode in enumerate(episodes):
        expected = [
            t
            for row in episode.rows
            for t, s in zip(row.token_ids.tolist(), row.step_of, strict=True)
            if s != NOT_SAMPLED
        ]
        assert ids[i][timeline.mask[i]].tolist() == sorted(expected)  # ids rise with step and place
        assert (ids[i][~timeline.mask[i]] == 0).all()
    back = timeline.write(ids.double())
    assert torch.equal(back.long(), batch["input_ids"] * batch["action_mask"])


def test_no_episodes_at_all() -> None:
    for name in ESTIMATORS:
        assert advantages(name, [[]]) == {}
        one = [make_episode(0, random.Random(0))]
        same(advantages(name, [one]), advantages(name, [[], one, []]))


# Gradients.

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
        # As many tokens as the episodes have, or the gradients would be too small to compare.
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
        # A critic that is not zero, or nothing would depend on it.
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
@settings(max_examples=12 if FULL else 4)
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
    same([select_rows(usual, part) for part in order.split(cut)])
    args = trainer.args
    args.micro_batch_tokens, args.packing = data.draw(st.integers(2, 200)), data.draw(st.booleans())
    try:
        # The last row is a dummy, which fills the passes that only other processes need.
        same([select_rows(usual, piece) for piece in [*trainer._pieces(usual), torch.tensor([len(order) - 1])]])
    finally:
        args.micro_batch_tokens, args.packing = None, False
    wide = {name: pad(value, (0, 3)) if value.ndim > 1 else value for name, value in usual.items()}
    wide["step_of"] = pad(usual["step_of"], (0, 3), value=-1)
    same([wide])
