"""From rows to episodes and back: padding, the world's tokens and the order of rows change no advantage."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from estimator_tools import append, make_row  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.batch import WORLD, TrainingEpisode, collate, step_of  # noqa: E402
from agent_gym.trainers.credit import (  # noqa: E402
    Timeline,
    experience,
    merge,
    shape_rewards,  # noqa: E402
    with_baselines,
)
from agent_gym.trainers.estimators import ESTIMATORS, Credit  # noqa: E402

CPU = torch.device("cpu")
CREDIT = Credit(gamma=0.99, lam=0.9, step_gamma=0.95, step_lam=0.8)


def make_episode(number: int, rng: random.Random, *, split: float = 0.3, world: int = 3) -> TrainingEpisode:
    """Draw an episode whose ids tell where each sampled token belongs: 1000 x episode + 10 x step + place.

    Args:
        number: of the episode; groups have two members.
        rng: where everything else comes from.
        split: how often a new row begins before a step.
        world: most tokens of the world between two steps.
    """
    n_steps = rng.randint(1, 4)
    rows = [make_row([7], [WORLD], [0.0])]
    for k in range(n_steps):
        if k and rng.random() < split:
            rows.append(make_row([7], [WORLD], [0.0]))
        row, n_tokens, n_world = rows[-1], rng.randint(1, 3), rng.randint(0, world)
        ids = [1000 * (number + 1) + 10 * k + i for i in range(n_tokens)]
        append(row, [8] * n_world + ids, [WORLD] * n_world + [k] * n_tokens, [0.0] * n_world + [-1.0] * n_tokens)
    return TrainingEpisode(
        number=number,
        group=number // 2,
        terminated=rng.random() < 0.5,
        rows=rows,
        outcome=[rng.choice([0.0, 0.0, 1.0, rng.random()]) for _ in range(n_steps)],
        process=[rng.choice([0.0, 0.2, -0.1]) for _ in range(n_steps)],
        anchors=[0, *(rng.randint(1, 2) for _ in range(n_steps - 1))],
    )


def value_of(ids: Any) -> Any:
    """A critic that looks only at the token that comes next, as far as the test is concerned."""
    return ((ids * 37) % 101).double() / 100


def advantages(
    name: str, shares: list[list[TrainingEpisode]], *, extra_rows: int = 1, process_norm: str | None = None
) -> dict[int, tuple[float, float, bool]]:
    """Compute the advantage, return and value mask of each sampled token, by its id, over all processes."""
    parts, held = [], []
    for episodes in shares:
        batch = collate(episodes, sum(len(e.rows) for e in episodes) + extra_rows, 0, CPU)
        timeline = Timeline(batch, len(episodes))
        values, last = None, None
        if ESTIMATORS[name].needs_critic:
            values = timeline.read(value_of(batch["input_ids"]))
            last = torch.tensor([0.1 * e.number for e in episodes], dtype=torch.float64)
        found = experience(episodes, timeline, values=values, last_values=last)
        parts.append(([e.number for e in episodes], found))
        held.append((batch, timeline, [e.number for e in episodes]))
    numbers, everyone = merge(parts)
    everyone = shape_rewards(everyone, process_norm, 1.0, CREDIT.step_gamma)
    if ESTIMATORS[name].needs_baseline:
        # The first of each group stands for its greedy episode.
        everyone = with_baselines(everyone, torch.tensor([number % 2 == 0 for number in numbers], dtype=torch.bool))
    estimate = ESTIMATORS[name].estimate(everyone, CREDIT)
    by_id: dict[int, tuple[float, float, bool]] = {}
    for batch, timeline, mine in held:
        index, width = torch.tensor([numbers.index(n) for n in mine], dtype=torch.long), timeline.mask.size(1)

        def lay(numbers_of: Any, timeline: Any = timeline, index: Any = index, width: int = width) -> Any:
            return None if numbers_of is None else timeline.write(numbers_of[index, :width], CPU)

        laid, returns, asked = lay(estimate.advantages), lay(estimate.returns), lay(estimate.value_mask)
        assert (laid[~batch["action_mask"]] == 0).all()
        for row, column in batch["action_mask"].nonzero().tolist():
            token = int(batch["input_ids"][row, column])
            by_id[token] = (
                float(laid[row, column]),
                0.0 if returns is None else float(returns[row, column]),
                asked is not None and bool(asked[row, column]),
            )
    return by_id


def same(one: dict[int, Any], other: dict[int, Any]) -> None:
    assert one.keys() == other.keys()
    for token, (advantage, target, asked) in one.items():
        assert other[token][0] == pytest.approx(advantage, abs=1e-6)
        assert other[token][1] == pytest.approx(target, abs=1e-6)
        assert other[token][2] == asked


@pytest.mark.parametrize("name", ESTIMATORS)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([1, 2, 4, 6]), norm=st.sampled_from([None, "prime", "group"]))
@settings(max_examples=40)
def test_padding_world_tokens_rows_and_processes_change_nothing(name: str, seed: int, n: int, norm: str | None) -> None:
    episodes = [make_episode(i, random.Random(seed + i)) for i in range(n)]
    usual = advantages(name, [episodes], process_norm=norm)
    assert all(torch.isfinite(torch.tensor(value[:2])).all() for value in usual.values())
    rng = random.Random(seed)

    # The same episodes in other company: shuffled, padded by more rows, shared out to three processes.
    shuffled = rng.sample(episodes, n)
    same(usual, advantages(name, [shuffled], extra_rows=3, process_norm=norm))
    cuts = sorted(rng.randint(0, n) for _ in range(2))
    shares = [shuffled[: cuts[0]], shuffled[cuts[0] : cuts[1]], shuffled[cuts[1] :]]
    same(usual, advantages(name, shares, process_norm=norm))

    # The same steps in other rows, with other words of the world between them.
    def relaid(episode: TrainingEpisode) -> TrainingEpisode:
        rows = [make_row([7], [WORLD], [0.0])]
        for k in range(len(episode.outcome)):
            if k and rng.random() < 0.5:
                rows.append(make_row([7], [WORLD], [0.0]))
            words = rng.randint(0, 5)
            ids = [t for row in episode.rows for t, s in zip(row.token_ids, step_of(row), strict=True) if s == k]
            append(rows[-1], [9] * words + ids, [WORLD] * words + [k] * len(ids))
        return dataclasses.replace(episode, rows=rows)

    same(usual, advantages(name, [[relaid(episode) for episode in episodes]], process_norm=norm))


def test_a_timeline_reads_and_writes_the_same_tokens() -> None:
    episodes = [make_episode(i, random.Random(i), split=0.7) for i in range(5)]
    batch = collate(episodes, 30, 0, CPU)
    timeline = Timeline(batch, 5)
    ids = timeline.read(batch["input_ids"]).long()
    for i, episode in enumerate(episodes):
        expected = [t for row in episode.rows for t, s in zip(row.token_ids, step_of(row), strict=True) if s != WORLD]
        assert ids[i][timeline.mask[i]].tolist() == sorted(expected)  # ids rise with step and place
        assert (ids[i][~timeline.mask[i]] == 0).all()
        own = (batch["episode_of"] == i).nonzero().view(-1)
        assert int(timeline.last_row[i]) == int(own[-1])
    back = timeline.write(ids.double(), CPU)
    assert torch.equal(back.long(), batch["input_ids"] * batch["action_mask"])


def test_no_episodes_at_all() -> None:
    for name in ESTIMATORS:
        assert advantages(name, [[]]) == {}
        one = [make_episode(0, random.Random(0))]
        same(advantages(name, [one]), advantages(name, [[], one, []]))
