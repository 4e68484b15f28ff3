"""What `grpo`, `ppo` and `sft` take, and their `--help`, without torch and TRL.

`--help` shows our own settings in groups, from their dataclasses, and those of TRL that every run needs. The parser
that reads a command line knows all of TRL's too (train.py); `--help-all` shows them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_gym.cli.parser import as_text, json_object
from agent_gym.errors import ConfigError

PRESETS = "agent_gym.trainers.accelerate_configs"
COMMON = {
    "model_name_or_path": ("PATH", "folder or hub id of the model to train"),
    "output_dir": ("DIR", "where checkpoints, trajectories and the model go; a new folder"),
    "learning_rate": ("X", "learning rate of the optimizer"),
    "max_steps": ("N", "optimizer steps; else num_train_epochs counts"),
    "num_train_epochs": ("X", "passes over the tasks"),
    "per_device_train_batch_size": ("N", "episodes (sft: demonstrations) per process and micro-step"),
    "gradient_accumulation_steps": ("N", "micro-steps per optimizer step"),
    "num_generations": ("N", "episodes per task"),
    "temperature": ("X", "of the sampling"),
    "beta": ("X", "factor of the KL term; 0 loads no reference model"),
    "seed": ("N", "seed of everything"),
    "eval_strategy": ("WHEN", "no, steps or epoch"),
    "eval_steps": ("N", "steps between evaluations"),
    "logging_steps": ("N", "steps between log lines"),
    "save_steps": ("N", "steps between checkpoints"),
    "report_to": ("NAME", "tensorboard, wandb, trackio, ... or none"),
    "resume_from_checkpoint": ("PATH", "a checkpoint, or true for the last one of output_dir"),
    "gradient_checkpointing": ("BOOL", "compute activations again instead of keeping them"),
    "bf16": ("BOOL", "mixed precision; default: on a GPU"),
    "use_peft": ("BOOL", "train LoRA adapters (lora_r, lora_alpha, lora_target_modules)"),
}
"""The fields of TRL and transformers that every run needs. The others, and their defaults, are in `--help-all`."""
_RL_ONLY = ("num_generations", "temperature", "beta")


def _argument(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class Environment:
    """What to train on."""

    env_id: str = field(
        metadata={
            "help": "Environment id, for example AgentR1/GSM8K-v0; may also be the first word. grpo and ppo take "
            "several with their weights: id=2,id=1."
        }
    )
    env_kwargs: str = _argument(
        "{}",
        """Arguments of the environment as JSON: '{"data": "gsm8k.jsonl"}'. With several environments, of all of """
        """them, or of each by its id: '{"AgentR1/GSM8K-v0": {"max_turns": 4}}'.""",
    )
    train_split: str = _argument("train", "Split to train on.")
    train_tasks: int | None = _argument(None, "Train on the first N tasks of each environment; default: all.")

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str):  # yaml can get wrong what a command line cannot
            raise ConfigError(f"env_id is {self.env_id!r}; it must be text, such as AgentR1/GSM8K-v0")

    @property
    def kwargs(self) -> dict[str, Any]:
        """The environment's arguments; yaml gives a mapping, the command line a text."""
        return mapping("env_kwargs", self.env_kwargs)


@dataclass
class RLArguments(Environment):
    """What to train on with reinforcement learning, and what to evaluate on."""

    eval_split: str = _argument("validation", "Split to evaluate on, with eval_strategy.")
    eval_tasks: int = _argument(200, "Evaluate on the first N tasks of the split, of each environment.")


@dataclass
class SFTArguments(Environment):
    """Which demonstrations to imitate."""

    train_on: str = _argument(
        "policy", "policy: imitate the policy's tokens; all: also questions and answers of the environment."
    )
    styles: str = _argument("{}", """Styles of the expert and their shares as JSON: '{"default": 3, "direct": 1}'.""")
    tiny: bool = _argument(
        False, "Start from a fresh tiny model, made in <output_dir>/tiny, instead of model_name_or_path."
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
    """Read a JSON object, or take the mapping that yaml made of one; a `ConfigError` names the argument."""
    try:
        return json_object(value if isinstance(value, Mapping) else as_text(value))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """A command that trains.

    Attributes:
        name: what the user types.
        summary: what it does, for `--help`.
        arguments: which tasks or demonstrations, one of the dataclasses above.
        own: dataclasses of our settings, as "module:Class", that import without torch.
        config: dataclass of all settings of the trainer, TRL's included, which takes seconds to import.
        defaults: those that differ from TRL's.
    """

    name: str
    summary: str
    arguments: type
    own: tuple[str, ...]
    config: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def classes(self) -> list[Any]:
        """Import the dataclasses whose fields are flags."""
        return [self.arguments, load(self.config), load("trl:ModelConfig")]

    def layout(self) -> dict[str, Any]:
        """Return what both parsers, of the help and of the command line, are made with."""
        # The usage that argparse would write lists two hundred flags before it says what the command does.
        usage = f"agent-gym {self.name} ENV [--config FILE] [--accelerate_config NAME] [any argument below]"
        return {"prog": f"agent-gym {self.name}", "usage": usage, "description": self.summary, "allow_abbrev": False}


_SETTINGS = "agent_gym.trainers.settings"
TRAINING = {
    "grpo": TrainingCommand(
        "grpo",
        "Train a model on environments by reinforcement learning that compares episodes (GRPO and its relatives).",
        RLArguments,
        (f"{_SETTINGS}:AgentSettings",),
        "agent_gym.trainers:AgentGRPOConfig",
    ),
    "ppo": TrainingCommand(
        "ppo",
        "Train a model on environments by reinforcement learning with a critic (PPO).",
        RLArguments,
        (f"{_SETTINGS}:AgentSettings", f"{_SETTINGS}:CriticSettings"),
        "agent_gym.trainers:AgentPPOConfig",
    ),
    "sft": TrainingCommand(
        "sft",
        "Train a model on the episodes of an environment's own expert (supervised warm start).",
        SFTArguments,
        (),
        "trl:SFTConfig",
        # TRL would cut what is longer than 1,024 tokens. Demonstrations are never cut, and those of shops and of
        # searches for papers have 2,400, so that the model's own limit is the one that counts.
        {"max_length": None},
    ),
}
"""The commands by name."""


def load(place: str) -> Any:
    """Import what "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that belong to no dataclass."""
    group = parser.add_argument_group("help, files and processes")
    group.add_argument("-h", "--help", action="help", help="Show our own settings and the most common ones of TRL.")
    group.add_argument("--help-all", "--help_all", action="help", help="Show TRL's settings, too; this imports TRL.")
    group.add_argument("--config", metavar="FILE", help="A yaml file with any of these arguments.")
    group.add_argument(
        "--accelerate_config",
        metavar="NAME",
        help=f"A preset ({', '.join(presets())}) or a file of `accelerate config`. This and all arguments of "
        "`accelerate launch` (--num_processes, ...) start several processes; without any there is one.",
    )


def short_help(command: TrainingCommand) -> str:
    """Return the help of a training command: our settings by group, and the common ones of TRL."""
    look: dict[str, Any] = {
        "formatter_class": argparse.ArgumentDefaultsHelpFormatter,
        "argument_default": argparse.SUPPRESS,
    }
    parser = argparse.ArgumentParser(**command.layout(), add_help=False, **look)
    own = {one.name: (one, hint) for place in command.own for one, hint in _fields(load(place))}
    group = parser.add_argument_group("what to train on")
    for setting, hint in _fields(command.arguments):
        _add(group, setting, hint)
    group = parser.add_argument_group("TRL's settings that every run needs (--help-all shows the others)")
    for name, (metavar, text) in COMMON.items():
        if name not in own and (command.own or name not in _RL_ONLY):
            group.add_argument(f"--{name}", metavar=metavar, help=text)
    for key, title in load(f"{_SETTINGS}:GROUPS").items():
        group = parser.add_argument_group(title)
        for setting, hint in own.values():
            if setting.metadata["group"] == key:
                _add(group, setting, hint)
    add_launcher(parser)
    return parser.format_help()


def _fields(settings: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(settings)
    return ((one, hints[one.name]) for one in dataclasses.fields(settings))


def _add(group: argparse._ArgumentGroup, setting: dataclasses.Field[Any], hint: Any) -> None:
    """Show a field of a dataclass as the flag that it becomes."""
    kinds = (hint, *get_args(hint))
    allowed = [str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    letter = next((name for kind, name in ((bool, "BOOL"), (int, "N"), (float, "X")) if kind in kinds), "TEXT")
    default = argparse.SUPPRESS if setting.default in (dataclasses.MISSING, None) else setting.default
    metavar = "|".join(allowed) or letter
    group.add_argument(f"--{setting.name}", metavar=metavar, default=default, help=setting.metadata["help"])


def presets() -> list[str]:
    """Return the names of our accelerate presets."""
    names = (file.name for file in resources.files(PRESETS).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_file(name: str) -> str:
    """Return the file of a preset, or the name itself if it is a file.

    Raises:
        ConfigError: if it is neither.
    """
    if Path(name).is_file():
        return name
    if name not in presets():
        raise ConfigError(f"accelerate_config {name!r} is neither a file nor a preset; presets: {', '.join(presets())}")
    return str(resources.files(PRESETS).joinpath(f"{name}.yaml"))
