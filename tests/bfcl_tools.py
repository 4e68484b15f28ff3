"""BFCL for tests: its prepared folder, its own checkers, and mutated runs and answers."""

from __future__ import annotations

import copy
import importlib
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent_gym import make
from agent_gym.data import cache_folder
from agent_gym.prepare import prepare

ENV_ID = "AgentR1/FunctionCalls-v0"
WHEEL = "AGENT_GYM_BFCL"
Call = tuple[str, dict[str, Any]]


def prepared_folder(made: Path) -> Path:
    """The folder of `agent-gym prepare bfcl`: from the wheel that an environment variable names, or of this machine."""
    if wheel := os.environ.get(WHEEL):
        return prepare("bfcl", source=[wheel], output=made).folder / "bfcl_eval"
    there = cache_folder() / "bfcl" / "bfcl_eval"
    if not there.is_dir():
        pytest.skip(f"BFCL is not here: run agent-gym prepare bfcl, or set {WHEEL} to its wheel")
    return there


class Original:
    """The checkers of bfcl_eval. Only its list of models is replaced: it imports the clients of all vendors."""

    def __init__(self, folder: Path) -> None:
        models = ModuleType("bfcl_eval.constants.model_config")
        vars(models)["MODEL_CONFIG_MAPPING"] = {"m": SimpleNamespace(underscore_to_dot=True)}
        sys.path.insert(0, str(folder.parent))
        try:
            sys.modules[models.__name__] = models
            place = "bfcl_eval.eval_checker"
            self.ast = importlib.import_module(f"{place}.ast_eval.ast_checker")
            self.turns = importlib.import_module(f"{place}.multi_turn_eval.multi_turn_checker")
            self.objects = importlib.import_module(f"{place}.multi_turn_eval.multi_turn_utils")
            self.steps = importlib.import_module("bfcl_eval.constants.default_prompts").MAXIMUM_STEP_LIMIT
            self.python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
        finally:
            sys.path.remove(str(folder.parent))

    def right_run(self, task: Mapping[str, Any], run: Sequence[Sequence[Sequence[Call]]]) -> bool:
        """Its verdict on a run, turns of steps of calls. Its inference breaks off in the 21st step of a turn."""
        if any(len(turn) > self.steps for turn in run):
            return False
        for name in [name for name in vars(self.objects) if name.endswith("_instance")]:
            del vars(self.objects)[name]
        texts = [[[written(*call) for call in step] for step in turn] for turn in run]
        entry = {"initial_config": task["config"], "involved_classes": task["classes"], "id": task["id"]}
        return bool(self.turns.multi_turn_checker(texts, task["gold"], entry, "", "m")["valid"])

    def gold_results(self, task: Mapping[str, Any]) -> list[str]:
        """Its results of the gold calls."""
        long_context = "long_context" in task["category"]
        given = (task["config"], task["classes"], "gold", task["id"], long_context, True)
        results = [self.objects.execute_multi_turn_func_call(calls, *given)[0] for calls in task["gold"]]
        return [text for turn in results for text in turn]

    def right_answer(self, task: Mapping[str, Any], calls: Sequence[Call]) -> bool:
        output = [{name: dict(arguments)} for name, arguments in calls]
        try:
            given = (copy.deepcopy(task["functions"]), output, task["gold"], self.python, task["category"], "m")
            return bool(self.ast.ast_checker(*given)["valid"])
        except (AttributeError, TypeError, KeyError, OverflowError):
            return False  # it breaks off at values of an unusual shape


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the original writes and evaluates it."""
    return f"{name}({','.join(f'{key}={value!r}' for key, value in arguments.items())})"


def play_run(env: Any, index: int, run: Sequence[Sequence[Sequence[Call]]], split: str = "test") -> dict[str, Any]:
    """Play a run and return the last info."""
    env.reset(options={"split": split, "index": index})
    for turn in run:
        for step in turn:
            *_, terminated, _, info = env.step("\n".join(env.parser.render(*call) for call in step))
            if terminated:
                return dict(info)
        *_, info = env.step("That is all.")
    return dict(info)


def gold_run(env: Any) -> list[list[list[Call]]]:
    """The gold calls of the task that was reset, a step for each turn that has some."""
    turns = [[env._api.arguments_of(text) for text in turn] for turn in env._task["gold"]]
    return [[turn] if turn else [] for turn in turns]


def mutated_run(rng: random.Random, run: Any, others: Sequence[Call]) -> list[list[list[Call]]]:
    """A run with one to three changes to its calls, steps or turns."""
    run = copy.deepcopy(run)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        turn = rng.randrange(len(run))
        if not run[turn] or not run[turn][0]:
            run[turn] = [[copy.deepcopy(rng.choice(others))]]
            continue
        step = rng.choice(run[turn])
        at = rng.randrange(len(step))
        match rng.randrange(10):
            case 0:
                del step[at]
            case 1:
                step.insert(at, copy.deepcopy(step[at]))
            case 2:
                rng.shuffle(step)
            case 3:
                step.insert(at, copy.deepcopy(rng.choice(others)))
            case 4:
                step[at] = copy.deepcopy(rng.choice(others))
            case 5:
                run[turn] = [[call] for call in step]
            case 6:
                other = run[rng.randrange(len(run))]
                (other[0] if other else other.append([]) or other[0]).append(step.pop(at))
            case 7:
                run[turn] = []
            case _:
                step[at] = mutated_call(rng, step[at])
        run[turn] = [step for step in run[turn] if step]
    return [[step for step in turn if step] for turn in run]


def mutated_call(rng: random.Random, call: Call) -> Call:
    name, arguments = copy.deepcopy(call)
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice([name + "x", "print", name.upper()]), arguments
    if kind == 1 or not arguments:
        return name, {**arguments, rng.choice(["extra", "a", "name"]): rng.choice([1, "x", None])}
    key = rng.choice(sorted(arguments))
    if kind == 2:
        del arguments[key]
        return name, arguments
    return name, {**arguments, key: mutated_value(rng, arguments[key])}


def mutated_value(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        changed = {**value, key: mutated_value(rng, value[key])}
        return rng.choice([changed, {**value, "more": 1}, {one: value[one] for one in value if one != key}])
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        changed = [*value[:at], mutated_value(rng, value[at]), *value[at + 1 :]]
        return rng.choice([changed, value[1:], value[::-1], [*value, value[0]]])
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value)])
    if isinstance(value, int | float):
        return rng.choice([value + 1, -value, float(value), str(value), value * 1.0001, int(value), None])
    if isinstance(value, str):
        changed = [value.upper(), f" {value}.", value + "s", value[1:], value.replace("-", "/"), "", value * 2, [value]]
        return rng.choice([*changed, value.replace("'", '"'), value.title(), 3])
    return rng.choice([None, [], {}, 0, "", [[1]], {"a": [1]}])


def mutated_calls(rng: random.Random, calls: Sequence[Call]) -> list[Call]:
    """Calls of one turn with up to two changes."""
    changed = copy.deepcopy([*calls])
    for _ in range(rng.choice([0, 1, 1, 2])):
        if changed:
            at, kind = rng.randrange(len(changed)), rng.randrange(10)
            if kind == 0:
                changed.append(copy.deepcopy(changed[at]))
            elif kind == 1:
                del changed[at]
            elif kind == 2:
                rng.shuffle(changed)
            else:
                changed[at] = mutated_call(rng, changed[at])
    return changed


def tasks_of(folder: Path, category: str) -> Any:
    return make(ENV_ID, category=category, official=True, data=str(folder))
