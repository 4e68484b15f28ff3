"""The environments of agent_gym, as environments.toml has them.

Entry points are strings, so that listing the environments imports none of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One registered id."""

    id: str
    entry_point: str  # "module:Class"
    summary: str  # one line for `agent-gym list` and the README
    tools: tuple[str, ...] = ()  # names of the tools the policy may call
    data: str = ""  # where its tasks come from, by default and otherwise
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # what makes this id different from its siblings
    extra: str | None = None  # the pip extra it needs
    needs: str | None = None  # arguments without which it cannot be made, in words


def _read() -> Iterator[EnvEntry]:
    rows = tomllib.loads(files(__package__).joinpath("environments.toml").read_text(encoding="utf-8"))
    for env_id, row in rows.items():
        sibling = rows.get(row.pop("variant_of", None), {})
        shared = {key: sibling[key] for key in ("entry_point", "data", "extra") if key in sibling}
        kwargs = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.pop("kwargs", {}).items()
        }
        yield EnvEntry(id=env_id, **{**shared, **row, "tools": tuple(row.get("tools", ()))}, kwargs=kwargs)


ENVS: tuple[EnvEntry, ...] = tuple(_read())
