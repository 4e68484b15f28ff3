"""The API classes of BFCL in one episode: made for it alone, called by name and arguments, compared with the gold ones.

The original keeps objects in the globals of a module, runs calls by `eval` of a text, and lets all tasks share the
modules of the classes. Here each episode runs their (checked) source in modules of its own, so that nothing is shared:
a class finds its imports there, `mpmath` with a precision of its own. The verdict is that of `multi_turn_checker`.
"""

from __future__ import annotations

import builtins
import copy
import decimal
import functools
import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from agent_gym.envs.function_calls.data import MODULES, SOURCES, documents_of, gold_calls, read
from agent_gym.errors import require

_UNUSED = {"subprocess"}  # imported by the file system, and never used
# The largest digits, exponents and bases: the original computes 10 ** 10 ** 9 if it is asked to.
_LARGEST = {"precision": 1000, "decimal_places": 1000, "exponent": 1000, "base": 10**15}
_MOST_FILES = 20_000  # of a file system, counted along each path: copies of folders share what is in them
_MOST_TEXT = 4_000_000  # characters of one result


class ApiObjects:
    """The objects of an episode: the ones that the policy changes, and the ones that the gold calls change.

    Args:
        folder: of the prepared wheel.
        classes: the names of the API classes.
        config: the first state by class.
        long_context: whether files, messages and the like are filled up with distracting ones.

    Raises:
        ConfigError: if a file is not that of the pinned version, or mpmath is missing for `MathAPI`.
    """

    def __init__(self, folder: Path, classes: Sequence[str], config: Mapping[str, Any], long_context: bool) -> None:
        self._arguments = (folder, tuple(classes), config, long_context)
        self._done: list[tuple[Any, ...]] = []  # all that was asked of it, so that a copy can do it again
        self._modules: dict[str, Any] = {}
        self._class_of = {one["name"]: name for name in classes for one in documents_of(folder, name)}
        self._mine = self._objects()
        self._gold: dict[str, Any] | None = None  # made with the first verdict, as in the original
        self._results: list[str] = []
        self._overgrown = False

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "done": self._done}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["arguments"])  # type: ignore[misc]
        for method, *arguments in state["done"]:
            getattr(self, method)(*arguments)

    @property
    def functions(self) -> Mapping[str, str]:
        """The class of each function that can be called."""
        return self._class_of

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a function of the policy's objects; return its result as a text, and whether it raised."""
        self._done.append(("call", name, copy.deepcopy(dict(arguments))))
        if self._overgrown:
            text, failed = "Error during execution: the file system is full", True
        else:
            text, failed = _result(self._mine[self._class_of[name]], name, (), arguments)
        self._results.append(text)
        if name in ("cp", "mv"):
            self._overgrown = self._overgrown or not _is_small(self._mine["GorillaFileSystem"].root)
        return text, failed

    def is_right(self, calls: Sequence[str], made_calls: bool) -> bool:
        """Run the gold calls of a turn, and return whether the policy's turn is right.

        It is if it has made calls where the gold turn has, the states of all objects agree, and the results so far
        hold the results of the gold calls. A turn without gold calls is right whatever is done.
        """
        self._done.append(("is_right", calls, made_calls))
        gold = self._gold = self._gold or self._objects()
        results = []
        for text in calls:
            name, values, arguments = gold_calls(text)
            results.append(_result(gold[self._class_of[name]], name, values, arguments)[0])
        if not calls:
            return True
        if not made_calls or self._overgrown or Counter(results) - Counter(self._results):
            return False
        return all(_same_state(mine, gold[name]) for name, mine in self._mine.items())

    def arguments_of(self, text: str) -> tuple[str, dict[str, Any]]:
        """Read a gold call, and name its positional arguments."""
        name, values, named = gold_calls(text)
        method = getattr(self._mine[self._class_of[name]], name)
        return name, dict(inspect.signature(method).bind(*values, **named).arguments)

    def _objects(self) -> dict[str, Any]:
        folder, classes, config, long_context = self._arguments
        made = {}
        for name in classes:
            made[name] = one = getattr(self._module(folder, MODULES[name]), name)()
            if name != "MathAPI":  # it has no state
                one._load_scenario(copy.deepcopy(config.get(name, {})), long_context=long_context)
        return made

    def _module(self, folder: Path, name: str) -> Any:
        """Return a module of this episode."""
        if name not in self._modules:

            def load(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
                if name == "mpmath":
                    context = require("mpmath", "bfcl").MPContext()
                    return SimpleNamespace(mp=context, log=context.log)
                if name.startswith("bfcl_eval."):
                    return self._module(folder, name.rpartition(".")[2])
                return ModuleType(name) if name in _UNUSED else __import__(name, globals, locals, fromlist, level)

            made = self._modules[name] = ModuleType(name)
            vars(made)["__builtins__"] = {**vars(builtins), "__import__": load}
            exec(_code(folder, name), vars(made))
        return self._modules[name]


@functools.lru_cache(maxsize=16)
def _code(folder: Path, name: str) -> CodeType:
    return compile(read(folder, f"{SOURCES}/{name}.py"), f"{name}.py", "exec")


def _result(one: Any, name: str, values: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Call a method and write its result as the original does."""
    try:
        for key, most in _LARGEST.items():
            if isinstance(given := arguments.get(key), int | float) and abs(given) > most:
                raise ValueError(f"{key} may be {most} at most")
        with decimal.localcontext():  # a class sets the precision of its thread
            result = getattr(one, name)(*values, **copy.deepcopy(dict(arguments)))
        text = result if isinstance(result, str) else _json(result) if isinstance(result, dict) else str(result)
        if len(text) > _MOST_TEXT:
            raise ValueError("the result is too long")
        return text, False
    except Exception as error:
        return f"Error during execution: {error}", True


def _json(result: Any) -> str:
    try:
        return json.dumps(result)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _same_state(mine: Any, gold: Any) -> bool:
    """Whether two objects agree in all that is public."""
    try:
        return all(getattr(mine, name) == value for name, value in vars(gold).items() if not name.startswith("_"))
    except RecursionError:  # a folder in itself
        return False


def _is_small(root: Any) -> bool:
    """Whether a folder holds no more than `_MOST_FILES`, counted along each path."""
    left, count = [root], 0
    while left and count <= _MOST_FILES:
        count += 1
        left += getattr(left.pop(), "contents", {}).values()
    return count <= _MOST_FILES
