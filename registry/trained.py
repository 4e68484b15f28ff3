"""Policies that come with the package: `--model trained:NAME` is one that the speedrun's preset of this name trained.

Each is a folder in policies/, made by `benchmarks/pack_policy.py`. `trained.json` in it holds the environment and its
arguments, the seed, the command that trains it anew, and its success on held-out tasks.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError

FOLDER = Path(__file__).parent / "policies"
PREFIX = "trained:"


@cache
def trained_policies() -> dict[str, dict[str, Any]]:
    """Return name and facts of each policy."""
    return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*/trained.json")}


def trained_folder(name: str) -> str:
    """Return the folder of a policy.

    Raises:
        ConfigError: if there is none of that name.
    """
    if name not in (known := trained_policies()):
        raise ConfigError(f"{PREFIX}{name} does not come with the package; allowed: {', '.join(sorted(known))}")
    return str(FOLDER / name)


def arguments_of_training(model: Any, env_ids: Any) -> dict[str, Any]:
    """Return the arguments that the environment had when a policy of the package was trained, if it is the same one."""
    name = str(model or "").removeprefix(PREFIX)
    if not str(model or "").startswith(PREFIX) or Path(str(model)).is_dir():
        return {}
    facts = trained_policies().get(name)
    named = env_ids if isinstance(env_ids, list) else [env_ids]
    return dict(facts["env_kwargs"]) if facts and named == [facts["env_id"]] else {}
