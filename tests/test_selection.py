"""Which tasks come, and which groups are trained on: the rules alone, and in whole runs of a trainer."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from trainer_tools import ENV, RandomPolicy, batches_of, logged, make_trainer, trained  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import Generation, Request  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.selection import (  # noqa: E402
    fresh_tasks,
    informative_groups,
    keep_groups,
    keep_variance,
    tasks_to_draw,
)
from agent_gym.trainers.tasks import GroupSampler, Mixture, mix_datasets  # noqa: E402

# Coarse returns, so that groups that agree and groups that tie are common; failed episodes have none.
rollouts = st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), max_size=3), min_size=1, max_size=6)


def keep(returns: dict[int, list[float]], fraction: float) -> list[int]:
    return keep_groups(returns, fraction, dict.fromkeys(returns, 3))


def test_groups_to_keep_by_hand() -> None:
    # Numbers with a gap, and spreads of 0.5, 0, 1, and 0 for want of a second scored episode.
    returns = {0: [0.0, 0.5, 1.0], 1: [0.1, 0.1, 0.1], 5: [0.0, 1.0, 2.0], 6: [7.0]}
    assert keep(returns, 0.01) == keep(returns, 0.25) == [5]
    assert keep(returns, 0.75) == [0, 1, 5], "the tie of the two without a spread goes to the lower number"
    # Rounding alone loses no group.
    assert int(0.29 * 100) == 28
    assert keep({i: [0.0, float(i)] for i in range(100)}, 0.29) == list(range(71, 100))


@given(rollouts, st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_a_fraction_keeps_the_widest_in_any_order(rollout: list[list[float]], fraction: float, random: Any) -> None:
    kept = keep(dict(enumerate(rollout)), fraction)
    spreads = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in rollout]
    assert len(kept) == max(1, math.floor(fraction * len(rollout) + 1e-9))
    left = set(range(len(rollout))) - set(kept)
    assert all(spreads[a] >= spreads[b] - 1e-12 for a, b in itertools.product(kept, left))
    mixed = {i: random.sample(rollout[i], len(rollout[i])) for i in random.sample(range(len(rollout)), len(rollout))}
    assert keep(mixed, fraction) == kept


def test_a_share_of_the_variance_by_hand() -> None:
    # Sample variances of 0.5, 0, 8 and 0, and 2: 10.5 in all, in descending order 8, 2, 0.5, 0, 0.
    returns = {0: [0.0, 1.0], 1: [0.3, 0.3], 4: [0.0, 4.0], 6: [7.0], 9: [0.0, 2.0]}
    shares = {8 / 10.5: [4], 0.77: [4, 9], 10 / 10.5: [4, 9], 0.96: [0, 4, 9], 1.0: [0, 4, 9], 0.01: [4]}
    for share, expected in shares.items():
        assert keep_variance(returns, share, dict.fromkeys(returns, 3)) == expected
    assert keep_variance(returns, 0.01, {0: 3, 1: 3, 6: 3, 4: 5, 9: 5}) == [0, 4], "one of each environment"
    assert keep_variance({2: [1.0, 1.0], 3: [0.0, 0.0]}, 0.9, {2: 0, 3: 0}) == [2], "where no group has a spread"


@given(rollouts, st.floats(0.01, 1.0))
def test_no_fewer_groups_hold_the_share(rollout: list[list[float]], share: float) -> None:
    of = [statistics.variance(group) if len(group) > 1 else 0.0 for group in rollout]
    kept = keep_variance(dict(enumerate(rollout)), share, dict.fromkeys(range(len(rollout)), 3))
    assert sum(of[i] for i in kept) >= share * sum(of) - 1e-8 * sum(of)
    most = max((sum(some) for some in itertools.combinations(of, len(kept) - 1)), default=0.0)
    assert len(kept) == 1 or most <= share * sum(of) + 1e-9


def test_each_environment_keeps_its_groups_of_largest_spread() -> None:
    # Four groups with rewards up to 1, four with rewards up to 100; in each, two groups agree.
    pairs = [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    returns = dict(enumerate([*pairs, *([100 * one for one in pair] for pair in pairs)]))
    assert keep_groups(returns, 0.5, {i: 5 if i < 4 else 2 for i in range(8)}) == [0, 2, 4, 6]
    assert keep(returns, 0.25) == [4, 6]  # as one environment, the one of larger rewards takes all places


@given(rollouts)
def test_a_group_informs_if_its_scored_members_differ(rollout: list[list[float]]) -> None:
    expected = [i for i, group in enumerate(rollout) if len(set(group)) > 1]
    assert informative_groups(dict(enumerate(rollout))) == expected
    assert informative_groups({1: [0.0, 1.0], 0: [0.1 + 0.2, 0.3]}) == [1]  # not if they differ by rounding


def test_a_round_draws_what_should_fill_the_batch() -> None:
    assert tasks_to_draw(4, informative=0, drawn=4) == 4  # nothing is known about the rate
    assert tasks_to_draw(4, informative=1, drawn=4) == 4  # one in four informs, so twelve, but a batch is the most
    assert tasks_to_draw(4, informative=3, drawn=4) == 2  # one is missing, three in four inform
    assert tasks_to_draw(4, informative=6, drawn=8) == 0


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.integers(0, 12), st.integers(0, 5))
def test_fresh_tasks_are_new_distinct_and_the_same_everywhere(
    size: int, taken: set[int], count: int, seed: int
) -> None:
    drawn = fresh_tasks(range(100, 100 + size), {100 + i for i in taken}, count, seed)
    left = {100 + i for i in set(range(size)) - taken}
    assert len(drawn) == len(set(drawn)) == min(count, len(left)) and set(drawn) <= left
    assert drawn == fresh_tasks(range(100, 100 + size), sorted(100 + i for i in taken), count, seed)
    assert fresh_tasks(range(99), [], 20, seed) != fresh_tasks(range(99), [], 20, seed + 1)


# The order of tasks.

MIXTURE = Mixture((tuple(range(8)), tuple(range(8, 13))), (0.6, 0.4))


def make(size: int = 10, epoch: int = 0, **changes: Any) -> GroupSampler:
    sampler = GroupSampler(size, **({"group_size": 3, "batch_tasks": 2, "repeats": 2, "seed": 0} | changes))
    sampler.set_epoch(epoch)
    return sampler


def make_mixed(epoch: int = 0, **changes: Any) -> GroupSampler:
    return make(13, epoch, **({"mixture": MIXTURE, "batch_tasks": 5, "group_size": 2} | changes))


def heads(sampler: GroupSampler) -> list[list[int]]:
    """The tasks of each batch, which comes `repeats` times with whole groups."""
    indices = list(sampler)
    assert len(indices) == len(sampler)
    n = sampler.batch_tasks * sampler.group_size
    batches = [indices[i : i + n] for i in range(0, len(indices), n)]
    assert all(batch == batches[i - i % sampler.repeats] for i, batch in enumerate(batches))
    found = [batch[:: sampler.group_size] for batch in batches[:: sampler.repeats]]
    assert batches[:: sampler.repeats] == [[t for t in tasks for _ in range(sampler.group_size)] for tasks in found]
    return found


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 9))
def test_whole_batches_of_whole_groups(size: int, group: int, tasks: int, repeats: int, epoch: int) -> None:
    tasks = min(size, tasks)
    found = heads(make(size, epoch, group_size=group, batch_tasks=tasks, repeats=repeats))
    drawn = [task for batch in found for task in batch]
    assert len(found) == size // tasks and len(set(drawn)) == len(drawn)  # no task twice in an epoch
    assert set(drawn) <= set(range(size))


@given(st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_a_mixture_gives_whole_batches_in_proportion(epoch: int, seed: int, shuffle: bool) -> None:
    found = heads(make_mixed(epoch, seed=seed, shuffle=shuffle))
    assert len(found) == 2
    assert all(len(set(batch)) == 5 and sum(task < 8 for task in batch) == 3 for batch in found)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    straight = make()
    epochs = []
    for epoch in range(3):
        straight.set_epoch(epoch)
        epochs.append(list(straight))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    resumed = make(epoch=2)
    assert list(resumed) == list(resumed) == epochs[2]
    assert list(make(seed=1)) != epochs[0]
    assert list(make(5, 3, shuffle=False, repeats=1, group_size=1)) == [0, 1, 2, 3]
    # Written down from the first version: a checkpoint of an old run goes on with the tasks it would have had.
    assert list(make(10, 3, group_size=1, repeats=1, seed=7)) == [2, 6, 9, 5, 4, 3, 1, 0, 8, 7]


def test_epochs_of_a_mixture_join_without_a_seam_and_without_a_state() -> None:
    run = list(itertools.islice(MIXTURE.batches(5, seed=4), 8))
    for epoch in (3, 1, 2, 0):
        resumed = make_mixed(epoch, seed=4, repeats=1, group_size=1)
        assert list(resumed) == list(resumed) == [task for batch in run[2 * epoch : 2 * epoch + 2] for task in batch]


def test_a_source_too_small_for_its_share_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="source 1 of the mixture has 5 tasks, but its share of 0.4 makes 6 of"):
        make_mixed(batch_tasks=13)


def test_refills_draw_from_what_the_sampler_orders() -> None:
    for sampler in (make(13), make_mixed()):
        drawn = sampler.fresh_tasks({0, 1, 9}, 4, seed=3)
        assert len(set(drawn)) == 4 and set(drawn) <= set(range(13)) - {0, 1, 9}
    alone = make(13, mixture=Mixture((tuple(range(12)), (12,)), (1.0, 0.0)))
    assert 12 not in {task for seed in range(30) for task in alone.fresh_tasks([], 3, seed)}


class Parrot(RandomPolicy):
    """Writes the same in every attempt at some tasks (by default all), so that their groups agree.

    It begins to do so after some rollouts.
    """

    def __init__(self, tasks: Sequence[int] = range(64), after: int = 0) -> None:
        super().__init__(cut=0.0)
        self.tasks, self.after = tasks, after

    def _write(self, request: Request) -> Generation:
        generation = super()._write(request)
        if self.synced > self.after and request.episode.spec.index in self.tasks:
            ids = [40, 41, 42, 43, 44, 45, 2]
            return Generation(request.id, ids, [-6.0] * len(ids), "stop")
        return generation


# Group filters, in whole runs as all that follows.


def test_groups_that_agree_are_replaced_by_fresh_tasks(tmp_path: Path) -> None:
    options = {"max_steps": 3, "max_refills": 4, "per_device_train_batch_size": 16}
    trainer, batches, episodes = trained(tmp_path, policy=Parrot(range(0, 64, 2)), **options)
    assert max(logged(trainer, "rollout/refills")) >= 1
    for batch in batches:
        assert (batch["episode_of"] >= 0).sum() == 16  # four groups of four, none of which agrees
        assert (batch["advantages"][batch["action_mask"]] != 0).all()
    # Reward statistics are those of the sampler's tasks: half of them agree.
    assert max(logged(trainer, "frac_reward_zero_std")) > 0
    # Groups are whole.
    groups: dict[int, set[Any]] = {}
    for episode in episodes[:16]:
        groups.setdefault(episode.spec.group, set()).add(episode.spec.index)
    assert all(len(tasks) == 1 for tasks in groups.values())


def test_refills_stop_at_their_limit_or_without_tasks_and_train_on_what_there_is(tmp_path: Path) -> None:
    trainer, _, episodes = trained(tmp_path, policy=Parrot(), max_steps=2, max_refills=2)
    assert logged(trainer, "rollout/refills") == [2.0, 2.0] and len(episodes) == 2 * 8 * 3
    assert logged(trainer, "rollout/groups_kept") == [0.0, 0.0]
    assert logged(trainer, "grad_norm") == [0.0, 0.0]  # nothing to learn from, and no error
    dataset = task_dataset(ENV, tasks=3)
    _, _, episodes = trained(tmp_path, policy=Parrot(), max_steps=1, max_refills=9, train_dataset=dataset)
    assert sorted(episode.spec.index for episode in episodes) == [0] * 4 + [1] * 4 + [2] * 4


def rows_of(batch: Any) -> set[tuple[int, ...]]:
    """Return the rows of a training batch without padding, and without the dummy at its end."""
    lengths = batch["attention_mask"].sum(1).tolist()[:-1]
    return {tuple(batch["input_ids"][row, :n].tolist()) for row, n in enumerate(lengths)}


@pytest.mark.parametrize("rule", [{"keep_groups": 0.5}, {"keep_variance": 0.7}], ids=["StarPO-S", "SNR"])
def test_a_filter_trains_on_the_groups_of_largest_spread_or_that_hold_the_variance(tmp_path: Path, rule: Any) -> None:
    options = {"max_steps": 2, **rule, "per_device_train_batch_size": 24}
    trainer, batches, episodes = trained(tmp_path, policy=Parrot([0, 3, 6, 9, 12]), **options)
    for i, batch in enumerate(batches):
        rollout = episodes[24 * i : 24 * (i + 1)]
        rewards = {g: [e.reward for e in rollout if e.spec.group == g] for g in range(6)}
        best = sorted(rewards, key=lambda g: -statistics.stdev(rewards[g]))[:3]
        if "keep_variance" in rule:
            best = keep_variance(rewards, 0.7, dict.fromkeys(rewards, 0))
        assert 1 <= len(best) < 6 and logged(trainer, "rollout/groups_kept")[i] == pytest.approx(len(best) / 6)
        expected = {tuple(e.rows[0].token_ids[: e.steps[-1].stop]) for e in rollout if e.spec.group in best}
        assert rows_of(batch) == expected


# Rewards.


def test_the_overlong_penalty_rises_before_the_limit(tmp_path: Path) -> None:
    trainer, _, episodes = trained(tmp_path, max_steps=1, overlong_buffer=4, max_turn_tokens=8)
    for episode in episodes:
        kept = trainer._training_episode(episode)
        for step, outcome in zip(episode.steps, kept.outcome, strict=True):
            length = step.stop - step.start
            due = 0.0 if length <= 4 else -(length - 4) / 4
            assert outcome == pytest.approx(step.reward + due)
    lengths = {step.stop - step.start for episode in episodes for step in episode.steps}
    assert 8 in lengths and min(lengths) < 4


def test_a_kl_penalty_in_the_reward_lowers_the_return(tmp_path: Path) -> None:
    options: dict[str, Any] = {"advantage_estimator": "reinforce_pp", "whiten_advantages": False, "max_steps": 3}
    _, (*_, batch), episodes = trained(tmp_path, beta=0.5, kl_in="reward", learning_rate=1e-2, **options)
    drift = (batch["old_logps"] - batch["ref_logps"]) * batch["action_mask"]
    assert drift.abs().max() > 1e-3
    rewards = {tuple(e.rows[0].token_ids[: e.steps[-1].stop]): e.reward for e in episodes}
    for row in range(len(drift) - 1):
        ids = tuple(batch["input_ids"][row, : int(batch["attention_mask"][row].sum())].tolist())
        first = int(batch["action_mask"][row].nonzero()[0])
        expected = rewards[ids] - 0.5 * drift[row].sum().item()
        assert batch["advantages"][row, first].item() == pytest.approx(expected, abs=1e-5)


# Mixtures.


def test_environments_of_unlike_rewards_learn_alike(tmp_path: Path) -> None:
    # The same environment twice, once with rewards a hundred times as large.
    large = {"reward_weights": {"letters": 100.0, "length": 10.0}}
    data = mix_datasets([task_dataset(ENV, tasks=32), task_dataset(ENV, large, tasks=32)], [1, 1])
    options = {"env": None, "train_dataset": data, "max_steps": 1, "per_device_train_batch_size": 32}
    trainer = make_trainer(tmp_path, keep_groups=0.5, scale_rewards="batch", **options)
    kept: list[Any] = []
    lay_out = trainer._lay_out
    trainer._lay_out = lambda episodes: kept.extend(episodes) or lay_out(episodes)
    (batch,) = (batches_of(trainer), trainer.train())[0]
    sizes = []
    for source in {episode.source for episode in kept}:
        assert len({episode.group for episode in kept if episode.source == source}) == 2  # of four
        rows = torch.tensor([e >= 0 and kept[e].source == source for e in batch["episode_of"].tolist()])
        sizes.append(batch["advantages"][rows][batch["action_mask"][rows]].abs().mean().item())
    assert len(sizes) == 2 and max(sizes) < 2 * min(sizes)


# The monitor.


def test_starpo_s_begins_at_a_sign_of_the_echo_trap_and_lasts_also_after_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"starpo_s": "auto", "beta": 0.04, "max_steps": 20, "per_device_train_batch_size": 16}
    options |= {"save_strategy": "steps", "save_steps": 18, "learning_rate": 1e-5}
    trainer = make_trainer(tmp_path, policy=Parrot(after=12), **options)
    assert (trainer.beta, trainer.epsilon_high) == (0.04, 0.2)
    with pytest.warns(RuntimeWarning, match="StarPO-S begins after step 15: echo_trap/reward_spread"):
        trainer.train()
    # Three rollouts without spread make the warning; the next one is the first with a quarter of its four groups.
    assert logged(trainer, "echo_trap/reward_spread") == [0] * 14 + [1] * 6
    assert logged(trainer, "starpo_s") == [0] * 14 + [1] * 6
    assert logged(trainer, "rollout/groups_kept") == [1] * 15 + [0.25] * 5
    assert (trainer.beta, trainer.epsilon_high) == (0.0, 0.28)
    kl = [("kl" in log) for log in trainer.state.log_history if "loss" in log]
    assert kl == [True] * 15 + [False] * 5
    resumed = make_trainer(tmp_path, policy=Parrot(), **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "StarPO-S begins")  # it is not said again
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-18"))
    assert logged(resumed, "rollout/groups_kept") == logged(trainer, "rollout/groups_kept")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"echo_trap": "off"}, r"the warnings of echo_trap \(warn or stop\)"),
        ({"keep_groups": 0.5}, "no keep_groups and no keep_variance"),
        ({"keep_variance": 0.9}, "no keep_groups and no keep_variance"),
        ({"num_generations": 1, "advantage_estimator": "reinforce_pp"}, "num_generations above 1"),
    ],
)
def test_starpo_s_by_itself_needs_warnings_and_groups(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_trainer(tmp_path, starpo_s="auto", **options)


def test_a_collapse_is_reported_and_stops_the_run_also_after_a_restart(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            seen.append(dict(logs))

    options = {"echo_trap": "stop", "max_steps": 40, "save_strategy": "steps", "save_steps": 18, "learning_rate": 1e-5}
    trainer = make_trainer(tmp_path, policy=Parrot(after=12), callbacks=[Reporter()], **options)
    with pytest.warns(RuntimeWarning, match="echo trap") as caught:
        trainer.train()
    name = "echo_trap/reward_spread"
    assert trainer.state.global_step == 22  # ten rollouts without spread
    assert logged(trainer, name) == [0] * 14 + [1] * 7 + [2]
    assert [log[name] for log in seen if "loss" in log] == logged(trainer, name), "reports show why it stopped"
    assert not any(name in log for log in seen if "loss" not in log)
    texts = [str(w.message) for w in caught if "reward_std" in str(w.message) or "training stops" in str(w.message)]
    assert [text.split(": ")[1].split(",")[0] for text in texts] == [
        "at step 15 reward_std is 0", "at step 22 reward_std is 0", "training stops at step 22"
    ]  # fmt: skip
    assert logged(trainer, "rollout/repeated")[-1] > 0.9 > logged(trainer, "rollout/repeated")[0]
    resumed = make_trainer(tmp_path, policy=Parrot(), **options)
    with pytest.warns(RuntimeWarning, match="echo trap") as caught:
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-18"))
    assert resumed.state.global_step == 22 and logged(resumed, name) == logged(trainer, name)
    assert not any("at step 15" in str(w.message) for w in caught), "the warning is not given again"
