"""The common parts of the commands: an argument parser whose errors are one line, and that reads `--config file.yaml`.

The training commands use TRL's parser (train.py), which behaves the same way; this one does not import TRL.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from agent_gym.cli.names import environment_first, meant
from agent_gym.errors import ConfigError, one_of, require, writing
from agent_gym.public import MASK, hide
from agent_gym.registry import resolve_env_id
from agent_gym.registry.trained import PREFIX, arguments_of_training, trained_policies
from agent_gym.untrusted import check_depth, harmless, parse_json, read_text

Flag = Callable[..., None]  # adds a flag, see `CommandParser.group`


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are `ConfigError`s, with `--config` for every command.

    A command's docstring is its summary in `--help`.

    Flags are written with underscores, as TRL writes them; dashes mean the same.
    """

    def __init__(self, command: str, summary: str | None) -> None:
        super().__init__(
            prog=f"agent-gym {command}", description=summary, allow_abbrev=False, formatter_class=_HelpFormatter
        )
        self.command = command
        self.flag = self.group()
        help_text = "a yaml file with any of these arguments; the command line wins over it"
        self.flag("--config FILE", help_text, default=argparse.SUPPRESS)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {nearest(str(value), action.choices)}")

    def group(self, title: str | None = None) -> Flag:
        """Return a function that adds flags, under a separate title if one is given.

        A flag is named as in a usage line, with its value: `flag("--output FILE", "where to write")`. A name without
        dashes is positional. All else is given to `add_argument`.
        """
        group = self.add_argument_group(title) if title else self

        def flag(usage: str, help_text: str, **options: Any) -> None:
            names = usage.split()
            if len(names) > 1 and not names[-1].startswith("-"):
                options["metavar"] = names.pop()
            group.add_argument(*names, help=help_text, **options)

        return flag

    def add_env(self) -> None:
        self.flag("env_id ENV", "environment id, for example AgentR1/GSM8K-v0, or gsm8k for short")

    def add_env_kwargs(self, help_text: str = "arguments of the environment") -> None:
        self.flag("--env_kwargs JSON", help_text, type=json_object, default={})
        self.flag("--protocol NAME", "the environment's argument protocol: play as a paper or framework does")

    def add_model(self, title: str) -> Flag:
        """Add the group of flags for the model that plays, and return a function that adds more to it."""
        flag = self.group(title)
        known = ", ".join(f"{PREFIX}{name}" for name in sorted(trained_policies()))
        help_text = f"folder, hub id, smollm2 (agent-gym prepare smollm2), or {known}; at an endpoint the model's name"
        flag("--model --model_name_or_path PATH", help_text)
        help_text = "an OpenAI-compatible server, for example http://127.0.0.1:8000/v1; its key: $OPENAI_API_KEY"
        flag("--endpoint URL", help_text)
        help_text = "folder or hub id of the tokenizer, where the endpoint names none; for the expert that of a model"
        flag("--tokenizer PATH", help_text)
        add_engine(flag)
        return flag

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the command line over the yaml file that it names, if any."""
        arguments, actions = with_underscores(argv), {action.dest: action for action in self._actions}
        if "env_id" in actions:
            arguments = environment_first(arguments)
        path, arguments = take_option(arguments, "--config")
        if path is not None:
            arguments = self._from_yaml(path) + arguments
        known, unknown = self.parse_known_args(arguments)
        env_id = getattr(known, "env_id", None)
        if unknown:
            flags, value = [flag for action in self._actions for flag in action.option_strings], [*unknown, "..."][1]
            env = env_id[0] if isinstance(env_id, list) and env_id else env_id
            cure = meant(unknown[0], flags, env if isinstance(env, str) else None, value)
            raise ConfigError(f"{self.command}: unknown argument {unknown[0]!r}; {cure}")
        if protocol := getattr(known, "protocol", None):
            known.env_kwargs = {**known.env_kwargs, "protocol": protocol}
        if env_id is not None:
            known.env_id = [*map(resolve_env_id, env_id)] if isinstance(env_id, list) else resolve_env_id(env_id)
        model = getattr(known, "model", None)
        if "env_kwargs" in actions and (trained := arguments_of_training(model, getattr(known, "env_id", None))):
            known.env_kwargs = {**trained, **known.env_kwargs}
            played = json.dumps(known.env_kwargs)
            print(f"{model} plays with the arguments of its training: --env_kwargs '{played}'", file=sys.stderr)
        return known

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.command}: {message} (see {self.prog} --help)")

    def _from_yaml(self, path: str) -> list[str]:
        """Turn a yaml file into arguments, so that types and choices are checked as on the command line."""
        actions = {action.dest: action for action in self._actions if action.dest not in ("help", "config")}
        arguments: list[str] = []
        for key, value in read_yaml(path).items():
            if key not in actions:
                raise ConfigError(f"{path}: unknown key {key!r}; {nearest(key, actions)}")
            action = actions[key]
            if value is None or not action.option_strings and value == []:
                continue
            texts = [*map(as_text, value)] if isinstance(value, list) else [as_text(value)]
            if not action.option_strings:
                several = action.nargs in ("*", "+")
                action.default, action.required = texts if several else as_text(value), False
                action.nargs = "*" if several else "?"
            elif action.nargs == 0:
                arguments += [action.option_strings[0]] if one_of(f"{path}: {key}", value, (True, False)) else []
            else:
                arguments += [action.option_strings[0], *texts]
        return arguments


def add_engine(flag: Flag) -> None:
    """Add the flag of the sampling engine."""
    help_text = "what samples; auto takes vLLM where it is installed"
    flag("--engine", help_text, choices=("auto", "vllm", "transformers"), default="auto")


def run_kind(
    command: str, summary: str | None, kinds: Mapping[str, Callable[[Sequence[str]], int]], argv: Sequence[str]
) -> int:
    """Run a command whose first word tells which of several kinds is meant, each with its own flags."""
    if argv and argv[0] in kinds:
        return kinds[argv[0]](argv[1:])
    if argv and argv[0] in ("-h", "--help"):
        for number, run in enumerate(kinds.values()):
            print(end="\n" if number else "")
            with suppress(SystemExit):
                run(["--help"])
        return 0
    parser = CommandParser(command, summary)
    parser.flag("what", f"what to {command}; --help explains the flags of each", choices=list(kinds))
    parser.parse(argv)
    parser.error(f"name what comes first: {', '.join(kinds)}")  # a yaml file may name it, too, but not its flags


def with_underscores(argv: Iterable[str]) -> list[str]:
    """Write the flags with underscores: `--max-turns=3` becomes `--max_turns=3`."""
    arguments = []
    for word in argv:
        flag, equals, value = word.partition("=")
        dashed = flag.startswith("--") and len(flag) > 2
        arguments.append("--" + flag[2:].replace("-", "_") + equals + value if dashed else word)
    return arguments


def take_option(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Cut `flag value` or `flag=value` out of the arguments and return the value, None if it is not there."""
    arguments = list(argv)
    for i, word in enumerate(arguments):
        if word.startswith(flag + "="):
            return word.partition("=")[2], arguments[:i] + arguments[i + 1 :]
        if word == flag:
            if i + 1 == len(arguments):
                raise ConfigError(f"{flag} needs a value")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
    return None, arguments


def read_yaml(path: str) -> dict[str, Any]:
    """Read a yaml file that holds a mapping."""
    yaml = require("yaml", "train")
    try:
        text = read_text(Path(path))
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    try:
        content = yaml.safe_load(text)
        check_depth(content)
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid yaml: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or one_line(error)
        raise ConfigError(f"{path}{where}: not valid yaml: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold `key: value` lines; it holds a {type(content).__name__}")
    content = {str(key): value for key, value in content.items()}
    for key in _odd_keys(content):
        raise ConfigError(f"{path}: the key {key!r} is a {type(key).__name__}: write it in quotes, as a text")
    return _told(content, path)


def _odd_keys(value: Any) -> Iterator[Any]:
    """Find the keys, at any depth, that are no text, number or null: YAML has dates and bytes, and JSON has not."""
    if isinstance(value, dict):
        yield from (key for key in value if not isinstance(key, str | int | float | None))
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _odd_keys(one)


def _told(settings: dict[str, Any], path: str) -> dict[str, Any]:
    """Note the secrets of a settings file, and refuse one in which they were masked when it was written."""
    for name, value in settings.items():
        text = json.dumps(value, default=str)
        if f'"{MASK}"' in text or f'"{MASK}\\"' in text or f"={MASK}" in text:
            raise ConfigError(
                f"{path}: {name} holds {MASK}, the mark of a secret that was not written: put it in, or remove {name} "
                f"and give --{name} on the command line"
            )
    hide(settings)
    return settings


def read_settings(path: str) -> dict[str, Any]:
    """Read a toml file, by its ending, or a yaml file."""
    if not path.endswith(".toml"):
        return read_yaml(path)
    try:
        content = tomllib.loads(read_text(Path(path)))
        check_depth(content)
        return _told(content, path)
    except RecursionError as error:
        raise ConfigError(f"cannot read {path}: nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def json_object(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object from the command line, for example '{"data": "gsm8k.jsonl"}'."""
    try:
        value = parse_json(text) if isinstance(text, str) else dict(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'expected a JSON object such as \'{{"data": "path"}}\', got {text!r}')
    return value


def _at_least(least: int, text: str) -> int:
    """Read a number that has to be at least so much."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


positive = partial(_at_least, 1)
natural = partial(_at_least, 0)  # as gymnasium wants a seed to be


def seed_list(text: str) -> list[int]:
    """Read seeds, such as 0,1,2; `ConfigError` if they are not different whole numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise ConfigError(f"seeds is {text!r}; it must be different whole numbers with commas between them, as 0,1,2")
    return [*map(int, parts)]


def columns(text: str) -> dict[str, str]:
    """Read names of columns, such as question=Body+Question,answer=Answer, or a JSON object of them."""
    try:
        named = json.loads(text) if text.lstrip().startswith("{") else None
        if named is None:
            pairs = [part.partition("=") for part in text.split(",")]
            named = {role.strip(): column.strip() for role, _, column in pairs}
        from agent_gym.row_columns import checked_columns  # takes 20 ms, which other commands need not pay

        return checked_columns(named)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; write question=COLUMN,answer=COLUMN") from None


COLUMNS_HELP = "names of columns, where they are not found: question=Body+Question,answer=Answer; also choices, context"


def check_output(path: str | Path) -> None:
    """Make the folder of a file that will be written; raise `ConfigError` now if that cannot be done."""
    with writing(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        existed = Path(path).exists()
        with Path(path).open("a", encoding="utf-8"):
            pass
        if not existed:
            Path(path).unlink()  # an empty file of a run that failed later would look like a result


def as_text(value: Any) -> str:
    """Write a yaml value as it would be written on the command line."""
    return str(value) if isinstance(value, str | date) else json.dumps(value, default=str)


_LISTED = (60, 15)  # names in a line: if none is near, and if one is; the trainers' commands have hundreds


def nearest(word: str, known: Iterable[Any]) -> str:
    """Name the known words that are near, and all of them, unless they are too many for a line."""
    names = list(dict.fromkeys(name[:2] + name[2:].replace("-", "_") for name in map(str, known)))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    found = [f"did you mean {', '.join(near)}?"] if near else []
    if len(names) <= _LISTED[bool(near)]:
        found.append(f"known: {', '.join(names)}")
    return " ".join(found) or f"--help lists the {len(names)} known ones"


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def left_out(line: str) -> None:
    """Name on stderr the records of other files that are left out, with the reason."""
    print(harmless(f"agent-gym: left out: {line}"), file=sys.stderr, flush=True)


def announce(text: str) -> None:
    """Announce an action that takes some seconds, on a terminal only: in a log the line would be between results."""
    if sys.stderr.isatty():
        print(f"agent-gym: {text}", file=sys.stderr, flush=True)
