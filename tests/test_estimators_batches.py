"""What holds for every estimator: order, padding and company do not matter, and small batches are no special case."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import CREDITS, Played, Step, batches, numbers, pack, same  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.estimators import ESTIMATORS, Credit, Estimate, Experience, get_estimator  # noqa: E402

# The discounts are powers of two here, so that sums are the same in every order and rounding cannot be blown up.
EXACT = CREDITS.map(lambda credit: replace(credit, gamma=0.5, lam=1.0, step_gamma=1.0, step_lam=0.5))


def parts(episodes: list[Played], estimate: Estimate) -> list[list[list[float]]]:
    tensors = (estimate.advantages, estimate.returns, estimate.value_mask)
    return [numbers(episodes, tensor) for tensor in tensors if tensor is not None]


@given(batches(), EXACT, st.randoms())
def test_the_order_of_the_episodes_does_not_matter(episodes: list[Played], credit: Credit, random: Random) -> None:
    order = list(range(len(episodes)))
    random.shuffle(order)
    shuffled = [episodes[i] for i in order]
    for estimator in ESTIMATORS.values():
        before = parts(episodes, estimator.estimate(pack(episodes), credit))
        after = parts(shuffled, estimator.estimate(pack(shuffled), credit))
        for plain, mixed in zip(before, after, strict=True):
            same(mixed, [plain[i] for i in order], 1e-12)


@given(batches(), EXACT, st.integers(0, 3), st.integers(0, 3))
def test_padding_does_not_matter(episodes: list[Played], credit: Credit, steps: int, tokens: int) -> None:
    for estimator in ESTIMATORS.values():
        plain = estimator.estimate(pack(episodes), credit)
        padded = estimator.estimate(pack(episodes, steps, tokens), credit)
        assert padded.advantages.shape[1] == plain.advantages.shape[1] + tokens
        for one, other in zip(parts(episodes, plain), parts(episodes, padded), strict=True):
            same(other, one, 1e-12)


@given(batches(), batches(), CREDITS)
def test_company_does_not_matter_unless_asked_for(mine: list[Played], others: list[Played], credit: Credit) -> None:
    others = [replace(episode, group=episode.group + 100) for episode in others]
    credit = replace(credit, whiten=False, scale="none" if credit.scale == "batch" else credit.scale)
    for estimator in ESTIMATORS.values():
        alone = estimator.estimate(pack(mine), credit)
        together = estimator.estimate(pack(mine + others), credit)
        for one, both in zip(parts(mine, alone), parts(mine + others, together), strict=True):
            same(both[: len(mine)], one, 1e-9)


def in_sources(mine: list[Played], others: list[Played]) -> Experience:
    """Lay out the episodes of two environments, with tasks of their own."""
    others = [replace(episode, group=episode.group + 100) for episode in others]
    sources = torch.tensor([7] * len(mine) + [3] * len(others))
    return replace(pack(mine + others), sources=sources)


@given(batches(), batches(), CREDITS)
def test_another_environment_in_the_batch_does_not_matter(
    mine: list[Played], others: list[Played], credit: Credit
) -> None:
    for estimator in ESTIMATORS.values():
        alone = estimator.estimate(pack(mine), credit)
        one_source = estimator.estimate(replace(pack(mine), sources=torch.full((len(mine),), 5)), credit)
        assert torch.equal(one_source.advantages, alone.advantages)
        together = estimator.estimate(in_sources(mine, others), credit)
        for one, both in zip(parts(mine, alone), parts([*mine, *others], together), strict=True):
            same(both[: len(mine)], one, 1e-7)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"dr_grpo", "rloo", "remax"}))
def test_environments_of_unlike_rewards_have_advantages_of_equal_size(name: str) -> None:
    def play(unit: float) -> list[Played]:
        """Two tasks in three attempts: rewards of 0 and of `unit`, and a critic that expects a half."""
        wins = [(0, 1), (0, 0), (0, 0), (1, 1), (1, 1), (1, 0)]
        steps = [(Step(values=(unit / 2,)), Step(outcome=unit * win, values=(unit / 2,))) for _, win in wins]
        return [Played(step, task) for step, (task, _) in zip(steps, wins, strict=True)]

    experience = in_sources(play(1.0), play(100.0))
    found = get_estimator(name).estimate(experience, Credit(scale="batch")).advantages
    assert found[:6].abs().max() > 0.5
    assert torch.allclose(found[:6], found[6:], rtol=1e-3)


NOTHING = Step(penalties=(), values=())
SMALL = {
    "no episodes": [],
    "no steps": [Played(()), Played(())],
    "no tokens": [Played((replace(NOTHING, outcome=1.0),)), Played((NOTHING, NOTHING))],
    "one token": [Played((Step(outcome=1.0),))],
    "one episode": [Played((Step(), Step(outcome=1.0, penalties=(0.1, 0.2), values=(0.3, 0.4))))],
    "no rewards": [Played((Step(), Step())), Played((Step(),), terminated=False)],
    "equal": [Played((Step(outcome=0.7),)), Played((Step(outcome=0.7),)), Played((Step(outcome=0.7),), group=1)],
    "one without tokens": [Played((Step(outcome=1.0),)), Played((replace(NOTHING, outcome=1.0),))],
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("credit", [Credit(), Credit(scale="batch"), Credit(scale="none", whiten=False)])
def test_small_batches_are_finite_and_keep_their_shape(name: str, case: str, credit: Credit) -> None:
    for padding in ((0, 0), (1, 0), (1, 2)):
        experience = pack(SMALL[case], *padding)
        estimate = get_estimator(name).estimate(experience, credit)
        for tensor in (estimate.advantages, estimate.returns):
            assert tensor is None or (tensor.shape == experience.step_of.shape and tensor.isfinite().all())
        if case == "no rewards" or (case == "equal" and credit.whiten and name != "remax"):
            assert not estimate.advantages.any()


def test_the_ten_are_listed_by_their_names() -> None:
    names = {"grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "gigpo", "gae"}
    assert set(ESTIMATORS) == names | {"step_gae", "bilevel_gae"}
    assert all(get_estimator(name).name == name for name in ESTIMATORS)


def test_an_unknown_name_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="'gea'; allowed: grpo, dr_grpo, .*, bilevel_gae"):
        get_estimator("gea")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_needs_what_it_says(name: str) -> None:
    estimator, credit = get_estimator(name), Credit()
    needs = {
        "values": estimator.needs_critic,
        "last_values": estimator.needs_critic,
        "baselines": estimator.needs_baseline,
        "anchors": name == "gigpo",
    }
    for field, needed in needs.items():
        lacking = replace(pack([Played((Step(),))]), **{field: None})
        if needed:
            with pytest.raises(ConfigError, match=f"Experience.{field}, which is None"):
                estimator.estimate(lacking, credit)
        else:
            estimator.estimate(lacking, credit)
    steps = (Step(outcome=1.0), Step(anchor=1))
    alone = estimator.estimate(pack([Played(steps)]), replace(credit, whiten=False))
    assert estimator.needs_groups == (not alone.advantages.any())
