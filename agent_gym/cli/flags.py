"""The flags of `grpo`, `ppo` and `sft`, and their `--help`, without torch and TRL.

`--help` fits on a screen: the flags of a first run, then the names of our own settings by group. `--help GROUP`
explains the settings of one group, `--help settings` all of them, from their dataclasses. The parser that reads a
command line knows all of TRL's too (train.py); `--help-all` shows them.
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from agent_gym.cli.names import environment_first
from agent_gym.cli.parser import as_text, json_object, take_option, with_underscores
from agent_gym.errors import ConfigError
from agent_gym.trainers.settings import GROUPS, AgentSettings, CriticSettings, choices

PRESETS = "agent_gym.trainers.accelerate_configs"
COMMON = tomllib.loads(resources.files(__package__).joinpath("common.toml").read_text(encoding="utf-8"))
"""The fields of TRL and transformers that every run needs, each with a placeholder of its value, and a text."""
_RL_ONLY = ("num_generations", "temperature", "beta")
_FIRST = (
    "model_name_or_path", "output_dir", "max_steps", "learning_rate", "per_device_train_batch_size", "num_generations",
    "eval_strategy", "use_peft",
)  # fmt: skip
"""The ones that `--help` explains; it names the others."""
SWITCHES = {
    "--config FILE": "a yaml file with any of these; examples/*.yaml are some to begin with",
    "--dry_run": "print the settings, what the run would do and what it would write, and end",
    "--print_config": "print the settings as yaml, and end",
    "--seeds LIST": "one run for each seed, such as 0,1,2, into output_dir/seed_N, and their means",
    "--accelerate_config NAME": "several processes: a preset or a file of `accelerate config`",
}
"""The other flags of the commands, for `--help`."""


def _argument(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class Environment:
    """The data to train on."""

    env_id: str = _argument(
        MISSING,
        "Environment id, for example AgentR1/GSM8K-v0; may also be the first word. grpo and ppo take several with "
        "their weights: id=2,id=1.",
    )
    env_kwargs: str = _argument(
        "{}",
        """Arguments of the environment as JSON: '{"data": "gsm8k.jsonl"}'. With several environments, of all of """
        """them, or of each by its id: '{"AgentR1/GSM8K-v0": {"max_turns": 4}}'.""",
    )
    protocol: str | None = _argument(None, "The environment's argument protocol: play as a paper or framework does.")
    train_split: str = _argument("train", "Split to train on.")
    train_tasks: int | None = _argument(None, "Train on the first N tasks of each environment; default: all.")

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str):  # types that can be wrong in yaml and not on a command line
            raise ConfigError(f"env_id is {self.env_id!r}; it must be text, such as AgentR1/GSM8K-v0")

    @property
    def kwargs(self) -> dict[str, Any]:
        """The environment's arguments; yaml gives a mapping, the command line a text."""
        own = {} if self.protocol is None else {"protocol": self.protocol}
        return {**mapping("env_kwargs", self.env_kwargs), **own}


@dataclass
class RLArguments(Environment):
    """The tasks to train on with reinforcement learning, and to evaluate on."""

    # An agent needs none.
    env_id: str = _argument("", Environment.__dataclass_fields__["env_id"].metadata["help"])
    agent: str | None = _argument(None, "module:function of an agent that plays instead (docs/gateway.md).")
    agent_command: str | None = _argument(None, "A program that plays instead, with {name} for fields of a task.")
    tasks: str | None = _argument(None, "A file of tasks for the agent; without one the environment gives them.")
    reward: str | None = _argument(None, "module:function of the reward of these tasks.")
    eval_split: str = _argument("validation", "Split to evaluate on, with eval_strategy.")
    eval_tasks: int = _argument(200, "Evaluate on the first N tasks of the split, of each environment.")
    judge: str | None = _argument(None, "A yaml or toml file with a judge, whose score is added to the reward.")


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


def kwargs_by_env(env_ids: Sequence[str], kwargs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each environment its arguments: `kwargs` are for all, or by id, where one without an entry has none.

    Raises `ConfigError` for an unknown id, ids among plain arguments, or an entry that is not a mapping.
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
            raise ConfigError(f"env_kwargs: {key!r} is next to {ids[0]!r}; give all arguments by environment id")
    return {env_id: mapping(f"env_kwargs of {env_id}", kwargs.get(env_id, {})) for env_id in env_ids}


def mapping(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object, or take the mapping that yaml made of one; a `ConfigError` names the argument."""
    try:
        return json_object(value if isinstance(value, Mapping) else as_text(value))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from error


class TrainingCommand(NamedTuple):
    """A command that trains."""

    summary: str
    arguments: type  # which tasks or demonstrations, one of the dataclasses above
    own: tuple[type, ...]  # dataclasses of our settings of the trainer


TRAINING = {
    "grpo": TrainingCommand(
        "Train a model on environments by reinforcement learning that compares episodes (GRPO and its relatives).",
        RLArguments,
        (AgentSettings,),
    ),
    "ppo": TrainingCommand(
        "Train a model on environments by reinforcement learning with a critic (PPO).",
        RLArguments,
        (AgentSettings, CriticSettings),
    ),
    "sft": TrainingCommand(
        "Train a model on the episodes of an environment's own expert (supervised warm start).", SFTArguments, ()
    ),
}


def split_command(argv: Sequence[str]) -> tuple[str | None, str | None, list[str]]:
    """Part a command line: `--accelerate_config`, `--config`, and the rest, where a first word is the environment."""
    arguments = environment_first(with_underscores(argv))
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--env_id")
    model, arguments = take_option(arguments, "--model")
    arguments += [] if model is None else ["--model_name_or_path", model]
    preset, arguments = take_option(arguments, "--accelerate_config")
    path, arguments = take_option(arguments, "--config")
    return preset, path, arguments


def layout(name: str) -> dict[str, Any]:
    """Return the arguments with which both parsers of a command are made, for its help and for its command line."""
    # The usage that argparse would write lists two hundred flags before the description of the command.
    usage = f"agent-gym {name} ENV [--config FILE] [--accelerate_config NAME] [any argument below]"
    about = {"prog": f"agent-gym {name}", "usage": usage, "description": TRAINING[name].summary}
    return {**about, "add_help": False, "allow_abbrev": False}


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that belong to no dataclass."""
    group = parser.add_argument_group("help, files and processes")
    group.add_argument("-h", "--help", action="help", help="Show the flags of a first run; --help settings shows more.")
    group.add_argument("--help-all", "--help_all", action="help", help="Show TRL's settings, too; this imports TRL.")
    group.add_argument("--config", metavar="FILE", help="A yaml file with any of these arguments.")
    help_text = (
        f"A preset ({', '.join(presets())}) or a file of `accelerate config`. This and all arguments of "
        "`accelerate launch` (--num_processes, ...) start several processes; without any there is one."
    )
    group.add_argument("--accelerate_config", metavar="NAME", help=help_text)


def help_text(name: str, argv: Sequence[str]) -> str:
    """Return the help that a command line asks for: of a group, of all our settings, or one screen.

    Raises `ConfigError` for a group that does not exist.
    """
    asked = argv[-1] if argv[-2:-1] in (["-h"], ["--help"]) and not argv[-1].startswith("-") else None
    if asked == "settings":
        return short_help(name)
    groups, common = _groups(name), _common(name)
    if asked is not None:
        if asked not in groups:
            raise ConfigError(f"{name} --help: no group {asked!r}; known: {', '.join(groups)}, settings")
        parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, argument_default=argparse.SUPPRESS)
        parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
        _show(parser, GROUPS[asked], groups[asked])
        return parser.format_help().lstrip()
    rows = {f"--{one} {metavar}": text for one, (metavar, text) in common.items() if one in _FIRST} | SWITCHES
    lines = [f"usage: {layout(name)['usage']}", "", TRAINING[name].summary, ""]
    lines += [f"  {flag:<33}  {text}" for flag, text in rows.items()]
    named = {"the environment": [one.name for one in dataclasses.fields(TRAINING[name].arguments)]}
    named["TRL's for every run"] = [one for one in common if one not in _FIRST]
    named |= {f"{GROUPS[key]} (--help {key})": [one.name for _, one in own] for key, own in groups.items()}
    lines.append("")
    for title, names in named.items():
        lines += [f"{title}:", *textwrap.wrap(", ".join(names), 110, initial_indent="  ", subsequent_indent="  ")]
    more = "this, or a group explained; settings explains all of these, --help-all the rest of TRL's"
    return "\n".join([*lines, "", f"  {'-h, --help [GROUP]':<33}  {more}", ""])


def _common(name: str) -> dict[str, Sequence[str]]:
    """Return the entries of `COMMON` that a command has."""
    return {one: shown for one, shown in COMMON.items() if name != "sft" or one not in _RL_ONLY}


def _groups(name: str) -> dict[str, list[tuple[type, dataclasses.Field[Any]]]]:
    """Return the settings of ours that a command has, by group."""
    own = {one.name: (kind, one) for kind in TRAINING[name].own for one in dataclasses.fields(kind)}
    grouped = {key: [one for one in own.values() if one[1].metadata["group"] == key] for key in GROUPS}
    return {key: found for key, found in grouped.items() if found}


def short_help(name: str) -> str:
    """Return the help of a training command with texts: our settings by group, and the common ones of TRL."""
    parser = argparse.ArgumentParser(
        **layout(name), formatter_class=argparse.ArgumentDefaultsHelpFormatter, argument_default=argparse.SUPPRESS
    )
    arguments, groups = TRAINING[name].arguments, _groups(name)
    _show(parser, "what to train on", [(arguments, one) for one in dataclasses.fields(arguments)])
    group = parser.add_argument_group("TRL's settings that every run needs (--help-all shows the others)")
    own = {one.name for settings in groups.values() for _, one in settings}
    for common, (metavar, text) in _common(name).items():
        if common not in own:
            group.add_argument(f"--{common}", metavar=metavar, help=text)
    for key, settings in groups.items():
        _show(parser, GROUPS[key], settings)
    add_launcher(parser)
    return parser.format_help()


def _show(parser: argparse.ArgumentParser, title: str, settings: Sequence[tuple[type, dataclasses.Field[Any]]]) -> None:
    group = parser.add_argument_group(title)
    for kind, setting in settings:
        hint = get_type_hints(kind)[setting.name]
        letters = {bool: "BOOL", int: "N", float: "X"}
        letter = next((letters[one] for one in letters if one in (hint, *get_args(hint))), "TEXT")
        metavar = "|".join(str(value) for value in choices(kind, setting.name) if value is not None) or letter
        default = argparse.SUPPRESS if setting.default in (MISSING, None) else setting.default
        group.add_argument(f"--{setting.name}", metavar=metavar, default=default, help=setting.metadata["help"])


def presets() -> list[str]:
    """Return the names of our accelerate presets."""
    names = (file.name for file in resources.files(PRESETS).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_file(name: str) -> str:
    """Return the file of a preset, or the name itself if it is a file; a `ConfigError` if it is neither."""
    if Path(name).is_file():
        return name
    if name not in presets():
        raise ConfigError(f"accelerate_config {name!r} is neither a file nor a preset; presets: {', '.join(presets())}")
    return str(resources.files(PRESETS).joinpath(f"{name}.yaml"))
