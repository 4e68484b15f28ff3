"""GiGPO: steps from the same state are compared, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    Played,
    Step,
    batches,
    mean_and_std,
    numbers,
    pack,
    process_to_go,
    same,
    step_of_tokens,
    total,
)
from hypothesis import given, settings  # noqa: E402

from agent_gym.trainers.estimators import Credit, get_estimator  # noqa: E402


def normalised(number: float, peers: list[float], everybody: list[float], scale: str) -> float:
    mean, std = mean_and_std(peers)
    unit = {"group": std + 1e-4, "batch": mean_and_std(everybody)[1] + 1e-4, "none": 1.0}[scale]
    return (number - mean) / unit


def score(episode: Played, k: int, gamma: float) -> float:
    later = enumerate(episode.steps[k:])
    return sum(gamma**j * (step.outcome + step.process + sum(step.penalties)) for j, step in later)


def oracle(episodes: list[Played], credit: Credit) -> list[list[float]]:
    scores = [(e, k, score(e, k, credit.step_gamma)) for e in episodes for k in range(len(e.steps))]
    everybody = [points for _, _, points in scores]
    rows = []
    for me in episodes:
        siblings = [total(other) for other in episodes if other.group == me.group]
        whole = normalised(total(me), siblings, [total(other) for other in episodes], credit.scale)
        later, row = process_to_go(me, credit.step_gamma), []
        for k in step_of_tokens(me):
            here = me.steps[k].anchor
            peers = [points for e, j, points in scores if e.group == me.group and e.steps[j].anchor == here]
            single = normalised(score(me, k, credit.step_gamma), peers, everybody, credit.scale)
            row.append(whole + credit.step_weight * single + later[k])
        rows.append(row)
    return rows


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_the_estimator_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    estimate = get_estimator("gigpo").estimate(pack(episodes), credit)
    same(numbers(episodes, estimate.advantages), oracle(episodes, credit))


@given(batches(), CREDITS)
def test_without_common_states_or_without_their_weight_it_is_grpo(episodes: list[Played], credit: Credit) -> None:
    grpo = get_estimator("grpo").estimate(pack(episodes), credit).advantages
    weightless = get_estimator("gigpo").estimate(pack(episodes), replace(credit, step_weight=0.0))
    assert torch.equal(weightless.advantages, grpo)
    lonely = pack(episodes)
    lonely.anchors = torch.arange(lonely.outcome.numel()).view_as(lonely.outcome)
    assert torch.equal(get_estimator("gigpo").estimate(lonely, credit).advantages, grpo)


def test_two_ways_out_of_the_same_state_by_hand() -> None:
    left = Played((Step(anchor=1), Step(anchor=2, outcome=1.0)))
    right = Played((Step(anchor=1), Step(anchor=3)))
    credit = Credit(step_gamma=0.5, scale="none", step_weight=2.0)
    estimate = get_estimator("gigpo").estimate(pack([left, right]), credit)
    # Episodes: 1 against 0. From state 1: 0.5 against 0. States 2 and 3 were met once.
    assert estimate.advantages.tolist() == [[0.5 + 2.0 * 0.25, 0.5], [-0.5 - 2.0 * 0.25, -0.5]]


def test_the_step_into_a_circle_is_worse_than_the_step_out_of_it() -> None:
    circle = Played((Step(anchor=1), Step(anchor=2), Step(anchor=1), Step(anchor=4, outcome=1.0)))
    estimate = get_estimator("gigpo").estimate(pack([circle]), Credit(step_gamma=0.5, scale="none"))
    assert estimate.advantages.tolist() == [[-0.1875, 0.0, 0.1875, 0.0]]


def test_equal_states_of_different_tasks_are_not_compared() -> None:
    one, other = Played((Step(anchor=1, outcome=1.0),), group=0), Played((Step(anchor=1),), group=1)
    assert not get_estimator("gigpo").estimate(pack([one, other]), Credit()).advantages.any()
