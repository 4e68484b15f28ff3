"""The arguments that `sft` and `grpo` add to TRL's: which environment, which tasks, which demonstrations."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_gym.cli.parser import json_object
from agent_gym.errors import ConfigError


@dataclass
class _Environment:
    env_id: str = field(metadata={"help": "Environment id, for example AgentR1/GSM8K-v0; may also be the first word."})
    env_kwargs: str = field(
        default="{}", metadata={"help": """Arguments of the environment as JSON: '{"data": "gsm8k.jsonl"}'."""}
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    train_tasks: int | None = field(default=None, metadata={"help": "Train on the first N tasks; default: all."})

    @property
    def kwargs(self) -> dict[str, Any]:
        """The environment's arguments; yaml gives a mapping, the command line a text."""
        return mapping("env_kwargs", self.env_kwargs)


@dataclass
class GRPOArguments(_Environment):
    """What to train on with reinforcement learning, and what to evaluate on."""

    eval_split: str = field(
        default="validation", metadata={"help": "Split to evaluate on, when eval_strategy says so."}
    )
    eval_tasks: int = field(default=200, metadata={"help": "Evaluate on the first N tasks of the split."})


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


def mapping(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: that names the argument.
    """
    try:
        return json_object(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from error
