"""GAE over tokens, over steps and over both, against the defining sum; and process rewards on one scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    DISCOUNTS,
    Played,
    batches,
    explicit_gae,
    numbers,
    pack,
    reward_of_tokens,
    same,
    step_of_tokens,
    value_of_tokens,
    whitened,
    whitened_rows,
)
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from property_tools import examples  # noqa: E402

from agent_gym.trainers.credit import normalize_process  # noqa: E402
from agent_gym.trainers.estimators import Credit, get_estimator  # noqa: E402
from agent_gym.trainers.estimators.gae import gae  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

PROCESS_NORMS = [norm for norm in choices(AgentSettings, "process_norm") if norm]


def acting(episode: Played) -> list[list[int]]:
    """The tokens of each step that has any."""
    of = step_of_tokens(episode)
    return [[t for t in range(len(of)) if of[t] == k] for k in range(len(episode.steps)) if k in of]


def over_steps(episode: Played, credit: Credit) -> tuple[list[float], list[float], list[float]]:
    """Advantages, returns and rewards of the steps with tokens."""
    per_token, values = reward_of_tokens(episode), value_of_tokens(episode)
    rewards = [sum(per_token[t] for t in tokens) for tokens in acting(episode)]
    firsts = [values[tokens[0]] for tokens in acting(episode)]
    return *explicit_gae(rewards, firsts, credit.step_gamma, credit.step_lam), rewards


@examples(500)
@given(batches(), CREDITS)
def test_gae_and_bilevel_gae_are_their_oracles(episodes: list[Played], credit: Credit) -> None:
    experience = pack(episodes)
    for name in ("gae", "bilevel_gae"):
        advantages: list[list[float]] = []
        returns: list[list[float]] = []
        for episode in episodes:
            rewards, values = reward_of_tokens(episode), value_of_tokens(episode)
            if name == "gae":
                better, targets = explicit_gae(rewards, values, credit.gamma, credit.lam)
            else:
                better, targets = [], []
                for tokens, target, earned in zip(acting(episode), *over_steps(episode, credit)[1:], strict=True):
                    of_step = [rewards[t] for t in tokens]
                    of_step[-1] += target - earned
                    inside = explicit_gae(of_step, [values[t] for t in tokens], credit.gamma, credit.lam)
                    better, targets = better + inside[0], targets + inside[1]
            advantages.append(better)
            returns.append(targets)
        estimate = get_estimator(name).estimate(experience, credit)
        same(numbers(episodes, estimate.advantages), whitened_rows(advantages) if credit.whiten else advantages, 1e-6)
        same(numbers(episodes, estimate.returns), returns)
        assert torch.equal(estimate.value_mask, experience.token_mask)


@examples(500)
@given(batches(), CREDITS)
def test_step_gae_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    experience = pack(episodes)
    estimate = get_estimator("step_gae").estimate(experience, credit)
    advantages, returns = [], []
    levels = [over_steps(episode, credit) for episode in episodes]
    every_step = [a for better, _, _ in levels for a in better]
    votes = iter(whitened(every_step) if credit.whiten else every_step)  # one per step, however many words it has
    for episode, (_, targets, _) in zip(episodes, levels, strict=True):
        advantages.append([a for tokens in acting(episode) for a in [next(votes)] * len(tokens)])
        steps = zip(acting(episode), targets, strict=True)
        returns.append([x for tokens, target in steps for x in [target] + [0.0] * (len(tokens) - 1)])
    same(numbers(episodes, estimate.advantages), advantages, 1e-6)
    same(numbers(episodes, estimate.returns), returns)
    assert torch.equal(estimate.value_mask, experience.first_token_mask)


@examples(300)
@given(batches(), CREDITS)
def test_pspo_gives_the_credit_of_steps_and_trains_the_critic_at_all_their_tokens(
    episodes: list[Played], credit: Credit
) -> None:
    experience = pack(episodes)
    estimate = get_estimator("pspo").estimate(experience, credit)
    levels = [over_steps(episode, credit) for episode in episodes]
    every_step = [a for better, _, _ in levels for a in better]
    votes = iter(whitened(every_step) if credit.whiten else every_step)
    advantages, targets = [], []
    for episode, (_, of_steps, _) in zip(episodes, levels, strict=True):
        advantages.append([a for tokens in acting(episode) for a in [next(votes)] * len(tokens)])
        pairs = zip(acting(episode), of_steps, strict=True)
        targets.append([target for tokens, target in pairs for _ in tokens])
    same(numbers(episodes, estimate.advantages), advantages, 1e-6)
    same(numbers(episodes, estimate.returns), targets)
    assert torch.equal(estimate.value_mask, experience.token_mask)


@examples(500)
@given(st.integers(1, 4), st.integers(0, 10), st.integers(0, 2**32 - 1), DISCOUNTS, DISCOUNTS)
def test_masked_moments_do_not_exist(n: int, t: int, seed: int, gamma: float, lam: float) -> None:
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(n, t)), random.normal(size=(n, t))
    mask = random.random((n, t)) < random.random()
    # Whatever stands outside the mask must not be read, not even multiplied by 0.
    values[~mask], rewards[~mask] = np.nan, np.inf
    given_ = (torch.from_numpy(array) for array in (rewards, values, mask))
    advantages, returns = gae(*given_, gamma, lam)
    assert advantages.shape == returns.shape == (n, t)
    for row in range(n):
        here = mask[row]
        expected = explicit_gae(rewards[row, here].tolist(), values[row, here].tolist(), gamma, lam)
        assert advantages[row, here].tolist() == pytest.approx(expected[0], abs=1e-9)
        assert returns[row, here].tolist() == pytest.approx(expected[1], abs=1e-9)
        assert not advantages[row, ~here].any() and not returns[row, ~here].any()


# Process rewards on one scale.

REWARDS = st.lists(st.just(0.0) | st.floats(-1e6, 1e6, width=32), max_size=4)
GAMMAS = st.sampled_from([0.0, 0.5, 0.95, 1.0])
COMPANY = st.lists(st.tuples(REWARDS, st.integers(0, 2), st.booleans()), max_size=4)
Row = tuple[list[float], int, bool]


def normalised(
    rows: list[Row], norm: str, gamma: float = 1.0, extra: int = 0, sources: torch.Tensor | None = None
) -> list[list[float]]:
    """Rows of (process rewards, group, truncated), through tensors and back."""
    width = max([len(rewards) for rewards, _, _ in rows], default=0) + extra
    process = torch.tensor([r + [0.0] * (width - len(r)) for r, _, _ in rows], dtype=torch.float64)
    process = process.view(len(rows), width)
    mask = torch.arange(width) < torch.tensor([len(r) for r, _, _ in rows], dtype=torch.long)[:, None]
    groups = torch.tensor([group for _, group, _ in rows], dtype=torch.long)
    truncated = torch.tensor([stopped for _, _, stopped in rows], dtype=torch.bool)
    # What stands in padding does not count, whatever it is.
    got = normalize_process(torch.where(mask, process, 7.0), mask, groups, truncated, norm, gamma, sources)
    assert got.shape == (len(rows), width) and not got[~mask].any()
    return [row[: len(r)].tolist() for row, (r, _, _) in zip(got, rows, strict=True)]


def to_go(rewards: list[float], gamma: float) -> list[float]:
    return [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]


def oracle(rows: list[Row], norm: str, gamma: float) -> list[list[float]]:
    kept = [[min(x, 0.0) if stopped else x for x in rewards] for rewards, _, stopped in rows]
    result = []
    for me, (_, group, _) in zip(kept, rows, strict=True):
        siblings = [other for other, (_, theirs, _) in zip(kept, rows, strict=True) if theirs == group]
        scope = {"trajectory": [me], "group": siblings, "batch": kept}.get(norm, [])
        paid = [x for row in scope for x in row if x]
        size = math.sqrt(sum(x * x for x in paid) / len(paid)) if paid else 0.0
        if norm == "prime":
            size = max([abs(x) for x in to_go(me, gamma)], default=0.0)
        result.append(me if norm == "none" else [x / (size + 1e-8) for x in me])
    return result


@examples(500)
@given(COMPANY, GAMMAS, st.integers(0, 3))
def test_each_norm_is_its_oracle(rows: list[Row], gamma: float, extra: int) -> None:
    for norm in PROCESS_NORMS:
        got, expected = normalised(rows, norm, gamma, extra), oracle(rows, norm, gamma)
        assert [len(row) for row in got] == [len(row) for row in expected]
        assert sum(got, []) == pytest.approx(sum(expected, []), rel=1e-9, abs=1e-12)
        for (before, _, stopped), after in zip(rows, got, strict=True):  # signs stay, and zero stays zero
            kept = [0.0 if stopped and x > 0 else x for x in before]
            assert all(math.isfinite(y) and (y > 0) == (x > 0) for x, y in zip(kept, after, strict=True))
        if norm == "prime":
            assert all(abs(x) <= 1.0 + 1e-12 for row in got for x in to_go(row, gamma))


@given(REWARDS, COMPANY, GAMMAS, st.sampled_from(PROCESS_NORMS))
def test_the_rewards_of_another_environment_are_no_measure(
    mine: list[float], others: list[Row], gamma: float, norm: str
) -> None:
    rows = [(mine, 0, False), *((rewards, group + 1, stopped) for rewards, group, stopped in others)]
    sources = torch.tensor([4, *[9] * len(others)])
    assert normalised(rows, norm, gamma, sources=sources)[0] == normalised(rows[:1], norm, gamma)[0]
