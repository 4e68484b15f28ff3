"""What an estimator sees of an episode, worked out by hand on one with steps of 2, 0 and 1 tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import Played, Step, pack  # noqa: E402

LONG = Step(outcome=1.0, process=0.5, penalties=(-0.25, -0.5), values=(3.0, 4.0))
SILENT = Step(outcome=8.0, process=2.0, penalties=(), values=())
SHORT = Step(outcome=16.0, penalties=(-1.0,), values=(5.0,))


def test_rewards_stand_on_the_last_token_and_none_vanishes() -> None:
    experience = pack([Played((LONG, SILENT, SHORT)), Played((SILENT, SHORT))], extra_steps=1, extra_tokens=1)
    assert experience.token_rewards.tolist() == [[-0.25, 11.0, 15.0, 0.0], [25.0, 0.0, 0.0, 0.0]]
    assert experience.acting_rewards.tolist() == [[10.75, 0.0, 15.0, 0.0], [0.0, 25.0, 0.0, 0.0]]
    assert experience.step_rewards.tolist() == [[0.75, 10.0, 15.0, 0.0], [10.0, 15.0, 0.0, 0.0]]
    assert experience.step_penalty.tolist() == [[-0.75, 0.0, -1.0, 0.0], [0.0, -1.0, 0.0, 0.0]]


def test_an_episode_return_leaves_the_process_rewards_out() -> None:
    assert pack([Played((LONG, SILENT, SHORT))]).episode_returns.tolist() == [23.25]


def test_steps_begin_and_end_at_their_own_tokens() -> None:
    experience = pack([Played((LONG, SILENT, SHORT)), Played((SHORT,))], extra_tokens=1)
    assert experience.first_token_mask.tolist() == [[True, False, True, False], [True, False, False, False]]
    assert experience.last_token_mask.tolist() == [[False, True, True, False], [True, False, False, False]]
    assert experience.acting_steps.tolist() == [[True, False, True], [True, False, False]]
    assert experience.to_steps(experience.values).tolist() == [[3.0, 0.0, 5.0], [5.0, 0.0, 0.0]]
    per_step = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert experience.to_tokens(per_step).tolist() == [[1.0, 1.0, 3.0, 0.0], [4.0, 0.0, 0.0, 0.0]]


def test_an_episode_without_tokens_has_no_token_rewards() -> None:
    experience = pack([Played((SILENT,))], extra_tokens=2)
    assert experience.token_rewards.tolist() == [[0.0, 0.0]]


def test_numbers_of_any_precision_are_taken() -> None:
    exact = pack([Played((LONG, SHORT))])
    given = {name: getattr(exact, name) for name in type(exact).__dataclass_fields__}
    rounded = {name: v.float() if v is not None and v.is_floating_point() else v for name, v in given.items()}
    again = type(exact)(**rounded)
    assert again.outcome.dtype == torch.float64 and torch.equal(again.token_rewards, exact.token_rewards)
