"""Rollouts that end before their slowest episodes do: no group is lost, none comes twice, none is old."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from rollout_tools import scripted  # noqa: E402
from toy_envs import SlowWriter  # noqa: E402
from trainer_tools import ENV, RandomPolicy, distance, in_ranks, logged, make_trainer, settings, weights  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import Generation  # noqa: E402
from agent_gym.rollout import Episode, EpisodeSpec, Runner, derive_seed  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.partial import GroupsInPlay  # noqa: E402

# The rule, without a trainer.


def spec(group: int, member: int) -> EpisodeSpec:
    paid = {"reward_weights": {"turn": 1.0, "end": 0.0, "unpaid": 0.0}}
    seed = 100 * group + member
    return EpisodeSpec("Toy/Counting-v0", paid, index=group % 50, group=group, member=member, sampling_seed=seed)


def worth(spec: EpisodeSpec) -> int:
    """Return how many turns an episode takes before it stops, which is what it earns: the longer, the better."""
    assert spec.sampling_seed is not None
    return derive_seed(spec.sampling_seed) % 7


def walk(episode: Any) -> str:
    return "stop" if episode.turns == worth(episode.spec) else "on"


def play(tokenizer: Any, rollouts: int, batch: int, extra: int, members: int = 2) -> tuple[list[list[Episode]], int]:
    """Return the batches of a run, and how many groups it began."""
    runner = Runner(SlowWriter(walk, scripted(tokenizer)._encode), tokenizer, workers=4)
    in_play, batches, begun = GroupsInPlay(runner), [], 0
    for number in range(rollouts):
        runner.version = number
        stop = min((number + 1) * batch + extra, rollouts * batch)
        specs = [spec(group, member) for group in range(begun, stop) for member in range(members)]
        begun = stop
        batches.append(in_play.play(specs, in_play.numbers, batch, 1.0))
        assert not runner.policy.pending
    assert in_play.numbers == []
    runner.close()
    return batches, begun


def test_every_group_that_was_begun_is_in_one_batch_and_at_most_one_rollout_late(tokenizer: Any) -> None:
    batches, begun = play(tokenizer, rollouts=6, batch=5, extra=3)
    assert begun == 30
    late = 0
    for number, episodes in enumerate(batches):
        groups = Counter(episode.spec.group for episode in episodes)
        assert len(groups) == 5 and set(groups.values()) == {2}
        assert all(not episode.failure and not episode.truncated for episode in episodes)
        for episode in episodes:
            first = max(0, (episode.spec.group - 3) // 5)  # the rollout in which it was begun
            assert number - first in (0, 1)
            late += number > first
            assert all(first <= version <= number for step in episode.steps for version, _ in step.versions)
    assert sorted(e.spec.group for episodes in batches for e in episodes) == sorted([*range(30), *range(30)])
    assert late == 5 * 3 * 2, "three groups are carried over each time"


def test_long_episodes_are_as_frequent_as_without_and_would_not_be_if_the_rest_were_dropped(tokenizer: Any) -> None:
    def mean(episodes: list[Episode]) -> float:
        return sum(episode.reward for episode in episodes) / len(episodes)

    batches, begun = play(tokenizer, rollouts=8, batch=6, extra=4)
    specs = [spec(group, member) for group in range(begun) for member in range(2)]
    all_of_them = sum(map(worth, specs)) / len(specs)
    assert mean([episode for batch in batches for episode in batch]) == pytest.approx(all_of_them, abs=1e-12)
    # Dropping what is not done when a batch is full trains on the first batch of each rollout only.
    kept = []
    for first in range(0, 80, 20):
        runner = Runner(SlowWriter(walk, scripted(tokenizer)._encode), tokenizer, workers=4)
        kept += GroupsInPlay(runner).play(specs[first : first + 20], [], 6, 1.0)
        runner.close()
    assert mean(kept) < 0.9 * sum(map(worth, specs[:80])) / 80


# In a trainer.


class Slow(RandomPolicy):
    """Takes as many polls for a turn as it has tokens, from the weights that were there when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[int, int] = {}

    def poll(self) -> list[Generation]:
        done = []
        for request in list(self._queue.values()):
            answer = self._write(request)
            self.left[request.id] = self.left.get(request.id, len(answer.token_ids)) - 1
            if self.left[request.id] == 0:
                done.append(answer)
                del self._queue[request.id], self.left[request.id]
        return done

    def abort(self, request_id: int) -> None:
        super().abort(request_id)
        self.left.pop(request_id, None)


OPTIONS: dict[str, Any] = {"per_device_train_batch_size": 16, "max_steps": 4}  # four groups of four


def build(folder: Any, **options: Any) -> Any:
    data = task_dataset(ENV, split="train", tasks=16)
    return make_trainer(folder, policy=Slow(), train_dataset=data, **{**OPTIONS, **options})


def watch(trainer: Any) -> list[list[tuple[int, int, int]]]:
    """Keep which episodes each rollout trains on: task, member, sampling seed."""
    batches: list[list[tuple[int, int, int]]] = []
    lay_out = trainer.scheduler.collect

    def collect(rows: Any) -> Any:
        episodes, kept = lay_out(rows)
        batches.append([(e.spec.index, e.spec.member, e.spec.sampling_seed) for e in episodes])
        return episodes, kept

    trainer.scheduler.collect = collect
    return batches


def test_a_run_trains_on_the_episodes_of_a_run_without_also_with_evaluations_between(tmp_path: Path) -> None:
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": task_dataset(ENV, split="test", tasks=3)}
    plain, ahead = build(tmp_path / "a"), build(tmp_path / "b", over_sampling=0.5, **evaluation)
    seen, seen_ahead = watch(plain), watch(ahead)
    plain.train()
    ahead.train()
    assert [len(batch) for batch in seen] == [len(batch) for batch in seen_ahead] == [16] * 4
    assert sorted(e for batch in seen for e in batch) == sorted(e for batch in seen_ahead for e in batch)
    assert logged(ahead, "eval_episodes") == [3] * 4
    # Which groups are complete first depends on the clock; how many are carried over does not.
    assert logged(ahead, "rollout/carried_over") == [0.0, 0.5, 0.5, 0.5]
    age = logged(ahead, "rollout/staleness_max")
    assert age[0] == 0 and max(age) == 1 and all(0 < mean < 1 for mean in logged(ahead, "rollout/staleness")[1:])
    assert "sampling/ratio_mean" in ahead.state.log_history[2], "older weights are corrected for"
    assert logged(plain, "rollout/staleness_max") == [0] * 4


def test_a_resumed_run_counts_no_episode_twice(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "over_sampling": 0.5}
    first = build(tmp_path, **saving)
    seen = watch(first)
    first.train()
    resumed = build(tmp_path, **saving)
    seen_again = watch(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    everything = Counter(e for batch in [*seen[:2], *seen_again] for e in batch)
    assert len(seen_again) == 2 and everything == Counter(e for batch in seen for e in batch)
    assert set(everything.values()) == {1}
    assert len({*seen[2]} & {*seen_again[0]}) >= 8, "what was carried over is due at once"
    with pytest.raises(ConfigError, match="made with 4 tasks per rollout in 1 processes, this run has 2 in 1"):
        build(tmp_path, **saving, per_device_train_batch_size=8).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


@pytest.mark.slow
def test_a_checkpoint_between_two_updates_of_a_rollout(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "over_sampling": 0.5, "num_iterations": 2}
    first = build(tmp_path, **saving)
    seen = watch(first)
    first.train()
    resumed = build(tmp_path, **saving)
    seen_again = watch(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [set(batch) for batch in seen_again] == [set(batch) for batch in seen[1:]], "its groups, played again"


def ranked(folder: str) -> tuple[Any, Any]:
    trainer = build(folder, over_sampling=0.5, per_device_train_batch_size=8)
    seen = watch(trainer)
    trainer.train()
    return seen, weights(trainer.model)


def test_two_ranks_carry_over_what_is_theirs(tmp_path: Path) -> None:
    (seen, one), (seen_other, other) = in_ranks(ranked, 2, str(tmp_path / "two"))
    assert distance(one, other) == 0.0
    assert [len(batch) for batch in [*seen, *seen_other]] == [8] * 8
    both = Counter(e for batch in [*seen, *seen_other] for e in batch)
    plain = build(tmp_path / "one")
    expected = watch(plain)
    plain.train()
    assert both == Counter(e for batch in expected for e in batch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"over_sampling": 1.0}, r"over_sampling is 1\.0; it must be at least 0 and below 1"),
        ({"over_sampling": 0.5, "overlap": True}, "take one of them"),
        ({"over_sampling": 0.5, "vllm_importance_sampling_correction": False}, "needs vllm_importance_sampling"),
        ({"over_sampling": 0.2}, r"over_sampling is 0\.2, less than one of the 2 tasks"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes).check_over_sampling()
