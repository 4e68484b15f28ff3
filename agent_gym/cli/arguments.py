"""The arguments that the training commands add to TRL's: which environment, which tasks, which demonstrations."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_gym.cli.parser import as_text, json_object
from agent_gym.errors import ConfigError


@dataclass
class _Environment:
    env_id: str = field(metadata={"help": "Environment id, for example AgentR1/GSM8K-v0; may also be the first word."})
    env_kwargs: str = field(
        default="{}", metadata={"help": """Arguments of the environment as JSON: '{"data": "gsm8k.jsonl"}'."""}
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    train_tasks: int | None = field(default=None, metadata={"help": "Train on the first N tasks; default: all."})

    def __post_init__(self) -> None:
        """Check what yaml can get wrong and a command line cannot."""
        if not isinstance(self.env_id, str):
            raise ConfigError(f"env_id is {self.env_id!r}; it must be text, such as AgentR1/GSM8K-v0")

    @property
    def kwargs(self) -> dict[str, Any]:
        """The environment's arguments; yaml gives a mapping, the command line a text."""
        return mapping("env_kwargs", self.env_kwargs)


@dataclass
class RLArguments(_Environment):
    """What to train on with reinforcement learning, and what to evaluate on."""

    env_id: str = field(
        metadata={
            "help": "Environment id, for example AgentR1/GSM8K-v0, or several with their weights: id=2,id=1. May also "
            "be the first word."
        }
    )
    env_kwargs: str = field(
        default="{}",
        metadata={
            "help": """Arguments of the environments as JSON: '{"data": "gsm8k.jsonl"}' for all of them, or each by """
            """its id: '{"AgentR1/GSM8K-v0": {"max_turns": 4}}'."""
        },
    )
    train_tasks: int | None = field(
        default=None, metadata={"help": "Train on the first N tasks of each environment; default: all."}
    )
    eval_split: str = field(
        default="validation", metadata={"help": "Split to evaluate on, when eval_strategy says so."}
    )
    eval_tasks: int = field(
        default=200, metadata={"help": "Evaluate on the first N tasks of the split, of each environment."}
    )


@dataclass
class SFTArguments(_Environment):
    """Which demonstrations to imitate."""

    train_on: str = field(
        default="policy",
        metadata={"help": "policy: imitate the policy's tokens; all: also questions and answers of the world."},
    )
    styles: str = field(
        default="{}",
        metadata={"help": """Styles of the expert and their shares as JSON: '{"default": 3, "direct": 1}'."""},
    )
    tiny: bool = field(
        default=False,
        metadata={"help": "Start from a fresh tiny model, made in <output_dir>/tiny, instead of model_name_or_path."},
    )

    @property
    def shares(self) -> dict[str, float] | None:
        """The styles, None for the expert's default."""
        return mapping("styles", self.styles) or None


def kwargs_by_env(env_ids: Sequence[str], kwargs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each environment its arguments.

    Args:
        env_ids: the environments.
        kwargs: arguments of all of them, or by id, where an environment without an entry has none.

    Raises:
        ConfigError: for an id that is not there, ids beside plain arguments, or an entry that is no mapping.
    """
    # No argument of Python's is written like `AgentR1/GSM8K-v0`: such a key is an id, if perhaps a mistyped one.
    ids = [key for key in kwargs if key in env_ids or not str(key).isidentifier()]
    if not ids:
        return {env_id: dict(kwargs) for env_id in env_ids}
    for key in ids:
        if key not in env_ids:
            raise ConfigError(f"env_kwargs: {key!r} is none of the environments, which are {', '.join(env_ids)}")
    for key in kwargs:
        if key not in ids:
            raise ConfigError(f"env_kwargs: {key!r} stands beside {ids[0]!r}; give all arguments by environment id")
    return {env_id: mapping(f"env_kwargs of {env_id}", kwargs.get(env_id, {})) for env_id in env_ids}


def mapping(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object, or take the mapping that yaml made of one.

    Raises:
        ConfigError: that names the argument.
    """
    try:
        return json_object(value if isinstance(value, Mapping) else as_text(value))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from error
