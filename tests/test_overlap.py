"""The rollout of the next step, played while this one trains: the same tasks and seeds, weights one rollout older."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trainer_tools import (  # noqa: E402
    ENV,
    RandomPolicy,
    distance,
    in_ranks,
    make_trainer,
    settings,
    train,
    weights,
)

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

# Random tokens do not depend on the weights, so that the two ways must end with the same ones: whatever differs would
# be a task, a seed or a group that went wrong.
SAME = [
    {"max_steps": 5, "train_tasks": 5},  # more than two epochs
    {"max_steps": 4, "gradient_accumulation_steps": 2, "num_iterations": 2},
    {"max_steps": 4, "steps_per_generation": 2},
    {"max_steps": 3, "max_refills": 2},
    {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
]


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    tasks = options.pop("train_tasks", 16)
    kwargs = options.get("env_kwargs")
    options["train_dataset"] = task_dataset(ENV, kwargs, split="train", tasks=tasks)
    if "eval_steps" in options:
        options["eval_dataset"] = task_dataset(ENV, kwargs, split="train", tasks=3)
    # The engine's own logprobs count, with overlap and without.
    return {**options, "use_vllm": True}


@pytest.mark.parametrize("options", SAME, ids=["epochs", "accumulation", "chunks", "refills", "evaluation"])
def test_the_same_episodes_are_trained_on(tmp_path: Path, options: dict[str, Any]) -> None:
    straight = train(tmp_path / "straight", **options_of(options))
    ahead = train(tmp_path / "ahead", overlap=True, **options_of(options))
    assert distance(straight, ahead) < 1e-6
    assert distance(straight, weights(make_trainer(tmp_path / "fresh").model)) > 1e-4, "it trained"


def overlapped(folder: str, options: dict[str, Any]) -> Any:
    return train(folder, overlap=True, **options_of(options))


def test_two_ranks(tmp_path: Path) -> None:
    options = {"max_steps": 3, "per_device_train_batch_size": 8}
    one, other = in_ranks(overlapped, 2, str(tmp_path / "two"), options)
    straight = train(tmp_path / "one", **options_of({**options, "per_device_train_batch_size": 16}))
    assert distance(one, other) == 0.0 and distance(one, straight) < 1e-6


class Watched(RandomPolicy):
    """Notes when it is polled by whom, and what the trainer had done when it was given weights."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.threads: list[str] = []
        self.trainer: Any = None

    def sync(self, named_weights: Any) -> None:
        super().sync(named_weights)
        self.steps.append(self.trainer.state.global_step)

    def poll(self) -> Any:
        self.threads.append(threading.current_thread().name)
        return super().poll()


def test_weights_are_one_rollout_behind_and_no_rollout_is_left_over(tmp_path: Path) -> None:
    policy = Watched()
    policy.trainer = trainer = make_trainer(tmp_path, policy=policy, overlap=True, max_steps=4)
    trainer.train()
    # The first rollout has the first weights; so has the second, which is played while the first trains.
    assert policy.steps == [0, 0, 1, 2]
    assert "rollout-ahead" in policy.threads and policy.threads[0] != "rollout-ahead"
    logs = [log for log in trainer.state.log_history if "rollout/staleness" in log]
    assert [log["rollout/staleness"] for log in logs] == [log["rollout/staleness_max"] for log in logs] == [0, 1, 1, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == "rollout-ahead"]


class Failing(RandomPolicy):
    def poll(self) -> Any:
        if threading.current_thread().name == "rollout-ahead":
            raise RolloutError("the server is gone")
        return super().poll()


def test_what_a_rollout_fails_with_is_told_where_it_is_needed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, policy=Failing(), overlap=True)
    with pytest.raises(RolloutError, match="the server is gone"):
        trainer.train()
    assert trainer.state.global_step == 1, "the update that was under way is whole"


def test_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="overlap needs layout='server'"):
        make_trainer(tmp_path, policy=None, overlap=True)
    with pytest.raises(ConfigError, match="overlap needs vllm_importance_sampling_correction"):
        settings(tmp_path, overlap=True, vllm_importance_sampling_correction=False)
