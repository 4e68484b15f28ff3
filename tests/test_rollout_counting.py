"""Rollouts are counted: where an epoch ends within an accumulation window, none is skipped or played twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from test_continuous import SERVER, Slow, run  # noqa: E402
from trainer_tools import ENV, RandomPolicy, make_trainer  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.rollout import derive_seed  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

# Three rollouts of four groups make an epoch, and two rollouts an optimizer step, of which the second of each epoch has
# one alone.
SHORT: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 1,
    "max_steps": 5,
}
ROLLOUTS = 8


def build(folder: Path, **options: Any) -> Any:
    policy = Slow() if "max_staleness" in options else RandomPolicy()
    data = task_dataset(ENV, split="train", tasks=12)
    return make_trainer(folder, policy=policy, train_dataset=data, use_vllm=True, **{**SHORT, **options})


@pytest.mark.parametrize("extra", [{}, {"gradient_accumulation_steps": 3, "num_iterations": 2, "max_steps": 4}])
def test_seeds_and_tasks_follow_the_number_of_the_rollout(tmp_path: Path, extra: dict[str, Any]) -> None:
    trainer = build(tmp_path, **extra)
    seen = run(trainer)
    assert len(seen) == (ROLLOUTS if not extra else 6)
    for number, batch in enumerate(seen):
        base = derive_seed(trainer.args.seed, number)
        assert [seed for *_, seed in batch] == [derive_seed(base, place) for place in range(16)]
        assert [index for index, *_ in batch[::4]] == trainer.sampler.batch(number)
    assert trainer.n_rollouts == len(seen)


WAYS = [pytest.param({}, marks=pytest.mark.slow), {"max_staleness": 1, **SERVER}]


@pytest.mark.parametrize("way", WAYS, ids=["0", "server"])
def test_no_rollout_is_skipped_or_played_twice_and_a_resumed_run_counts_on(tmp_path: Path, way: dict[str, Any]) -> None:
    plain = run(build(tmp_path / "plain"))
    saving = {"save_strategy": "steps", "save_steps": 3}
    trainer = build(tmp_path, **saving, **way)
    whole = run(trainer)
    played = len({id(request.episode) for request in trainer.scheduler.policy.seen})
    assert played == 16 * ROLLOUTS, "nothing is played for nothing, also not behind the last step"
    resumed = build(tmp_path, **saving, **way)
    rest = run(resumed, str(tmp_path / "checkpoint-3"))
    assert len(rest) == 3, "the checkpoint stands behind five rollouts"
    if way:
        assert Counter(e for batch in whole for e in batch) == Counter(e for batch in plain for e in batch)
        assert Counter(e for batch in rest for e in batch) == Counter(e for batch in whole[5:] for e in batch)
    else:
        assert whole == plain and rest == whole[5:]
        assert run(resumed) == whole, "training again begins anew"


@pytest.mark.parametrize("way", [pytest.param({}, marks=pytest.mark.slow), SERVER], ids=["process", "server"])
def test_training_again_after_an_error_plays_anew_what_was_in_play(tmp_path: Path, way: dict[str, Any]) -> None:
    whole = run(build(tmp_path / "whole", max_staleness=1, **way))
    trainer = build(tmp_path / "again", max_staleness=1, **way)
    policy, calls = trainer.scheduler.policy, []
    poll = policy.poll

    def failing() -> Any:
        calls.append(None)
        if len(calls) == 3:
            raise RolloutError("the engine is gone")
        return poll()

    policy.poll = failing
    with pytest.raises(RolloutError, match="gone"):
        trainer.train()
    again = run(trainer)
    assert [*map(Counter, again)] == [*map(Counter, whole)]
    assert all(log["episode/turns"] for log in trainer.state.log_history if "loss" in log)
