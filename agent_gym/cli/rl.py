"""What `grpo` and `ppo` are: the same command around two trainers.

An environment is named by its id; several are named with weights, and become one mixture:

    agent-gym grpo AgentR1/GSM8K-v0=2,AgentR1/GSM8K-NoTool-v0=1 --model_name_or_path MODEL

The weights hold in training. Evaluation plays as many tasks of each environment, in one set: one rollout fills the
engine, `eval_success` stays a single number to choose a checkpoint by, and the metrics of each environment follow under
its id (trainers/metrics.py). A set per environment would give neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_gym.cli.arguments import RLArguments, kwargs_by_env
from agent_gym.cli.engine import load_tokenizer
from agent_gym.cli.fast_help import answer_help
from agent_gym.cli.flags import TrainingFlags
from agent_gym.cli.notes import note
from agent_gym.errors import ConfigError, require
from agent_gym.policies.vllm import set_environment

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import ModelConfig

    from agent_gym.cli.launch import TrainingParser


@dataclass(frozen=True, slots=True)
class RLCommand:
    """A command that trains by reinforcement learning.

    Attributes:
        name: what the user types.
        summary: what it does, for `--help`.
        config: class of the settings, as "module:Class".
        trainer: class of the trainer, in `agent_gym.trainers`. Both are names: importing them takes seconds.
        critic: whether the trainer has one.
    """

    name: str
    summary: str
    config: str
    trainer: str
    critic: bool

    def main(self, argv: Sequence[str]) -> int:
        """Train as the arguments say."""
        answer_help(self.flags, argv)
        note("importing torch and TRL")
        set_environment()
        require("trl", "train")
        from agent_gym.cli.launch import run

        return run(self.make_parser(), argv, self.check, self.train)

    @property
    def flags(self) -> TrainingFlags:
        """What this command takes."""
        settings = ("agent_gym.cli.arguments:RLArguments", self.config, "trl:ModelConfig")
        return TrainingFlags(self.name, self.summary, settings)

    def make_parser(self) -> TrainingParser:
        """Return the parser of this command."""
        from agent_gym.cli.launch import TrainingParser

        return TrainingParser(self.flags)

    def check(self, env: RLArguments, args: Any, model: ModelConfig) -> None:
        """Find the cheap mistakes."""
        from agent_gym.cli.training import check_model, check_run

        check_model(model)
        check_run(args)
        self._check_estimator(args)
        task_datasets(env, args)

    def train(self, env: RLArguments, args: Any, model: ModelConfig) -> None:
        """Train and save."""
        from agent_gym import trainers
        from agent_gym.cli.training import finish, resume_point, telling_what_is_left, use_model
        from agent_gym.examples.dashboard import watch

        name = str(model.model_name_or_path)
        tokenizer = load_tokenizer(name)
        train_dataset, eval_dataset = task_datasets(env, args)
        trainer = getattr(trainers, self.trainer)(
            name,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            **use_model(args, model),
        )
        with telling_what_is_left(args), watch(trainer):
            trainer.train(resume_from_checkpoint=resume_point(args))
        finish(trainer, args)

    def _check_estimator(self, args: Any) -> None:
        """Name the other command; the trainer, which would find it too, has loaded the model by then."""
        from agent_gym.trainers.estimators import ESTIMATORS

        if args.estimator.needs_critic == self.critic:
            return
        mine = ", ".join(name for name, known in ESTIMATORS.items() if known.needs_critic == self.critic)
        why, other = ("makes no use of", "grpo") if self.critic else ("needs", "ppo")
        raise ConfigError(
            f"advantage_estimator {args.advantage_estimator!r} {why} a critic: use agent-gym {other}, or one of {mine}"
        )


def task_datasets(env: RLArguments, args: Any) -> tuple[Dataset, Dataset | None]:
    """Return the tasks to train on, and those to evaluate on if there is to be an evaluation."""
    train = _tasks(env, env.train_split, env.train_tasks, args.seed)
    if args.eval_strategy == "no" and not args.eval_on_start:
        return train, None
    return train, _tasks(env, env.eval_split, env.eval_tasks, args.seed)


def _tasks(env: RLArguments, split: str, tasks: int | None, seed: int) -> Dataset:
    from agent_gym.trainers.tasks import mix_datasets, parse_mixture, task_dataset

    weights = dict(parse_mixture(env.env_id))
    kwargs = kwargs_by_env(list(weights), env.kwargs)
    parts = [task_dataset(env_id, kwargs[env_id], split=split, tasks=tasks, seed=seed) for env_id in weights]
    return mix_datasets(parts, list(weights.values())) if len(parts) > 1 else parts[0]
