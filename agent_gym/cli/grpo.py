"""`agent-gym grpo ENV`: reinforcement learning with `AgentGRPOTrainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_gym.cli.arguments import GRPOArguments
from agent_gym.cli.engine import load_tokenizer
from agent_gym.cli.parser import require
from agent_gym.policies.vllm_environment import set_environment

if TYPE_CHECKING:
    from trl import ModelConfig

    from agent_gym.cli.launch import TrainingParser
    from agent_gym.trainers.config import AgentGRPOConfig


def main(argv: Sequence[str]) -> int:
    """Train as the arguments say."""
    set_environment()
    require("trl", "train")
    from agent_gym.cli.launch import run

    return run(make_parser(), argv, check, train)


def make_parser() -> TrainingParser:
    """Return the parser of this command."""
    from trl import ModelConfig

    from agent_gym.cli.launch import TrainingParser
    from agent_gym.trainers.config import AgentGRPOConfig

    summary = "Train a model on an environment by reinforcement learning (GRPO)."
    return TrainingParser("grpo", summary, (GRPOArguments, AgentGRPOConfig, ModelConfig))


def check(env: GRPOArguments, args: AgentGRPOConfig, model: ModelConfig) -> None:
    """Find the cheap mistakes."""
    from agent_gym.cli.training import check_model, resume_point

    check_model(model)
    resume_point(args)
    _datasets(env, args)


def train(env: GRPOArguments, args: AgentGRPOConfig, model: ModelConfig) -> None:
    """Train and save."""
    from agent_gym.cli.training import finish, resume_point, use_model
    from agent_gym.trainers.grpo import AgentGRPOTrainer

    name = str(model.model_name_or_path)
    tokenizer = load_tokenizer(name)
    train_dataset, eval_dataset = _datasets(env, args)
    trainer = AgentGRPOTrainer(
        name,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        **use_model(args, model),
    )
    trainer.train(resume_from_checkpoint=resume_point(args))
    finish(trainer, args)


def _datasets(env: GRPOArguments, args: AgentGRPOConfig) -> tuple:
    from agent_gym.trainers.tasks import task_dataset

    train = task_dataset(env.env_id, env.kwargs, split=env.train_split, tasks=env.train_tasks, seed=args.seed)
    if args.eval_strategy == "no" and not args.eval_on_start:
        return train, None
    return train, task_dataset(env.env_id, env.kwargs, split=env.eval_split, tasks=env.eval_tasks, seed=args.seed)
