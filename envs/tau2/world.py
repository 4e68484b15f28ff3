"""The databases of tau2-bench in one episode: changed by the original's tools, and compared with the gold calls.

The (checked) source of the tools runs unchanged, but for its log. The original parses its database for each world, 2.8
MB in retail. Here a process parses it once, and an episode copies a record when a tool first asks for it by its key.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from agent_gym.envs.tau2.data import read_data
from agent_gym.envs.tau2.modules import Modules

Setup = Sequence[tuple[str, str, Mapping[str, Any]]]
"""Calls before the conversation: whose tools, "user" or "assistant", the method, its arguments."""
_CLASSES = {"retail": ("RetailDB", "RetailTools"), "airline": ("FlightDB", "AirlineTools")}
_MOST_FORMULA = 1000  # characters of `calculate`, which the original evaluates whatever it costs
_local = threading.local()


class DomainWorld:
    """The databases and tools of an episode, after its setup.

    Raises:
        ConfigError: if a file in the folder of the prepared wheel is not that of the pinned version.
    """

    def __init__(self, folder: Path, domain: str, setup: Setup = ()) -> None:
        self._arguments = (folder, domain, setup)
        self._done: list[tuple[str, str, Mapping[str, Any], bool]] = []  # the calls, so that a copy can do them again
        self._made = 0  # ids
        self._original = original = load_domain(folder, domain)
        self.tools: Any = original.tools(_copied(original.base))
        self.user_tools: Any = original.user_tools and original.user_tools(_copied(original.user_base))
        if self.user_tools:  # the class has one for all episodes, and a setup may change it
            self.user_tools.default_vpn_details = copy.deepcopy(self.user_tools.default_vpn_details)
        _local.world = self
        for by, method, arguments in setup:
            getattr(self._kit(by), method)(**arguments)
            self._sync()
        self._sync()

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "done": self._done}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["arguments"])  # type: ignore[misc]
        for name, by, arguments, synced in state["done"]:
            self.call(name, arguments, by, synced)

    def call(
        self, name: str, arguments: Mapping[str, Any], by: str = "assistant", synced: bool = True
    ) -> tuple[str, bool]:
        """Call a tool with any arguments; return its result as the original writes it, and whether it raised.

        It is a tool of the assistant or the user. Unless `synced`, the phone of the user does not learn of it: the
        original leaves that out after gold calls.
        """
        self._done.append((name, by, arguments, synced))
        _local.world = self
        try:
            given = copy.deepcopy(dict(arguments))
            formula = given.get("expression")
            if name == "calculate" and isinstance(formula, str) and (len(formula) > _MOST_FORMULA or "**" in formula):
                raise ValueError("Invalid characters in expression")
            result = self._kit(by).use_tool(name, **given)
            if synced:
                self._sync()
            return result if isinstance(result, str) else json.dumps(_plain(result), default=str), False
        except RecursionError:
            return "Error: the arguments are nested too deeply", True
        except Exception as error:
            return f"Error: {error}", True

    def holds(self, by: str, method: str, arguments: Mapping[str, Any], value: bool) -> bool:
        """Whether an assertion of the original holds."""
        result = getattr(self._kit(by), method)(**arguments)
        self._sync()
        return bool(result == value)

    @property
    def calls(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The calls so far, of the policy and of the customer: names and arguments."""
        return [(name, arguments) for name, _, arguments, _ in self._done]

    def changes(self) -> list[Any]:
        """Return the difference to the first state: the same in two worlds where the original's hashes are the same."""
        return [_changed(kit.db) for kit in (self.tools, self.user_tools) if kit]

    def next_id(self) -> str:
        """Return digits of a new id: random in the original, they depend on the episode alone here."""
        self._made += 1
        return hashlib.sha256(str(self._made).encode()).hexdigest()[:32]

    def _kit(self, by: str) -> Any:
        return self.user_tools if by == "user" else self.tools

    def _sync(self) -> None:
        """Let the phone learn of its line, and the service of a paid bill, by the original's rules."""
        if self.user_tools:
            self._original.sync(SimpleNamespace(tools=self.tools, user_tools=self.user_tools))


def _plain(result: Any) -> Any:
    if hasattr(result, "model_dump"):
        return result.model_dump(warnings=False)
    if isinstance(result, list | tuple):
        return [_plain(one) for one in result]
    if isinstance(result, dict):
        return {key: _plain(one) for key, one in result.items()}
    return str(result) if isinstance(result, int | float) else result


class CopiedRecords(dict[str, Any]):
    """The records of a table: those of all episodes, and copies of the ones that were asked for by key.

    The original reads only where it goes over all of them.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key in self.shared and key not in self.own:
            self[key] = copy.deepcopy(self.shared[key])
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.own.add(key)
        super().__setitem__(key, value)


def _copied(base: Any) -> Any:
    """Copy a database: its tables by and by, or the whole where they are lists (10 kB)."""
    tables = vars(base)
    if not all(isinstance(table, dict) for table in tables.values()):
        return copy.deepcopy(base)
    return type(base).model_construct(**{name: CopiedRecords(table) for name, table in tables.items()})


def _changed(database: Any) -> Any:
    tables = vars(database)
    if not all(isinstance(table, CopiedRecords) for table in tables.values()):
        return _text(database)
    texts = {
        (name, key): (_text(table[key]), _text(table.shared.get(key)))
        for name, table in tables.items()
        for key in table.own
    }
    return {place: mine for place, (mine, shared) in texts.items() if mine != shared}


def _text(record: Any) -> str:
    try:
        return json.dumps(record and record.model_dump(warnings=False), sort_keys=True, default=str)
    except (ValueError, RecursionError) as error:  # a number too long to be written
        return f"{type(error).__name__}: {error}"


class Domain(NamedTuple):
    """A domain in this process: the original's classes, its first data, and the schemas of the tools."""

    tools: Any
    base: Any
    schemas: Sequence[dict[str, Any]]
    user_tools: Any = None
    user_base: Any = None
    user_schemas: Sequence[dict[str, Any]] = ()
    sync: Any = None


@functools.lru_cache(maxsize=8)
def load_domain(folder: Path, domain: str) -> Domain:
    """Read the classes and the data of a domain, once in a process."""
    modules = Modules(folder, lambda: str(_local.world.next_id()))
    place = f"tau2.domains.{domain}"
    tools, data = modules.get(f"{place}.tools"), modules.get(f"{place}.data_model")
    if domain != "telecom":
        database, kit = _CLASSES[domain]
        base = getattr(data, database)(**read_data(folder, domain, "db.json"))
        return Domain(getattr(tools, kit), base, modules.schemas(getattr(tools, kit)))
    phone, phone_data = modules.get(f"{place}.user_tools"), modules.get(f"{place}.user_data_model")
    return Domain(
        tools.TelecomTools,
        data.TelecomDB(**read_data(folder, domain, "db.toml")),
        modules.schemas(tools.TelecomTools),
        phone.TelecomUserTools,
        phone_data.TelecomUserDB(**read_data(folder, domain, "user_db.toml")),
        modules.schemas(phone.TelecomUserTools),
        modules.get(f"{place}.environment").TelecomEnvironment.sync_tools,
    )
