"""The lines that a user needs next: how to make the environment with what was prepared, and how to try it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from agent_gym.prepare.inputs import NO_SPLIT
from agent_gym.prepare.run import Prepared

_EVALUATED = ("test", "validation", "valid_unseen", "valid_seen", "train")  # the first of them that there is
_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def env_kwargs(prepared: Prepared) -> dict[str, Any]:
    """Return the arguments of the environment: paths, or lists of them where there are several of a kind."""
    values: dict[str, list[str]] = {}
    for piece in prepared.pieces.values():
        name, path = piece["argument"]
        value = str(prepared.folder / path)
        if value not in values.setdefault(name, []):
            values[name].append(value)
    kwargs: dict[str, Any] = {name: paths[0] if len(paths) == 1 else paths for name, paths in values.items()}
    splits = _splits(prepared)
    if splits and "train" not in splits:  # else an environment begins with train
        kwargs["split"] = _evaluated(splits)
    return kwargs


def python_lines(prepared: Prepared) -> str:
    """Return the lines of Python that make the environment."""
    arguments = [f", {name}={json.dumps(value)}" for name, value in env_kwargs(prepared).items()]
    return f'import agent_gym, gymnasium as gym\n\nenv = gym.make("{prepared.recipe.env_id}"{"".join(arguments)})'


def shell_lines(prepared: Prepared) -> str:
    """Return the commands that play the first task in the terminal, and that measure a model."""
    kwargs = shlex.quote(json.dumps(env_kwargs(prepared), ensure_ascii=False))
    where = f"--split {_evaluated(_splits(prepared))} --env_kwargs {kwargs}"
    env_id = prepared.recipe.env_id
    return f"agent-gym play {env_id} --index 0 {where}\nagent-gym eval {env_id} --model {_MODEL} {where}"


def _splits(prepared: Prepared) -> set[str]:
    """Return the splits that there are, by the names of the files, or of the folders of what was unpacked."""
    tables = {Path(path).stem for path in prepared.pieces if path.endswith(".parquet")}
    archive = prepared.recipe.archive
    unpacked = prepared.pieces[archive.folder]["files"] if archive and archive.folder in prepared.pieces else ()
    splits = tables | {Path(name).parts[1] for name in unpacked}
    return {"train" if split == NO_SPLIT else split for split in splits}


def _evaluated(splits: set[str]) -> str:
    return next((split for split in _EVALUATED if split in splits), _EVALUATED[0])
