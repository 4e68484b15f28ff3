"""The setting `columns`: which column of a data set is the question, the answer, the choices, or the context.

It ends the guessing where the names of columns tell nothing, or where two of them could be meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_gym.errors import ConfigError, quoted
from agent_gym.row_golds import Fault, object_of
from agent_gym.row_shown import text_of

_MOST, _LONGEST = 20, 40
ROLES = ("question", "answer", "choices", "context")
"""The keys of `columns`."""


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with the named columns under the names of `ROLES`; "Body+Question" joins the texts of both.

    Several columns of the answer are several right ones, of the choices one choice each. A column in an object is
    named by dots, as "extra_info.answer".

    Raises:
        Fault: if the column is missing.
    """
    found, taken = dict[str, Any](), set[str]()
    for role, source in columns.items():
        parts = [source] if source in row else source.split("+")
        values = [_at(row, part.strip()) for part in parts]
        taken |= {part.strip() for part in parts}
        if len(values) == 1:
            (found[role],) = values
        else:
            texts = [text_of(value, source) if role == "question" else value for value in values]
            found[role] = " ".join(texts) if role == "question" else [one for one in texts if one not in (None, "")]
    return {**{name: value for name, value in row.items() if name not in taken}, **found}


def has_columns(row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether `renamed` finds all columns; of a row that it has returned it finds none that it took."""
    try:
        renamed(row, columns)
    except Fault:
        return False
    return True


def _at(row: Mapping[str, Any], path: str) -> Any:
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        value = object_of(value)
        if not isinstance(value, Mapping) or part not in value:
            raise Fault(f"columns names {path!r}, and the row has: {names_of(row)}")
        value = value[part]
    return value


def checked_columns(columns: Any) -> dict[str, str]:
    """Return the setting `columns`: roles to the names of columns.

    Raises:
        ConfigError: for anything else.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(one, str) and one for one in columns.values()):
        raise ConfigError(f"columns is {quoted(columns)}; it must be a dict of {', '.join(ROLES)} to names of columns")
    others = {"options": "choices", "passage": "context"}
    named = {others.get(str(role), str(role)): column for role, column in columns.items()}
    if odd := [role for role in named if role not in ROLES]:
        raise ConfigError(f"columns names {odd[0]!r}; known: {', '.join(ROLES)}")
    return named


def names_of(row: Mapping[str, Any]) -> str:
    """Return the names of a row's columns for a message."""
    return listed(map(str, row))


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first ones, and the first characters of each."""
    some = [*names]
    more = f" and {len(some) - _MOST} more" if len(some) > _MOST else ""
    return ", ".join(" ".join(name[:_LONGEST].split()) for name in some[:_MOST]) + more
