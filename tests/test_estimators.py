"""What holds for every estimator, and those that compare episodes or steps, against oracles that never see a tensor."""

from __future__ import annotations

from dataclasses import replace
from random import Random

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
    reward_of_tokens,
    same,
    step_of_tokens,
    total,
    whitened,
    whitened_rows,
)
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from property_tools import examples  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.estimators import (  # noqa: E402
    ESTIMATORS,
    SCALES,
    Credit,
    Estimate,
    Experience,
    get_estimator,
)
from agent_gym.trainers.estimators.groups import grpo, whiten  # noqa: E402

# The discounts are powers of two here, so that sums are the same in every order and rounding cannot be blown up.
EXACT = CREDITS.map(lambda credit: replace(credit, gamma=0.5, lam=1.0, step_gamma=1.0, step_lam=0.5))
SILENT = Step(penalties=(), values=())


def parts(episodes: list[Played], estimate: Estimate) -> list[list[list[float]]]:
    tensors = (estimate.advantages, estimate.returns, estimate.value_mask)
    return [numbers(episodes, tensor) for tensor in tensors if tensor is not None]


# What an estimator sees.


def test_rewards_stand_on_the_last_token_and_are_in_double_precision() -> None:
    long = Step(outcome=1.0, process=0.5, penalties=(-0.25, -0.5), values=(3.0, 4.0))
    silent = Step(outcome=8.0, process=2.0, penalties=(), values=())
    short = Step(outcome=16.0, penalties=(-1.0,), values=(5.0,))
    seen = pack([Played((long, silent, short)), Played((silent, short))], extra_steps=1, extra_tokens=1)
    assert seen.token_rewards.tolist() == [[-0.25, 11.0, 15.0, 0.0], [25.0, 0.0, 0.0, 0.0]]
    rounded = replace(seen, **{name: getattr(seen, name).float() for name in ("outcome", "process", "penalty")})
    assert rounded.outcome.dtype == torch.float64 and torch.equal(rounded.token_rewards, seen.token_rewards)


# Every estimator.


@examples(200)
@given(batches(), EXACT, st.randoms(), st.integers(0, 3), st.integers(0, 3))
def test_order_and_padding_do_not_matter(
    episodes: list[Played], credit: Credit, random: Random, steps: int, tokens: int
) -> None:
    order = random.sample(range(len(episodes)), len(episodes))
    shuffled = [episodes[i] for i in order]
    for estimator in ESTIMATORS.values():
        if estimator.needs_means:
            continue  # a running mean counts episodes in their order
        plain = parts(episodes, estimator.estimate(pack(episodes), credit))
        mixed = parts(shuffled, estimator.estimate(pack(shuffled, steps, tokens), credit))
        for one, other in zip(plain, mixed, strict=True):
            same(other, [one[i] for i in order], 1e-12)


def in_sources(mine: list[Played], others: list[Played]) -> Experience:
    """Lay out the episodes of two environments, with tasks of their own."""
    others = [replace(episode, group=episode.group + 100) for episode in others]
    return replace(pack(mine + others), sources=torch.tensor([7] * len(mine) + [3] * len(others)))


@examples(200)
@given(batches(), batches(), CREDITS)
def test_company_does_not_matter_unless_it_is_the_unit(
    mine: list[Played], others: list[Played], credit: Credit
) -> None:
    alike = replace(credit, whiten=False, scale="none" if credit.scale == "batch" else credit.scale)
    for estimator in ESTIMATORS.values():
        # Another environment never does; other tasks of the same one do where the batch is the unit.
        for together, setting in ((in_sources(mine, others), credit), (in_sources(mine, others), alike)):
            together.sources = together.sources if setting is credit else None
            alone = estimator.estimate(pack(mine), setting)
            both = parts([*mine, *others], estimator.estimate(together, setting))
            for one, other in zip(parts(mine, alone), both, strict=True):
                same(other[: len(mine)], one, 1e-7)
        one_source = replace(pack(mine), sources=torch.full((len(mine),), 5))
        advantages = estimator.estimate(pack(mine), credit).advantages
        assert torch.equal(estimator.estimate(one_source, credit).advantages, advantages)


SMALL = {
    "no episodes": [],
    "no steps": [Played(()), Played(())],
    "no tokens": [Played((replace(SILENT, outcome=1.0),)), Played((SILENT, SILENT))],
    "one episode": [Played((Step(), Step(outcome=1.0, penalties=(0.1, 0.2), values=(0.3, 0.4))))],
    "no rewards": [Played((Step(), Step())), Played((Step(),), terminated=False)],
    "equal": [Played((Step(outcome=0.7),)), Played((Step(outcome=0.7),)), Played((Step(outcome=0.7),), group=1)],
    "one without tokens": [Played((Step(outcome=1.0),)), Played((replace(SILENT, outcome=1.0),))],
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("credit", [Credit(), Credit(scale="batch"), Credit(scale="none", whiten=False)])
def test_small_batches_are_finite_and_keep_their_shape(name: str, credit: Credit) -> None:
    for case, episodes in SMALL.items():
        for padding in ((0, 0), (1, 0), (1, 2)):
            experience = pack(episodes, *padding)
            estimate = get_estimator(name).estimate(experience, credit)
            for found in (estimate.advantages, estimate.returns):
                assert found is None or (found.shape == experience.step_of.shape and found.isfinite().all())
            compares = name not in ("remax", "rae", "reinforce")
            if case == "no rewards" or (case == "equal" and credit.whiten and compares):
                assert not estimate.advantages.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_needs_what_it_declares(name: str) -> None:
    estimator, credit = get_estimator(name), Credit()
    needs = {
        "values": estimator.needs_critic,
        "baselines": estimator.needs_baseline,
        "anchors": name == "gigpo",
        "running_means": name == "rae",
        "successes": name in ("raft", "raft_pp"),
    }
    for field, needed in needs.items():
        lacking = replace(pack([Played((Step(),))]), **{field: None})
        if needed:
            with pytest.raises(ConfigError, match=f"Experience.{field}, which is None"):
                estimator.estimate(lacking, credit)
        else:
            estimator.estimate(lacking, credit)
    lonely = pack([Played((Step(outcome=1.0), Step(anchor=1)), success=True)])
    alone = estimator.estimate(lonely, replace(credit, whiten=False))
    assert estimator.needs_groups == (not alone.advantages.any())
    # What does not read rewards gives the same for any.
    one = Played((Step(outcome=1.0, process=0.5, penalties=(0.25,)),), success=True)
    paid = estimator.estimate(pack([one]), replace(credit, whiten=False)).advantages
    unpaid = estimator.estimate(pack([replace(one, steps=(Step(),))]), replace(credit, whiten=False)).advantages
    assert estimator.reads_rewards == (not torch.equal(paid, unpaid)) or estimator.needs_groups


def test_an_unknown_name_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="'gea'; allowed: grpo, dr_grpo, .*, bilevel_gae"):
        get_estimator("gea")
    with pytest.raises(ConfigError, match="'groups'; allowed: group, batch, none"):
        grpo(torch.zeros(4), torch.zeros(4).long(), "groups")


# Episodes against episodes.

GROUPED = ("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp_baseline")


def in_units(number: float, peers: list[float], everybody: list[float], scale: str) -> float:
    mean, std = mean_and_std(peers)
    unit = {"group": std + 1e-4, "batch": mean_and_std(everybody)[1] + 1e-4, "none": 1.0}[scale]
    return (number - mean) / unit


def of_episodes(name: str, episodes: list[Played], credit: Credit) -> list[float]:
    """One number per episode, each looked at by itself."""
    result = []
    for me in episodes:
        siblings = [total(other) for other in episodes if other.group == me.group]
        if name == "remax":
            result.append(total(me) - me.baseline)
        elif name == "rloo":
            others = [total(other) for other in episodes if other.group == me.group and other is not me]
            result.append(total(me) - sum(others) / len(others) if others else 0.0)
        else:
            scale = credit.scale if name == "grpo" else "none"
            result.append(in_units(total(me), siblings, [total(other) for other in episodes], scale))
    return whitened(result) if name == "reinforce_pp_baseline" and credit.whiten else result


@examples(500)
@given(batches(), CREDITS)
def test_the_estimators_of_episodes_are_their_oracles(episodes: list[Played], credit: Credit) -> None:
    for name in GROUPED:
        estimate = get_estimator(name).estimate(pack(episodes), credit)
        expected = []
        for episode, advantage in zip(episodes, of_episodes(name, episodes, credit), strict=True):
            later = process_to_go(episode, credit.step_gamma)
            expected.append([advantage + later[k] for k in step_of_tokens(episode)])
        # Returns that differ by rounding alone are blown up by the whitening to something still small.
        same(numbers(episodes, estimate.advantages), expected, 1e-6)
        assert estimate.returns is None and estimate.value_mask is None


@pytest.mark.parametrize("value", [0.7, 1e6 + 0.1])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_groups_with_nothing_to_compare_get_exactly_zero(name: str, value: float) -> None:
    # Three times 0.7 sum up to something else than 2.1; that rounding must not be divided by a spread of zero.
    experience = pack([Played((Step(outcome=value),), group) for group in (0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2)])
    for scale in SCALES:
        assert not get_estimator(name).estimate(experience, Credit(scale=scale)).advantages.any()


# What compares nothing.


@examples(300)
@given(batches(), CREDITS)
def test_raft_imitates_successes_and_nothing_else(episodes: list[Played], credit: Credit) -> None:
    expected = [[1.0 if episode.success else 0.0] * episode.n_tokens for episode in episodes]
    for name in ("raft", "raft_pp"):
        estimate = get_estimator(name).estimate(pack(episodes), credit)
        same(numbers(episodes, estimate.advantages), expected, 0.0)
        assert estimate.returns is None and estimate.value_mask is None
    assert (get_estimator("raft").loss, get_estimator("raft_pp").loss) == ("reinforce", None)


@examples(300)
@given(batches(), CREDITS)
def test_reinforce_is_the_plain_return(episodes: list[Played], credit: Credit) -> None:
    estimate = get_estimator("reinforce").estimate(pack(episodes), credit)
    expected = []
    for rewards in map(reward_of_tokens, episodes):
        n = len(rewards)
        expected.append([sum(credit.gamma ** (s - t) * rewards[s] for s in range(t, n)) for t in range(n)])
    same(numbers(episodes, estimate.advantages), expected)


def test_centring_is_all_that_grpo_adds_to_raft_where_success_is_the_reward() -> None:
    episodes = [Played((Step(outcome=float(won)),), group, success=won) for group in (0, 1) for won in (True, False)]
    raft = get_estimator("raft_pp").estimate(pack(episodes), Credit()).advantages
    dr_grpo = get_estimator("dr_grpo").estimate(pack(episodes), Credit()).advantages
    assert torch.equal(dr_grpo, raft - 0.5)
    assert torch.equal(get_estimator("reinforce").estimate(pack(episodes), Credit()).advantages, raft)


# REINFORCE++ and whitening.


@examples(500)
@given(batches(), CREDITS)
def test_reinforce_pp_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    estimate = get_estimator("reinforce_pp").estimate(pack(episodes), credit)
    expected = []
    for rewards in map(reward_of_tokens, episodes):
        n = len(rewards)
        expected.append([sum(credit.gamma ** (s - t) * rewards[s] for s in range(t, n)) for t in range(n)])
    same(numbers(episodes, estimate.advantages), whitened_rows(expected) if credit.whiten else expected, 1e-6)


@pytest.mark.parametrize("value", [-0.7, 1e9 + 0.1])
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_whitening_numbers_that_agree_gives_exactly_zero(value: float, count: int) -> None:
    mask = torch.arange(14).view(2, 7) < count
    assert not whiten(torch.full((2, 7), value, dtype=torch.float64), mask).any()


# GiGPO: steps against steps from the same state.


def score(episode: Played, k: int, gamma: float) -> float:
    later = enumerate(episode.steps[k:])
    return sum(gamma**j * (step.outcome + step.process + sum(step.penalties)) for j, step in later)


@pytest.mark.parametrize("ends", [(0, 3, 8), (0, 1, 2, 8), (0, 8, 8)])
def test_ranks_whiten_by_the_moments_of_all_of_them(ends: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    numbers, mask = 3.0 + torch.randn(8, 5, dtype=torch.float64).cumsum(0), torch.rand(8, 5) < 0.7
    sources = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1])
    ranks = [slice(start, stop) for start, stop in zip(ends, ends[1:], strict=False)]
    sent: list[object] = []
    for rank in ranks:
        whiten(numbers[rank], mask[rank], sources[rank], lambda moments: [sent.append(moments) or moments])
    found = [whiten(numbers[rank], mask[rank], sources[rank], lambda moments: sent) for rank in ranks]
    torch.testing.assert_close(torch.cat(found), whiten(numbers, mask, sources), rtol=1e-12, atol=1e-12)
    for source in (0, 1):
        inside = torch.cat(found)[sources == source][mask[sources == source]]
        assert inside.mean().item() == pytest.approx(0, abs=1e-12) and inside.std().item() == pytest.approx(1, abs=1e-6)


@examples(500)
@given(batches(), CREDITS)
def test_gigpo_is_its_oracle(episodes: list[Played], credit: Credit) -> None:
    scores = [(e, k, score(e, k, credit.step_gamma)) for e in episodes for k in range(len(e.steps))]
    everybody = [points for _, _, points in scores]
    expected = []
    for me, whole in zip(episodes, of_episodes("grpo", episodes, credit), strict=True):
        later, row = process_to_go(me, credit.step_gamma), []
        for k in step_of_tokens(me):
            here = me.steps[k].anchor
            peers = [points for e, j, points in scores if e.group == me.group and e.steps[j].anchor == here]
            of_step = in_units(score(me, k, credit.step_gamma), peers, everybody, credit.scale)
            row.append(whole + of_step + later[k])
        expected.append(row)
    same(numbers(episodes, get_estimator("gigpo").estimate(pack(episodes), credit).advantages), expected)
