"""The tasks of BFCL v4, read from the prepared wheel `bfcl-eval`; each file has to be the one of the pinned version.

The repository holds checksums and no data. `files.json` names each file that is read, Python files of the API classes
included: no byte is run that was not looked at for this version.
"""

from __future__ import annotations

import ast
import functools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from agent_gym.envs.wheel_files import LinkedGroups, place_of, prepared_folder, read_checked
from agent_gym.errors import ConfigError, quoted
from agent_gym.row_reader import Row, Splits

VERSION = "2026.3.23"
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
SINGLE_TURN = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "multi_turn": MULTI_TURN,
    "single_turn": SINGLE_TURN,
    "live": LIVE,
    "all": MULTI_TURN + SINGLE_TURN + LIVE,
}
MODULES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The API classes and their modules."""
SOURCES = "eval_checker/multi_turn_eval/func_source_code"
_CURE = "run: agent-gym prepare bfcl"
# The data's names of types by those of JSON Schema (the type mappings of its README; "any" is a text there, too).
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
# No answer is right by the original's rules: a gold list is empty, or a gold parameter is none of the function's.
UNSOLVABLE = frozenset(
    {"live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0"}
)
_LARGE = 400  # characters of the state of one class from which tasks that share it are one scenario
_CROWD = 100  # tasks of a scenario that has to be in train, since it would be most of another split
_SHARES = {"test": 0.3, "validation": 0.4}  # upper ends, of the hash of a scenario from 0 to 1


def categories_of(category: str | Sequence[str]) -> tuple[str, ...]:
    """Return the categories that a name, the name of a group, or a list of such names means.

    Raises:
        ConfigError: for another name, or none.
    """
    names = [category] if isinstance(category, str) else category
    known = (*GROUPS, *GROUPS["all"])
    if not isinstance(names, list | tuple) or not names or not {*names} <= {*known}:
        raise ConfigError(f"category is {quoted(category)}; it must be one of {', '.join(known)}, or a list of them")
    return tuple(dict.fromkeys(one for name in names for one in GROUPS.get(name, (name,))))


def folder_of(data: str | Path | None) -> Path:
    """Return the folder of the data, by default that of `agent-gym prepare bfcl`; `ConfigError` if it is not there."""
    return prepared_folder(data, "bfcl/bfcl_eval", "data", "BFCL", _CURE)


@functools.cache
def _checksums() -> dict[str, str]:
    found: dict[str, str] = json.loads(files(__package__).joinpath("files.json").read_text(encoding="utf-8"))
    return found


def read(folder: Path, name: str) -> str:
    """Read a file of the pinned version; `ConfigError` if it is missing, or another one."""
    return read_checked(folder / name, _checksums()[name], f"bfcl-eval {VERSION}", _CURE)


def _lines(folder: Path, name: str) -> list[Row]:
    return [json.loads(line) for line in read(folder, name).splitlines()]


@functools.lru_cache(maxsize=32)
def load(folder: Path, categories: tuple[str, ...], official: bool) -> Splits:
    """Return the tasks by split; with `official` all of them, the unsolvable too, in the original order as `test`."""
    rows = [row for category in categories for row in _rows(folder, category)]
    if official:
        return {"test": rows}
    sides = _sides(folder, multi_turn=True) | _sides(folder, multi_turn=False)
    found: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for row in sorted(rows, key=lambda row: place_of(row["id"])):  # so that a beginning has tasks of each category
        if row["id"] not in UNSOLVABLE:
            found[sides[row["id"]]].append(row)
    return {split: some for split, some in found.items() if some}


@functools.lru_cache(maxsize=16)
def _rows(folder: Path, category: str) -> list[Row]:
    """Read a category: `id`, `category`, `turns` (of messages), `functions` and `gold` of each task.

    Tasks of several turns have `config`, `classes`, and `added` (names of functions by the turn that brings them).
    """
    rows = _lines(folder, f"data/BFCL_v4_{category}.json")
    without = "irrelevance" in category
    answers = [{}] * len(rows) if without else _lines(folder, f"data/possible_answer/BFCL_v4_{category}.json")
    found = []
    for row, answer in zip(rows, answers, strict=True):
        one = {"id": row["id"], "category": category, "turns": row["question"], "gold": answer.get("ground_truth", [])}
        if category in MULTI_TURN:
            documents = [each for name in row["involved_classes"] for each in documents_of(folder, name)]
            one |= {"functions": documents, "config": row["initial_config"], "classes": row["involved_classes"]}
            one |= {"added": row.get("missed_function", {})}
        else:
            one["functions"] = row["function"]
        found.append(one)
    return found


@functools.lru_cache(maxsize=16)
def documents_of(folder: Path, class_name: str) -> list[Row]:
    """Read the documents of the functions of an API class."""
    return _lines(folder, f"data/multi_turn_func_doc/{MODULES[class_name]}.json")


def gold_calls(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Read a call of the data, as "cd(folder='a')": name, positional and named arguments. Nothing is evaluated."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), text
    named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return call.func.id, [ast.literal_eval(one) for one in call.args], named


# Schemas.


def shown_name(name: str) -> str:
    """Return the name that a policy reads and writes: APIs of models take no dot, so that BFCL shows none either."""
    return name.replace(".", "_")


def schema_of(document: Row) -> dict[str, Any]:
    """Return the OpenAI-style schema of a documented function; what it returns is left out."""
    parameters = _json_schema(document["parameters"])
    function = {"name": shown_name(document["name"]), "description": document["description"], "parameters": parameters}
    return {"type": "function", "function": function}


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(schema)
    if isinstance(made.get("type"), str):
        made["type"] = _TYPES.get(made["type"], made["type"])
    if isinstance(made.get("properties"), dict):
        made["properties"] = {name: _json_schema(one) for name, one in made["properties"].items()}
    if isinstance(made.get("items"), dict):
        made["items"] = _json_schema(made["items"])
    return made


# Splits. BFCL has none. Tasks that share their scenario are on one side.


@functools.lru_cache(maxsize=4)
def _sides(folder: Path, multi_turn: bool) -> dict[str, str]:
    """Return the split of each task by its id."""
    groups = LinkedGroups()
    for category in MULTI_TURN if multi_turn else SINGLE_TURN + LIVE:
        for row in _rows(folder, category):
            for key in _scenario(row):
                groups.join(row["id"], key)
    members = defaultdict(list)
    for category in MULTI_TURN if multi_turn else SINGLE_TURN + LIVE:
        for row in _rows(folder, category):
            members[groups.head(row["id"])].append(row["id"])
    return {one: _side(ids) for ids in members.values() for one in ids}


def _scenario(row: Row) -> Iterator[str]:
    """Yield the parts of a task by which it is tied to others."""
    questions = [message["content"] for turn in row["turns"] for message in turn if message["role"] == "user"]
    yield from (f"question {one}" for one in questions)
    if "config" in row:  # base, miss_func, miss_param and long_context of a number are variants of one task
        yield f"number {row['id'].rpartition('_')[2]}"
        states = [json.dumps(one, sort_keys=True) for one in (row["config"], *row["config"].values())]
        yield from (f"state {one}" for one in states if len(one) > _LARGE)
    else:
        yield from (f"function {one['name']}: {one['description']}" for one in row["functions"])


def _side(ids: Sequence[str]) -> str:
    sides = (split for split, end in _SHARES.items() if place_of(min(ids)) < end)
    return "train" if len(ids) > _CROWD else next(sides, "train")
