"""The control that a claim of reinforcement learning is held to: RAFT++ with RL's rounds, episodes, passes and updates.

It begins at the same start and sees the same tasks in the same order. The advantage is 1 for a success and 0 for a
failure (trainers/estimators/imitation.py); nothing else differs from GRPO. The difference between the two is the worth
of centred and negative advantages. The number of optimizer steps is equal, and the seconds are printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback

from agent_gym.speedrun.controls import StepClock
from agent_gym.speedrun.dashboard import StepLines
from agent_gym.speedrun.imitation import QUIET
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.grpo import AgentGRPOTrainer
from agent_gym.trainers.tasks import task_dataset

if TYPE_CHECKING:
    from agent_gym.speedrun.run import Speedrun

RAFT = "RAFT++"


def imitate_successes(run: Speedrun, model: Any, steps: int) -> StepClock:
    """Train a model by RAFT++ for as many optimizer steps as RL made; return its clock.

    Args:
        run: whose preset, seed, engine and folder are used; the weights go to `raft` in it.
        model: with the weights that RL started from.
        steps: how many RL made.
    """
    preset, folder, clock = run.preset, run.folder / "raft", StepClock(run.clock)
    settings = {**QUIET, **preset.grpo, "advantage_estimator": "raft_pp", "max_steps": steps}
    settings["trajectories_per_step"] = 0
    settings.pop("eval_steps", None)
    device = {"use_cpu": run.args.use_cpu, "bf16": run.args.bf16, "use_vllm": run.args.use_vllm}
    trainer = AgentGRPOTrainer(
        model,
        args=AgentGRPOConfig(str(folder), seed=run.seed, **{**settings, **device}),
        train_dataset=task_dataset(preset.env_id, preset.env_kwargs, tasks=preset.train_tasks, seed=run.seed),
        policy=run.policy,
        processing_class=run.tokenizer,
        callbacks=[StepLines(run.log), clock],
    )
    trainer.remove_callback(PrinterCallback)  # the lines are the run's own
    trainer.train()
    trainer.save_model()
    trainer.runner.close()
    return clock
