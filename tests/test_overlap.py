"""The rollout of the next step, played while this one trains: the same tasks and seeds, weights one rollout older."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trainer_tools import ENV, RandomPolicy, distance, in_ranks, make_trainer, train, weights  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

# Random tokens do not depend on the weights, so that the two ways must end with the same ones: whatever differs would
# be a task, a seed or a group that went wrong.
SAME = {
    "epochs": {"max_steps": 5, "train_tasks": 5},  # more than two epochs
    "accumulation": {"max_steps": 4, "gradient_accumulation_steps": 2, "num_iterations": 2},
    "refills and evaluation": {
        "max_steps": 3,
        "max_refills": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "eval_on_start": True,
    },
}


def run(folder: str, options: dict[str, Any], overlap: bool = True) -> Any:
    options = dict(options)
    options["train_dataset"] = task_dataset(ENV, split="train", tasks=options.pop("train_tasks", 16))
    if "eval_steps" in options:
        options["eval_dataset"] = task_dataset(ENV, split="train", tasks=3)
    # The engine's own logprobs count, with overlap and without.
    return train(folder, overlap=overlap, use_vllm=True, **options)


@pytest.mark.parametrize("options", SAME.values(), ids=list(SAME))
def test_the_same_episodes_are_trained_on(tmp_path: Path, options: dict[str, Any]) -> None:
    straight = run(str(tmp_path / "straight"), options, overlap=False)
    assert distance(straight, run(str(tmp_path / "ahead"), options)) < 1e-6
    assert distance(straight, weights(make_trainer(tmp_path / "fresh").model)) > 1e-4, "it trained"


def test_two_ranks(tmp_path: Path) -> None:
    # Not Adam, which divides by the size of gradients: ranks share other openings in a pass, and sum in another order.
    options = {"max_steps": 3, "per_device_train_batch_size": 8, "optim": "sgd", "learning_rate": 1e-2}
    one, other = in_ranks(run, 2, str(tmp_path / "two"), options)
    straight = run(str(tmp_path / "one"), {**options, "per_device_train_batch_size": 16}, overlap=False)
    assert distance(one, other) == 0.0 and distance(one, straight) < 1e-6


class Watched(RandomPolicy):
    """Records which thread polls it, and the trainer's step when it was given weights."""

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


def test_what_a_rollout_fails_with_is_raised_where_it_is_needed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, policy=Failing(), overlap=True)
    with pytest.raises(RolloutError, match="the server is gone"):
        trainer.train()
    assert trainer.state.global_step == 1, "the update that was under way is whole"
