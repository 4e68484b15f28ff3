"""Dataclasses as their source files write them, built without running these files.

Importing the settings of TRL and transformers imports torch and takes seconds, and `--help` needs none of it: the
fields of a dataclass, their types, defaults and metadata stand in its source. This module parses the source, follows
imports and base classes from file to file, and builds a dataclass that has the same fields in the same order and no
methods. Nothing is copied into this repository, so that what it says is true of the installed version.

Only expressions are evaluated: annotations, defaults, and the constants that they name. Anything else, such as a
default that a function computes, is `Unreadable`, for a list of settings that lacks some is worse than a slow one.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """A source that this module does not understand."""


def read_dataclass(module: str, name: str) -> type:
    """Build a dataclass with the fields of `module.name` and of its base classes.

    Args:
        module: dotted name of the module that defines or imports it.
        name: of the class.

    Raises:
        Unreadable: if a part of it cannot be read.
    """
    return _class(*_definition(module, name))


def source_file(module: str) -> Path:
    """Return the file of a module without importing its package.

    Raises:
        Unreadable: if there is none.
    """
    top, *rest = module.split(".")
    spec = find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *rest)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    raise Unreadable(f"no source of {module}")


@cache
def _bindings(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that bind each of its names, those behind conditions included."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in _flat(ast.parse(source_file(module).read_text(encoding="utf-8")).body):
        for name in _bound(statement):
            found.setdefault(name, []).append(statement)
    return found


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.If | ast.Try):
            handlers = [inner for handler in getattr(statement, "handlers", ()) for inner in handler.body]
            yield from _flat([*statement.body, *handlers, *statement.orelse, *getattr(statement, "finalbody", ())])
        else:
            yield statement


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [_alias(alias) for alias in statement.names]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _alias(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _definition(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """Follow imports to where a class is defined."""
    for statement in _bindings(module).get(name, ()):
        if isinstance(statement, ast.ClassDef):
            return module, statement
        if isinstance(statement, ast.ImportFrom):
            return _definition(*_imported(module, statement, name))
    raise Unreadable(f"no class {name} in {module}")


def _imported(module: str, statement: ast.ImportFrom, name: str) -> tuple[str, str]:
    """Return the module and the name there of what an import binds."""
    original = next(alias.name for alias in statement.names if _alias(alias) == name)
    if not statement.level:
        return str(statement.module), original
    parts = module.split(".")
    up = statement.level - (source_file(module).name == "__init__.py")
    package = parts[: len(parts) - up]
    return ".".join([*package, *filter(None, [statement.module])]), original


@cache
def _value(module: str, name: str) -> Any:
    """Evaluate a name of a module: a constant, a class, a function that only returns one, or a module."""
    statements = _bindings(module).get(name, ())
    for statement in statements:  # one of several branches is as good as another, if it can be read
        with suppress(Unreadable):
            return _bound_value(module, name, statement)
    if statements:
        raise Unreadable(f"{name} of {module} is not written as a constant")
    if hasattr(builtins, name):
        return getattr(builtins, name)
    source_file(f"{module}.{name}")
    return _Module(f"{module}.{name}")


def _bound_value(module: str, name: str, statement: ast.stmt) -> Any:
    if isinstance(statement, ast.ImportFrom):
        home, original = _imported(module, statement, name)
        return getattr(import_module(home), original) if _is_standard(home) else _value(home, original)
    if isinstance(statement, ast.Import):
        home = next(alias.name for alias in statement.names if _alias(alias) == name)
        return import_module(home) if _is_standard(home) else _Module(home)
    if isinstance(statement, ast.ClassDef):
        return _plain_class(module, statement)
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return _evaluate(module, statement.value, {})
    if isinstance(statement, ast.FunctionDef) and not ast.unparse(statement.args):
        match statement.body:
            case [ast.Return(value=ast.expr() as returned)]:
                return lambda: _evaluate(module, returned, {})
    raise Unreadable(f"{name} of {module} is not written as a constant")


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


class _Module:
    """A module of which single names are read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return _value(self._name, name)


def _evaluate(module: str, expression: ast.expr, local: Mapping[str, list[ast.expr]]) -> Any:
    """Evaluate an expression, whose names are those of a class around it, or else those of the module."""
    names: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            (names if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)  # of a lambda; the others are of a comprehension
    known = {name: _literal(local[name]) if name in local else _value(module, name) for name in names - own}
    return eval(compile(ast.Expression(expression), f"<{module}>", "eval"), known)


def _literal(expressions: Sequence[ast.expr]) -> Any:
    """Evaluate a variable of a class.

    If it is bound again behind a condition, it depends on the machine, and becomes a text that names all its values.
    """
    try:
        values = [ast.literal_eval(expression) for expression in expressions]
    except ValueError as error:
        raise Unreadable("a variable of a class is no literal") from error
    return values[0] if len(values) == 1 else " or ".join(map(str, values))


def _plain_class(module: str, definition: ast.ClassDef) -> type:
    """Build what an annotation needs of a class: the members of an enumeration, and of any other its name."""
    bases = tuple(_evaluate(module, base, {}) for base in definition.bases)
    if not any(issubclass(base, Enum) for base in bases):
        return type(definition.name, (), {})
    members: dict[str, Any] = {}
    for statement in definition.body:
        if isinstance(statement, ast.Assign):
            members |= dict.fromkeys(_bound(statement), _evaluate(module, statement.value, {}))
    return types.new_class(definition.name, bases, {}, lambda namespace: _fill(namespace, members))


def _class(module: str, definition: ast.ClassDef) -> type:
    """Build a class with the annotations of a definition, decorated like it."""
    if definition.keywords or not all(isinstance(base, ast.Name) for base in definition.bases):
        raise Unreadable(f"{definition.name} has class arguments, or a base class that is no plain name")
    bases = tuple(_class(*_definition(module, ast.unparse(base))) for base in definition.bases)
    variables: dict[str, list[ast.expr]] = {}
    for statement in _flat(definition.body):
        if isinstance(statement, ast.Assign):
            for name in _bound(statement):
                variables.setdefault(name, []).append(statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement not in definition.body:
            raise Unreadable(f"{definition.name} has fields behind a condition")
    annotations: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            annotations[name] = _evaluate(module, _unquoted(statement.annotation), {})
            if statement.value is not None:
                attributes[name] = _evaluate(module, statement.value, variables)
    attributes["__annotations__"] = annotations
    built = types.new_class(definition.name, bases, {}, lambda namespace: _fill(namespace, attributes))
    for expression in reversed(definition.decorator_list):
        decorator = _evaluate(module, expression, {})
        # Methods are of no use here, and writing them would take a third of the time.
        built = (dataclass(init=False, repr=False, eq=False) if decorator is dataclass else decorator)(built)
    return built


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _fill(namespace: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():  # one by one: the namespace of an enumeration takes note of the order
        namespace[name] = value
