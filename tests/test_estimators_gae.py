"""GAE over tokens, in every pattern of masked tokens, against its defining sum and against the usual array form."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    DISCOUNTS,
    Played,
    Step,
    batches,
    explicit_gae,
    numbers,
    pack,
    reward_of_tokens,
    same,
    value_of_tokens,
    whitened_rows,
)
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.estimators import Credit, get_estimator  # noqa: E402
from agent_gym.trainers.estimators.gae import gae  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_the_estimator_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    experience = pack(episodes)
    estimate = get_estimator("gae").estimate(experience, credit)
    advantages, returns = [], []
    for episode in episodes:
        last = 0.0 if episode.terminated else episode.last_value
        rewards, values = reward_of_tokens(episode), value_of_tokens(episode)
        better, targets = explicit_gae(rewards, values, last, credit.gamma, credit.lam)
        advantages.append(better)
        returns.append(targets)
    same(numbers(episodes, estimate.advantages), whitened_rows(advantages) if credit.whiten else advantages, 1e-6)
    same(numbers(episodes, estimate.returns), returns)
    assert torch.equal(estimate.value_mask, experience.token_mask)


@settings(max_examples=500)
@given(st.integers(1, 4), st.integers(0, 10), SEEDS, DISCOUNTS, DISCOUNTS)
def test_masked_moments_do_not_exist(n: int, t: int, seed: int, gamma: float, lam: float) -> None:
    random = np.random.default_rng(seed)
    rewards, values, last = random.normal(size=(n, t)), random.normal(size=(n, t)), random.normal(size=n)
    mask = random.random((n, t)) < random.random()
    # Whatever stands outside the mask must not be read, not even multiplied by 0.
    values[~mask], rewards[~mask] = np.nan, np.inf
    given_ = (torch.from_numpy(array) for array in (rewards, values, mask, last))
    advantages, returns = gae(*given_, gamma, lam)
    assert advantages.shape == returns.shape == (n, t)
    for row in range(n):
        here = mask[row]
        expected = explicit_gae(rewards[row, here].tolist(), values[row, here].tolist(), last[row], gamma, lam)
        assert advantages[row, here].tolist() == pytest.approx(expected[0], abs=1e-9)
        assert returns[row, here].tolist() == pytest.approx(expected[1], abs=1e-9)
        assert not advantages[row, ~here].any() and not returns[row, ~here].any()


@settings(max_examples=500)
@given(SEEDS, DISCOUNTS, DISCOUNTS)
def test_episodes_of_single_tokens_are_the_usual_arrays_of_ppo(seed: int, gamma: float, lam: float) -> None:
    # As CleanRL stores rollouts: environments that restart by themselves, side by side, `dones` telling where.
    random = np.random.default_rng(seed)
    moments, envs = 8, 3
    rewards, values = random.normal(size=(moments, envs)), random.normal(size=(moments, envs))
    ended, next_value = random.random((moments, envs)) < 0.3, random.normal(size=envs)
    expected = np.zeros((moments, envs))
    carried = np.zeros(envs)
    for t in range(moments - 1, -1, -1):
        nonterminal = 1.0 - ended[t]
        following = next_value if t == moments - 1 else values[t + 1]
        carried = rewards[t] + gamma * following * nonterminal - values[t] + gamma * lam * nonterminal * carried
        expected[t] = carried

    episodes, cut = [], []
    for e in range(envs):
        start = 0
        for t in range(moments):
            if ended[t, e] or t == moments - 1:
                steps = tuple(Step(outcome=rewards[s, e], values=(values[s, e],)) for s in range(start, t + 1))
                episodes.append(Played(steps, terminated=bool(ended[t, e]), last_value=next_value[e]))
                cut.append(expected[start : t + 1, e].tolist())
                start = t + 1
    credit = Credit(gamma=gamma, lam=lam, whiten=False)
    same(numbers(episodes, get_estimator("gae").estimate(pack(episodes), credit).advantages), cut)


def test_by_hand_where_the_task_ended_and_where_we_stopped_it() -> None:
    steps = (Step(values=(0.5,)), Step(outcome=1.0, values=(0.25,)))
    episodes = [Played(steps, terminated=True, last_value=8.0), Played(steps, terminated=False, last_value=8.0)]
    estimate = get_estimator("gae").estimate(pack(episodes), Credit(gamma=0.5, lam=0.5, whiten=False))
    # Ended: 1 - 0.25 = 0.75, then 0.5 x 0.25 - 0.5 + 0.25 x 0.75. Stopped: 0.5 x 8 more, a quarter of it before.
    assert estimate.advantages.tolist() == [[-0.1875, 0.75], [0.8125, 4.75]]
    assert estimate.returns.tolist() == [[0.3125, 1.0], [1.3125, 5.0]]


def test_returns_are_not_whitened() -> None:
    steps = (Step(values=(0.5,)), Step(outcome=1.0, values=(0.25,)))
    plain, white = (
        get_estimator("gae").estimate(pack([Played(steps)]), Credit(whiten=whiten)) for whiten in (False, True)
    )
    assert torch.equal(plain.returns, white.returns)
    assert white.advantages.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_a_discount_of_zero_is_a_wall() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    walls = torch.tensor([[1.0, 0.0, 1.0]])
    advantages, _ = gae(rewards, values, torch.ones(1, 3).bool(), torch.zeros(1), walls, 1.0)
    assert advantages.tolist() == [[2.5, 1.5, 3.5]]
