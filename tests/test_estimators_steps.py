"""GAE over steps, and over steps and tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    Played,
    Step,
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
from hypothesis import given, settings  # noqa: E402

from agent_gym.trainers.estimators import Credit, get_estimator  # noqa: E402

TWO = (Step(penalties=(0.0, 0.0), values=(0.5, 0.25)), Step(outcome=1.0, values=(0.75,)))


def spoken(episode: Played) -> list[list[int]]:
    """The tokens of each step that has any."""
    of = step_of_tokens(episode)
    return [[t for t in range(len(of)) if of[t] == k] for k in range(len(episode.steps)) if k in of]


def over_steps(episode: Played, credit: Credit) -> tuple[list[float], list[float], list[float]]:
    """Advantages, returns and rewards of the steps with tokens."""
    per_token, values = reward_of_tokens(episode), value_of_tokens(episode)
    rewards = [sum(per_token[t] for t in tokens) for tokens in spoken(episode)]
    firsts = [values[tokens[0]] for tokens in spoken(episode)]
    last = 0.0 if episode.terminated else episode.last_value
    return *explicit_gae(rewards, firsts, last, credit.step_gamma, credit.step_lam), rewards


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_step_gae_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    experience = pack(episodes)
    estimate = get_estimator("step_gae").estimate(experience, credit)
    advantages, returns = [], []
    levels = [over_steps(episode, credit) for episode in episodes]
    every_step = [a for better, _, _ in levels for a in better]
    votes = iter(whitened(every_step) if credit.whiten else every_step)
    for episode, (_, targets, _) in zip(episodes, levels, strict=True):
        advantages.append([a for tokens in spoken(episode) for a in [next(votes)] * len(tokens)])
        steps = zip(spoken(episode), targets, strict=True)
        returns.append([x for tokens, target in steps for x in [target] + [0.0] * (len(tokens) - 1)])
    same(numbers(episodes, estimate.advantages), advantages, 1e-6)
    same(numbers(episodes, estimate.returns), returns)
    assert torch.equal(estimate.value_mask, experience.first_token_mask)


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_bilevel_gae_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    experience = pack(episodes)
    estimate = get_estimator("bilevel_gae").estimate(experience, credit)
    advantages, returns = [], []
    for episode in episodes:
        per_token, values = reward_of_tokens(episode), value_of_tokens(episode)
        better: list[float] = []
        targets: list[float] = []
        for tokens, target, earned in zip(spoken(episode), *over_steps(episode, credit)[1:], strict=True):
            rewards = [per_token[t] for t in tokens]
            rewards[-1] += target - earned
            inside = explicit_gae(rewards, [values[t] for t in tokens], 0.0, credit.gamma, credit.lam)
            better += inside[0]
            targets += inside[1]
        advantages.append(better)
        returns.append(targets)
    same(numbers(episodes, estimate.advantages), whitened_rows(advantages) if credit.whiten else advantages, 1e-6)
    same(numbers(episodes, estimate.returns), returns)
    assert torch.equal(estimate.value_mask, experience.token_mask)


@given(batches(), CREDITS)
def test_with_one_token_a_step_all_three_are_one(episodes: list[Played], credit: Credit) -> None:
    episodes = [
        replace(e, steps=tuple(replace(s, penalties=(s.outcome / 2,), values=(s.process,)) for s in e.steps))
        for e in episodes
    ]
    credit = replace(credit, step_gamma=credit.gamma, step_lam=credit.lam)
    names = ("gae", "step_gae", "bilevel_gae")
    token, step, both = (get_estimator(name).estimate(pack(episodes), credit) for name in names)
    for other in (step, both):
        torch.testing.assert_close(other.advantages, token.advantages, rtol=0, atol=1e-6)
        torch.testing.assert_close(other.returns, token.returns, rtol=0, atol=1e-9)
        assert torch.equal(other.value_mask, token.value_mask)


@given(batches())
def test_without_any_discount_both_levels_are_gae_over_tokens(episodes: list[Played]) -> None:
    credit = Credit(whiten=False)
    token, both = (get_estimator(name).estimate(pack(episodes), credit) for name in ("gae", "bilevel_gae"))
    torch.testing.assert_close(both.advantages, token.advantages, rtol=0, atol=1e-9)
    torch.testing.assert_close(both.returns, token.returns, rtol=0, atol=1e-9)


def test_step_gae_by_hand() -> None:
    estimate = get_estimator("step_gae").estimate(pack([Played(TWO)]), Credit(step_gamma=0.5, whiten=False))
    # Second step: 1 - 0.75. First: 0.5 x 0.75 - 0.5 + 0.5 x 0.25 = 0. The value of the second token is never read.
    assert estimate.advantages.tolist() == [[0.0, 0.0, 0.25]]
    assert estimate.returns.tolist() == [[0.5, 0.0, 1.0]]
    assert estimate.value_mask.tolist() == [[True, False, True]]


def test_bilevel_gae_by_hand() -> None:
    credit = Credit(gamma=0.5, step_gamma=0.5, whiten=False)
    estimate = get_estimator("bilevel_gae").estimate(pack([Played(TWO)]), credit)
    # The steps' targets are 0.5 and 1, as above. Inside the first step: 0.5 - 0.25, then half of what it is to come.
    assert estimate.advantages.tolist() == [[-0.25, 0.25, 0.25]]
    assert estimate.returns.tolist() == [[0.25, 0.5, 1.0]]


def test_bilevel_gae_counts_a_penalty_once_and_not_against_later_tokens() -> None:
    first = Step(penalties=(-1.0, 0.0), values=(0.0, 0.0))
    credit = Credit(step_gamma=0.5, whiten=False)
    estimate = get_estimator("bilevel_gae").estimate(pack([Played((first, Step(outcome=4.0)))]), credit)
    assert estimate.advantages.tolist() == [[1.0, 2.0, 4.0]]


def test_wordy_steps_have_one_vote() -> None:
    def advantages(words: int) -> list[float]:
        wordy = Step(outcome=3.0, penalties=(0.0,) * words, values=(0.0,) * words)
        episode = Played((wordy, Step(outcome=1.0), Step()))
        return get_estimator("step_gae").estimate(pack([episode]), Credit()).advantages[0].tolist()

    assert advantages(9)[8:] == advantages(1)


@pytest.mark.parametrize("name", ["gae", "step_gae", "bilevel_gae"])
@pytest.mark.parametrize("silent", [0, 1, 2])
def test_the_reward_of_a_step_without_tokens_does_not_vanish(name: str, silent: int) -> None:
    steps = [Step(), Step()]
    steps.insert(silent, Step(outcome=1.0, penalties=(), values=()))
    estimate = get_estimator(name).estimate(pack([Played(tuple(steps))]), Credit(whiten=False))
    # It goes to the step before, and to the one after where none is before; so it is the last token's once.
    assert estimate.advantages.tolist() == [[1.0, 1.0 if silent == 2 else 0.0]]
