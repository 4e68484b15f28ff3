"""`agent-gym sft ENV`: a warm start on the expert's episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_gym.cli.arguments import SFTArguments
from agent_gym.cli.engine import load_tokenizer
from agent_gym.cli.fast_help import answer_help
from agent_gym.cli.flags import TrainingFlags
from agent_gym.cli.notes import note
from agent_gym.errors import ConfigError, require
from agent_gym.evaluate import make_specs

if TYPE_CHECKING:
    from trl import ModelConfig, SFTConfig

    from agent_gym.cli.launch import TrainingParser

_TINY_CONTEXT = 4096  # tokens; positions cost nothing, and any environment's demonstrations fit

FLAGS = TrainingFlags(
    "sft",
    "Train a model on the episodes of an environment's own expert (supervised warm start).",
    ("agent_gym.cli.arguments:SFTArguments", "trl:SFTConfig", "trl:ModelConfig"),
    # TRL would cut what is longer than 1,024 tokens. Demonstrations are never cut, and those of shops and of searches
    # for papers have 2,400, so that the model's own limit is the one that counts.
    {"max_length": None},
)


def main(argv: Sequence[str]) -> int:
    """Train as the arguments say."""
    answer_help(FLAGS, argv)
    note("importing torch and TRL")
    require("trl", "train")
    from agent_gym.cli.launch import run

    return run(make_parser(), argv, check, train)


def make_parser() -> TrainingParser:
    """Return the parser of this command."""
    from agent_gym.cli.launch import TrainingParser

    return TrainingParser(FLAGS)


def check(env: SFTArguments, args: SFTConfig, model: ModelConfig) -> None:
    """Find the cheap mistakes."""
    from agent_gym.cli.training import check_model, check_run
    from agent_gym.trainers.sft import TRAIN_ON

    if env.train_on not in TRAIN_ON:
        raise ConfigError(f"train_on is {env.train_on!r}; allowed: {', '.join(TRAIN_ON)}")
    if env.tiny and model.model_name_or_path is not None:
        raise ConfigError("--tiny makes a new model, so that --model_name_or_path has no use; give one of them")
    if not env.tiny:
        check_model(model)
    check_run(args)
    env.shares  # noqa: B018  (a bad value is found here)
    make_specs(env.env_id, env.kwargs, split=env.train_split, episodes=env.train_tasks, seed=args.seed)


def train(env: SFTArguments, args: SFTConfig, model: ModelConfig) -> None:
    """Play the expert, train and save."""
    from agent_gym.cli.training import finish, resume_point, telling_what_is_left, use_model
    from agent_gym.trainers.sft import expert_episodes, train_sft

    name = model.model_name_or_path or _make_tiny(env, args)
    tokenizer = load_tokenizer(name)
    episodes = expert_episodes(
        env.env_id,
        env.kwargs,
        tokenizer,
        split=env.train_split,
        episodes=env.train_tasks,
        seed=args.seed,
        styles=env.shares,
    )
    rows = [row for episode in episodes for row in episode.rows]
    with telling_what_is_left(args):
        resume = resume_point(args)
        trained = train_sft(name, tokenizer, rows, args, train_on=env.train_on, resume=resume, **use_model(args, model))
    finish(trained, args)


def _make_tiny(env: SFTArguments, args: SFTConfig) -> str:
    from accelerate import PartialState

    from agent_gym.examples.tiny import make_tiny_model, make_tiny_vision_model
    from agent_gym.rollout.images import shows_images

    folder = Path(str(args.output_dir)) / "tiny"
    with PartialState().main_process_first():
        if PartialState().is_main_process:
            context = max(_TINY_CONTEXT, args.max_length or 0)
            make = make_tiny_vision_model if shows_images(env.env_id, env.kwargs) else make_tiny_model
            make(folder, env.env_id, env.kwargs, seed=args.seed, context=context)
    return str(folder)
