"""Which episodes are trained on, in whole runs: refills, StarPO-S, penalties, curricula, mixtures, the monitor."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, RandomPolicy, batches_of, logged, make_trainer, played_by  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from agent_gym.policies import Generation, Request  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.tasks import mix_datasets  # noqa: E402


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


# Group filters.


def test_groups_that_agree_are_replaced_by_fresh_tasks(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, policy=Parrot(range(0, 64, 2)), max_steps=3, max_refills=4, per_device_train_batch_size=16
    )
    episodes, batches = played_by(trainer), batches_of(trainer)
    trainer.train()
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
    trainer = make_trainer(tmp_path, policy=Parrot(), max_steps=2, max_refills=2)
    episodes = played_by(trainer)
    trainer.train()
    assert logged(trainer, "rollout/refills") == [2.0, 2.0] and len(episodes) == 2 * 8 * 3
    assert logged(trainer, "rollout/groups_kept") == [0.0, 0.0]
    assert logged(trainer, "grad_norm") == [0.0, 0.0]  # nothing to learn from, and no error
    dataset = task_dataset(ENV, tasks=3)
    trainer = make_trainer(tmp_path, policy=Parrot(), max_steps=1, max_refills=9, train_dataset=dataset)
    episodes = played_by(trainer)
    trainer.train()
    assert sorted(episode.spec.index for episode in episodes) == [0] * 4 + [1] * 4 + [2] * 4


def test_starpo_s_trains_on_the_groups_of_largest_spread(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, policy=Parrot([0, 3, 6, 9, 12]), max_steps=2, keep_groups=0.5, per_device_train_batch_size=24
    )
    episodes, batches = played_by(trainer), batches_of(trainer)
    trainer.train()
    for i, batch in enumerate(batches):
        rollout = episodes[24 * i : 24 * (i + 1)]
        rewards = {g: [e.reward for e in rollout if e.spec.group == g] for g in range(6)}
        best = sorted(rewards, key=lambda g: -statistics.stdev(rewards[g]))[:3]
        expected = {tuple(e.rows[0].token_ids[: e.steps[-1].stop]) for e in rollout if e.spec.group in best}
        lengths = batch["attention_mask"].sum(1).tolist()[:-1]
        assert {tuple(batch["input_ids"][row, :n].tolist()) for row, n in enumerate(lengths)} == expected
    assert logged(trainer, "rollout/groups_kept") == [0.5, 0.5]


# Rewards.


def test_the_overlong_penalty_rises_before_the_limit(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, overlong_buffer=4, max_turn_tokens=8)
    episodes = played_by(trainer)
    trainer.train()
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
    trainer = make_trainer(tmp_path, beta=0.5, kl_in="reward", learning_rate=1e-2, **options)
    batches, episodes = batches_of(trainer), played_by(trainer)
    trainer.train()
    batch = batches[-1]
    drift = (batch["old_logps"] - batch["ref_logps"]) * batch["action_mask"]
    assert drift.abs().max() > 1e-3
    rewards = {tuple(e.rows[0].token_ids[: e.steps[-1].stop]): e.reward for e in episodes}
    for row in range(len(drift) - 1):
        ids = tuple(batch["input_ids"][row, : int(batch["attention_mask"][row].sum())].tolist())
        first = int(batch["action_mask"][row].nonzero()[0])
        expected = rewards[ids] - 0.5 * drift[row].sum().item()
        assert batch["advantages"][row, first].item() == pytest.approx(expected, abs=1e-5)


# Stages and mixtures.


def test_the_turn_budget_grows_in_training_and_not_in_evaluation(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        max_steps=4,
        turn_curriculum="0:1,2:3",
        env_kwargs={"patient": True},
        max_turns=5,
        max_episode_tokens=400,
        eval_dataset=task_dataset(ENV, {"patient": True}, split="test", tasks=2),
    )
    trainer.train()
    assert logged(trainer, "episode/turns") == [1.0, 1.0, 3.0, 3.0]
    assert logged(trainer, "rollout/max_turns") == [1.0, 1.0, 3.0, 3.0]
    assert trainer.evaluate()["eval_episode/turns"] == 5.0


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
