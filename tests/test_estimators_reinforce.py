"""REINFORCE++, whitening and returns-to-go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    Played,
    Step,
    batches,
    numbers,
    pack,
    reward_of_tokens,
    same,
    whitened_rows,
)
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.estimators import Credit, get_estimator  # noqa: E402
from agent_gym.trainers.estimators.groups import (  # noqa: E402
    reinforce_pp,  # noqa: E402
    returns_to_go,
    whiten,
)


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_the_estimator_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    estimate = get_estimator("reinforce_pp").estimate(pack(episodes), credit)
    expected = []
    for episode in episodes:
        rewards = reward_of_tokens(episode)
        n = len(rewards)
        expected.append([sum(credit.gamma ** (s - t) * rewards[s] for s in range(t, n)) for t in range(n)])
    same(numbers(episodes, estimate.advantages), whitened_rows(expected) if credit.whiten else expected, 1e-6)


def test_only_what_comes_later_counts() -> None:
    rewards = torch.tensor([[1.0, 0.0, 2.0, 0.0]], dtype=torch.float64)
    assert returns_to_go(rewards, 0.5).tolist() == [[1.5, 1.0, 2.0, 0.0]]
    mask = torch.tensor([[True, True, True, False]])
    assert reinforce_pp(rewards, mask, 0.5, whitened=False).tolist() == [[1.5, 1.0, 2.0, 0.0]]
    assert reinforce_pp(rewards, mask, 0.5)[0, :3].tolist() == pytest.approx([0.0, -1.0, 1.0], abs=1e-7)


def test_a_step_reward_reaches_the_steps_before() -> None:
    episode = Played((Step(), Step(), Step(outcome=1.0)))
    estimate = get_estimator("reinforce_pp").estimate(pack([episode]), Credit(whiten=False))
    assert estimate.advantages.tolist() == [[1.0, 1.0, 1.0]]


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans()), max_size=20))
def test_whitening_gives_mean_zero_and_deviation_one(pairs: list[tuple[float, bool]]) -> None:
    values = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    mask = torch.tensor([inside for _, inside in pairs], dtype=torch.bool)
    white = whiten(values, mask)
    assert white.isfinite().all() and not white[~mask].any()
    if mask.sum() > 1 and values[mask].std() > 1e-2:
        assert white[mask].mean().item() == pytest.approx(0.0, abs=1e-9)
        assert white[mask].std().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -0.7, 1e9 + 0.1])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_whitening_numbers_that_agree_gives_exactly_zero(value: float, count: int) -> None:
    values = torch.full((2, 7), value, dtype=torch.float64)
    mask = torch.arange(14).view(2, 7) < count
    assert whiten(values, mask).tolist() == torch.zeros(2, 7).tolist()
