"""One name for each argument of the command line, and the way from the names that people try to the names that exist.

The environment is the first word of a command, and `--env ID` and `--env_id ID` mean the same. `--model M` and
`--model_name_or_path M` are one flag, and `--protocol NAME` is the argument `protocol` of the environment.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import gymnasium

from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.registry import resolve_env_id

ENVIRONMENT = ("--env", "--env_id")
_MEANT = {
    "--lr": "--learning_rate",
    "--batch": "--per_device_train_batch_size",
    "--batch_size": "--per_device_train_batch_size",
    "--train_batch_size": "--per_device_train_batch_size",
    "--steps": "--max_steps",
    "--total_steps": "--max_steps",
    "--epochs": "--num_train_epochs",
    "--group_size": "--num_generations",
    "--rollout_n": "--num_generations",
    "--n": "--samples",
    "--k": "--samples",
    "--num_samples": "--samples",
    "--gpus": "--num_processes",
    "--num_gpus": "--num_processes",
    "--lora": "--use_peft",
    "--kl_coef": "--beta",
    "--out": "--output",
    "--save_dir": "--output_dir",
    "--output": "--output_dir",
    "--dataset": "--env_kwargs",
    "--num_episodes": "--episodes",
    "--num_tasks": "--episodes",
    "--limit": "--episodes",
    "--episodes": "--train_tasks",
    "--eval_episodes": "--eval_tasks",
    "--num_workers": "--workers",
}
"""Names in other tools, or in other commands here, by which people look for a flag."""


def environment_first(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command with the environment as the first word, wherever it was named.

    Raises:
        ConfigError: if it is named twice, by different ids, or the flag has no value.
    """
    words = list(arguments)
    first = None if not words or words[0].startswith("-") else words[0]
    for flag in ENVIRONMENT:
        while (found := _taken(words, flag)) is not None:
            if first not in (None, found):
                raise ConfigError(f"two environments, {first} and {flag} {found}: name one, as the first word")
            if first is None:
                words.insert(0, found)
            first = found
    return words


def _taken(words: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` from the words and return the value; None if the flag is not there."""
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return words.pop(place).partition("=")[2]
        if word == flag:
            if place + 1 == len(words):
                raise ConfigError(f"{flag} needs a value, an environment id such as AgentR1/GSM8K-v0")
            del words[place]
            return words.pop(place)
    return None


def meant(word: str, flags: Iterable[str], env_id: str | None = None, value: str = "...") -> str:
    """Return the cure for an unknown flag: an argument of the environment, another tool's name, or a near miss."""
    from agent_gym.cli.parser import nearest

    name, flags = word.partition("=")[0].replace("-", "_").replace("__", "--", 1), [*flags]
    name = name if name.startswith("--") else f"--{name.lstrip('_')}"
    known = {flag.replace("-", "_").replace("__", "--", 1) for flag in flags}
    if env_id and name[2:] in arguments_of(env_id) and "--env_kwargs" in known:
        return f"it is an argument of the environment: --env_kwargs '{json.dumps({name[2:]: _plain(value)})}'"
    if (other := _MEANT.get(name)) in known:
        return f"did you mean {other}?"
    return nearest(word, flags)


def _plain(value: str) -> Any:
    with suppress(ValueError):
        return json.loads(value)
    return value


def arguments_of(env_id: str) -> set[str]:
    """Return the names of the arguments that an environment's class takes; empty where that cannot be found out."""
    try:
        spec = gymnasium.registry[resolve_env_id(env_id).rpartition(":")[2]]
        point = spec.entry_point
        made = gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    except (AgentGymError, KeyError, ImportError, AttributeError):
        return set()
    bases = [base for base in getattr(made, "__mro__", ()) if "__init__" in vars(base) and base is not object]
    signatures = [inspect.signature(one) for one in ([vars(base)["__init__"] for base in bases] or [made])]
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = {one.name for signature in signatures for one in signature.parameters.values() if one.kind in kinds}
    return found - {"self"}
