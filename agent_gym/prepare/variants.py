"""Variants of tests that should fail where the tests pass: other expected values, and opposite assertions.

They are changes of a few bytes, so that a file with some reads like the file without. Whether one fails on the right
code is for a run of it to say (release_tasks.py).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
}
_OPPOSITE_METHODS = {
    "assertEqual": "assertNotEqual",
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
}
_OPPOSITE_METHODS |= {other: one for one, other in _OPPOSITE_METHODS.items()}
_MOST_VALUES = 3  # of one test
_DEPTH = 8  # of base classes


class Change(NamedTuple):
    """Bytes of a test file, and the text in their place."""

    begin: int
    end: int
    text: str
    plain: bool = False  # whether nothing but a value is another one, which no reader can tell from the right one


class Site(NamedTuple):
    """Where a test function is defined: the file, and the name as in ids, "test_a" or "TestB::test_c"."""

    file: str
    function: str


def parsed(source: bytes) -> ast.Module:
    """Return a module, an empty one if it cannot be read."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse(source)
    return ast.Module([], [])


def sites_of(tree: Mapping[str, bytes], ids: Iterable[str]) -> dict[Site, list[str]]:
    """Return where tests are defined, with the ids of each place: a method may be that of a base class.

    Tests whose function is not found, such as generated ones, are left out.
    """
    classes: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    functions: dict[str, set[str]] = {}
    for file, source in tree.items():
        if file.endswith(".py"):
            module = parsed(source)
            functions[file] = {name for name, _ in _functions(module, "")}
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append((file, node))

    def find(file: str, name: str, depth: int = 0) -> Site | None:
        if name in functions.get(file, ()):
            return Site(file, name)
        outer, _, method = name.rpartition("::")
        places = classes.get(outer, [])
        _, node = next((one for one in places if one[0] == file), places[0] if len(places) == 1 else ("", None))
        for base in node.bases if node and depth < _DEPTH else ():
            called = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            for place, _ in sorted(classes.get(called, []), key=lambda one: one[0] != file)[:1]:
                if found := find(place, f"{called}::{method}", depth + 1):
                    return found
        return None

    found: dict[Site, list[str]] = {}
    for one in ids:
        file, _, name = one.partition("[")[0].partition("::")
        if site := find(file, name):
            found.setdefault(site, []).append(one)
    return found


def changes_of(source: bytes, functions: Collection[str]) -> dict[str, list[Change]]:
    """Return the changes of each test function.

    Args:
        source: of a test file.
        functions: their names, as a `Site` has them.
    """
    text = _Text(source)
    found: dict[str, list[Change]] = {}
    for name, function in _functions(parsed(source), ""):
        if name in functions:
            found.setdefault(name, [])  # a condition may define one of two
            for one in dict.fromkeys(_changes(text, function)):
                if parsed(source[: one.begin] + one.text.encode() + source[one.end :]).body:
                    found[name].append(one)
    return found


def _functions(block: ast.AST, place: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in (one for part in ("body", "orelse", "handlers", "finalbody") for one in getattr(block, part, ())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield place + node.name, node
        else:
            yield from _functions(node, f"{place}{node.name}::" if isinstance(node, ast.ClassDef) else place)


class _Text:
    """A source whose nodes can be found in its bytes."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self.span(node)
        return self.source[begin:end].decode("utf-8", "replace")


def _changes(text: _Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
    """Yield other values, which a test's author could have written, then one change of each kind, then another."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    asserts = [node for node in nodes if isinstance(node, ast.Assert)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _method(node).startswith("assert")]
    expected = [node for one in (*asserts, *calls) for node in _constants(one)][-_MOST_VALUES:]
    inner = [node for statement in function.body for node in _constants(statement)][-_MOST_VALUES:]
    yield from (change for node in (*reversed(expected), *reversed(inner)) for change in _other_value(text, node))
    kinds = (
        [change for one in reversed(asserts) for change in _wrapped(text, one.test)],
        [change for call in reversed(calls) for change in _wrapped_argument(text, call)],
        list(_other_exceptions(text, nodes)),
        [change for one in reversed(asserts) for change in _opposite(text, one.test)],
        [change for call in reversed(calls) for change in _opposite_method(text, call)],
        list(_at_the_end(text, function)),
    )
    yield from (one for some in zip_longest(*kinds) for one in some if one is not None)


def _wrapped_argument(text: _Text, call: ast.Call) -> Iterator[Change]:
    if _method(call) == "assertEqual" and len(call.args) >= 2:
        yield Change(*text.span(call.args[1]), f"({text.of(call.args[1])},)")


def _opposite_method(text: _Text, call: ast.Call) -> Iterator[Change]:
    if (other := _OPPOSITE_METHODS.get(_method(call))) and isinstance(call.func, ast.Attribute):
        _, end = text.span(call.func)
        yield Change(end - len(call.func.attr), end, other)


def _at_the_end(text: _Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
    _, end = text.span(function.body[-1])
    first = function.body[0]
    if first.lineno != function.lineno and not text.source[end : end + 1].strip(b"\r\n"):
        yield Change(end, end, f"\n{' ' * first.col_offset}assert not True")


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the constants below a node, but for docstrings and the parts of f-strings, which have no place."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.Constant):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _constants(child)


def _other_value(text: _Text, node: ast.Constant) -> Iterator[Change]:
    value, written = node.value, text.of(node)
    try:
        if ast.literal_eval(written) != value:
            return
    except (ValueError, SyntaxError):
        return
    begin, end = text.span(node)
    if isinstance(value, bool):
        yield Change(begin, end, str(not value), True)
    elif isinstance(value, int):
        yield Change(begin, end, str(value + 1), True)
    elif isinstance(value, float):
        yield Change(begin, end, repr(value + 1.0), True)
    elif written in ('""', "''"):
        yield Change(begin, end, f"{written[0]}a{written[0]}", True)
    elif isinstance(value, str | bytes) and value and "\n" not in written:
        middle = next((at for at in range(len(written) // 2, len(written)) if written[at].isalpha()), None)
        if middle is None or "\\" in written or written[0] not in "'\"b":
            yield Change(begin, end, repr(value[:-1]), True)
        else:
            letter = written[middle]
            other = chr(ord(letter) + (-1 if letter in "zZ" else 1))
            yield Change(begin, end, written[:middle] + other + written[middle + 1 :], True)


def _wrapped(text: _Text, test: ast.expr) -> Iterator[Change]:
    """Compare with a tuple of the expected value: an object that says it equals anything equals this, too."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        begin, end = text.span(test.comparators[0])
        yield Change(begin, end, f"({text.of(test.comparators[0])},)")


def _opposite(text: _Text, test: ast.expr) -> Iterator[Change]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        _, begin = text.span(test.left)
        end, _ = text.span(test.comparators[0])
        between = text.source[begin:end].decode("utf-8", "replace")
        if other := _OPPOSITE.get(type(test.ops[0])):
            around = between.replace("not in", "in").replace("is not", "is").strip(" ()\n\t\\")
            if around in ("==", "!=", "is", "in", "<", ">", "<=", ">="):
                yield Change(begin, end, between.replace(between.strip(" ()\n\t\\"), other))
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        begin, end = text.span(test)
        inner, _ = text.span(test.operand)
        yield Change(begin, inner, "")
    else:
        begin, end = text.span(test)
        yield Change(begin, end, f"not ({text.of(test)})")


def _other_exceptions(text: _Text, nodes: list[ast.AST]) -> Iterator[Change]:
    """Expect another exception in `pytest.raises(ValueError)`, and in `assertRaises`."""
    for node in nodes:
        if isinstance(node, ast.Call) and _method(node) in ("raises", "assertRaises") and node.args:
            begin, end = text.span(node.args[0])
            known = text.of(node.args[0])
            yield Change(begin, end, "ZeroDivisionError" if known != "ZeroDivisionError" else "OSError")
