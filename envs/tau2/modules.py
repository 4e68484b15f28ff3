"""The original's modules of tools and data, run without the rest of the package and its imports."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agent_gym.envs.tau2.data import known, read


class Modules:
    """The modules of a domain; `new_id` makes the digits of an id that the original draws."""

    def __init__(self, folder: Path, new_id: Callable[[], str]) -> None:
        self._folder = folder
        self._loaded: dict[str, Any] = {
            "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=new_id())),
            **{name: _Absent(name) for name in ("loguru", "addict", "utils")},
        }

    def get(self, name: str) -> Any:
        """Return a module of the package by its full name: a stand-in if its file is not one that is read."""
        if name not in self._loaded:
            file = f"{name.removeprefix('tau2.').replace('.', '/')}.py"
            if not known(file):
                return _Absent(name)
            self._loaded[name] = made = ModuleType(name)
            vars(made)["__builtins__"] = {**vars(builtins), "__import__": self._import}
            exec(_code(self._folder, file), vars(made))
        return self._loaded[name]

    def schemas(self, kit: Any) -> list[dict[str, Any]]:
        """Return the OpenAI-style schemas of the tools of a class, as the original makes them, without references."""
        return [_inlined(one.openai_schema, {}) for one in kit(None).get_tools().values()]

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.startswith("tau2.") or name in self._loaded:
            return self.get(name)
        return __import__(name, globals, locals, fromlist, level)


class _Absent(ModuleType):
    """A stand-in for a module whose names are imported and never used, or only for the log."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Path(name) if name.isupper() else object


class _WithoutLog(ast.NodeTransformer):
    """Takes lines of the log out of functions: they write whole records as text."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if ast.unparse(node).startswith("logger.") else node


@functools.lru_cache(maxsize=32)
def _code(folder: Path, file: str) -> Any:
    return compile(_WithoutLog().visit(ast.parse(read(folder, file))), file, "exec", dont_inherit=True)


def _inlined(node: Any, definitions: dict[str, Any], names: bool = False) -> Any:
    """Put definitions in the place of references to them, and leave out the titles that pydantic makes up."""
    if isinstance(node, list):
        return [_inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    definitions = node.get("$defs", definitions)
    made = {
        key: _inlined(value, definitions, key == "properties")
        for key, value in node.items()
        if names or key not in ("$defs", "$ref", "title")
    }
    return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions) | made if "$ref" in node else made
