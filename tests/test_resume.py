"""A run that is killed and taken up again ends with the weights of a run that was left alone.

The process is really killed (SIGKILL), after a checkpoint and in the middle of a later step. Data order, sampling,
optimizer state and row order must all continue; most tests therefore stop in the second epoch, where a loader that
starts its order anew would be found out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, distance, in_ranks, kill_ranks, make_trainer, ready_to_die, weights  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from agent_gym.trainers import task_dataset  # noqa: E402

# Six tasks and two per step: an epoch has three steps, the checkpoint is made after the first step of the second.
BASE: dict[str, Any] = {
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 4,
    "optim": "adamw_torch",
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "micro_batch_size": 3,
}


class DieInStep(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            ready_to_die()


def build(folder: str, options: dict[str, Any], callbacks: Any = ()) -> Any:
    peft_config = None
    options = dict(options)
    if options.pop("lora", False):
        from peft import LoraConfig

        peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    return make_trainer(
        folder,
        train_dataset=task_dataset(ENV, {"fail": 11}, tasks=options.pop("tasks", 6)),
        callbacks=list(callbacks),
        peft_config=peft_config,
        **{**BASE, **options},
    )


def die(folder: str, options: dict[str, Any], step: int) -> None:
    build(folder, options, [DieInStep(step)]).train()


def go_on(folder: str, options: dict[str, Any], resume: bool) -> tuple[Any, list[int]]:
    """Train to the end; return the weights and the steps that ran in this process."""
    trainer = build(folder, options)
    trainer.train(resume_from_checkpoint=True if resume else None)
    steps = [log["step"] for log in trainer.state.log_history if "time/update" in log]
    return weights(trainer.model), steps


def check(folder: Path, options: dict[str, Any], processes: int = 1, die_in: int = 6) -> None:
    kill_ranks(die, processes, str(folder / "killed"), options, die_in)
    saved = {path.name for path in (folder / "killed").glob("checkpoint-*")}
    assert saved == {f"checkpoint-{options.get('save_steps', 4)}"}
    if processes == 1:
        resumed, _ = go_on(str(folder / "killed"), options, True)
        straight, steps = go_on(str(folder / "straight"), options, False)
    else:
        resumed, _ = in_ranks(go_on, processes, str(folder / "killed"), options, True)[0]
        straight, steps = in_ranks(go_on, processes, str(folder / "straight"), options, False)[0]
    assert steps[-1] == 8
    assert distance(resumed, straight) <= 1e-7


def test_killed_in_the_second_epoch(tmp_path: Path) -> None:
    check(tmp_path, {})


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    # Another order of the same tasks is a difference that the tolerance does not forgive.
    one, _ = go_on(str(tmp_path / "a"), {"max_steps": 2, "save_strategy": "no"}, False)
    other, _ = go_on(str(tmp_path / "b"), {"max_steps": 2, "save_strategy": "no", "seed": 1}, False)
    assert distance(one, other) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"save_steps": 3},
        {"policy": None},
        {"num_iterations": 2},
        {"steps_per_generation": 2, "per_device_train_batch_size": 4},
        {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4},
        {"lora": True},
        {"beta": 0.1},
        {"ppo": True, "num_generations": 4, "num_iterations": 2, "critic_warmup_steps": 5},
    ],
    ids=["end of an epoch", "transformers", "two passes", "off policy", "uneven epochs", "lora", "kl", "critic"],
)
def test_killed_under_other_settings(tmp_path: Path, options: dict[str, Any]) -> None:
    check(tmp_path, options)


@pytest.mark.slow
@pytest.mark.parametrize("save_steps", [2, 4])
def test_two_ranks_killed(tmp_path: Path, save_steps: int) -> None:
    check(tmp_path, {"per_device_train_batch_size": 4, "save_steps": save_steps}, processes=2, die_in=save_steps + 2)
