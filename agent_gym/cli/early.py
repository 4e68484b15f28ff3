"""The mistakes of a training command that can be found before torch and TRL are imported, which takes seconds.

It reads the command line and its yaml file loosely: values of settings that it knows are checked, all others are left
to the real parser (train.py). Names and types of TRL's flags are the ones of its sources, read as text (trl_fields.py).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_args, get_type_hints

from agent_gym.cli.flags import TRAINING, mapping, preset_file, split_command
from agent_gym.cli.names import meant
from agent_gym.cli.parser import nearest, read_yaml
from agent_gym.cli.trl_fields import faults, known_fields, types_of
from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError, writing
from agent_gym.models import check_model
from agent_gym.registry import resolve_env_id
from agent_gym.trainers.run_lock import refuse_running
from agent_gym.trainers.settings import AgentSettings, CriticSettings, check_removed

_TRACKERS = ("tensorboard", "trackio", "wandb")


@dataclasses.dataclass
class _Own(CriticSettings, AgentSettings):
    """All settings of ours."""


def check_early(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the command line and its yaml file, by name, as they are written there.

    Raises:
        ConfigError: for an unknown flag or key, an unknown environment, a folder that is not a model or cannot be
            written, a tracker that is not installed, or a value of a setting that no run can have.
    """
    given = read_command(command, argv)
    if given.get("accelerate_config") is not None:
        preset_file(str(given["accelerate_config"]))
    _check_environment(given)
    if not given.get("tiny"):
        check_model(str(given.get("model_name_or_path") or ""))
    own = [one for kind in (TRAINING[command].arguments, _Own) for one in dataclasses.fields(kind)]
    for fault in faults(given, {**known_fields(), **{one.name: types_of(str(one.type)) for one in own}}):
        raise ConfigError(fault)
    check_numbers(given)
    if given.get("output_dir"):
        check_writable(str(given["output_dir"]))
        if not given.keys() & {"num_machines", "accelerate_config", "config_file"}:  # another machine of the same run
            refuse_running(str(given["output_dir"]))
    reported = given.get("report_to", [])
    for name in reported if isinstance(reported, list) else re.split(r"[\s,]+", str(reported)):
        if name in _TRACKERS and find_spec(name) is None:
            cure = f"{install_command('trackers')}, or --report_to none"
            raise ConfigError(f"report_to {name}: the package {name!r} is not installed; {cure}")
    return given


def read_command(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the command line and its yaml file, by name, as written; an unknown flag is an error."""
    preset, path, arguments = split_command(argv)
    content = {} if path is None else read_yaml(path)
    words = dict(_words(arguments))
    check_removed((*content, *words))
    known = _known_flags(command)
    for name in words if known else ():
        if name not in known:
            flags = sorted(f"--{one}" for one in known if not one.startswith("no_"))
            env, value = str({**content, **words}.get("env_id", "")).partition("=")[0], str(words[name])
            raise ConfigError(f"{command}: unknown argument {'--' + name!r}; {meant('--' + name, flags, env, value)}")
    for key in content if known else ():
        if key not in known and key != "env":  # which has an explanation (train.py)
            names = sorted(one for one in known if not one.startswith("no_"))
            raise ConfigError(f"{path}: unknown key {key!r}; {nearest(key, names)}")
    return {**content, **words, **({} if preset is None else {"accelerate_config": preset})}


def _words(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each flag; True where none follows."""
    for place, word in enumerate(arguments):
        if word.startswith("--") and word[2:3].isalpha():
            name, equals, value = word[2:].partition("=")
            behind = arguments[place + 1 : place + 2]
            # A negative number is a value.
            follows = behind and not re.match("--?[a-zA-Z]", behind[0])
            yield name, value if equals else behind[0] if follows else True


def _known_flags(command: str) -> set[str]:
    """Return every name that may be a flag, and some more; none if the sources are not where they were."""
    foreign = known_fields()
    if not foreign:
        return set()
    found = {one.name for kind in (TRAINING[command].arguments, _Own) for one in dataclasses.fields(kind)}
    found |= {"help", "help_all", "config", "accelerate_config", "dry_run", "print_config", "seeds", *foreign}
    return found | {f"no_{name}" for name in found}  # TRL's parser adds `no_` to switches that are on


def _check_environment(given: Mapping[str, Any]) -> None:
    env_id = given.get("env_id")
    if not env_id and not any(given.get(name) for name in ("agent", "agent_command", "tasks")):
        known = "agent-gym list shows all"
        raise ConfigError(f"which environment? give its id first, for example AgentR1/GSM8K-v0; {known}")
    for part in env_id.split(",") if isinstance(env_id, str) else ():
        if name := part.partition("=")[0].strip():
            resolve_env_id(name)
    if "env_kwargs" in given:
        mapping("env_kwargs", given["env_kwargs"])


def check_numbers(given: Mapping[str, Any]) -> None:
    """Check our settings as the trainer will, and the learning rate, whose sign no one else looks at so early."""
    hints, values = get_type_hints(_Own), dict[str, Any]()
    for name in given.keys() & hints.keys():
        kinds = (hints[name], *get_args(hints[name]))
        if kind := next((kind for kind in (int, float) if kind in kinds), None):
            with suppress(TypeError, ValueError):  # a value that cannot be converted is left to the real parser
                values[name] = kind(given[name])
        elif bool not in kinds:
            values[name] = given[name]
    _Own(**values).check_settings()
    for name in ("learning_rate", "weight_decay", "warmup_ratio", "warmup_steps", "max_grad_norm"):
        number = 0.0
        with suppress(TypeError, ValueError):
            number = float(given.get(name, 0.0))
        if not 0.0 <= number < math.inf:
            raise ConfigError(f"{name} is {given[name]}; it must be 0 or more")


def check_writable(folder: str) -> None:
    """Raise `ConfigError` if nothing can be written into a folder, or it cannot be made; it is not made."""
    path = Path(folder).expanduser().absolute()
    place = next(one for one in (path, *path.parents) if one.exists())
    with writing(folder, "name another folder with --output_dir"), TemporaryFile(dir=place):
        pass
