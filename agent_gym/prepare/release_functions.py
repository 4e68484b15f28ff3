"""Tasks of one function: a release in which the body of one is taken out, judged by the tests that fail without it.

They are the easy end of the tasks of software, and need no release before. Functions with a docstring come first.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from agent_gym.prepare.release_tasks import NoTask, SoftwareTask, first_run, passing, suite_of, variants_of
from agent_gym.prepare.release_tree import ReleaseTree, patch_of
from agent_gym.prepare.variants import parsed
from agent_gym.sandbox.suites import is_test, run_suite
from agent_gym.sandbox.verdicts import Hidden, judge

LEVEL = "function"
_LINES = range(1, 31)  # of a body
_MAX_JUDGING = 40  # tests, all of which are named
_MAX_SECONDS = 15.0  # of CPU time for all tests: each function needs several runs of them
_TRIED = 3  # times as many functions as tasks are wanted


class Function(NamedTuple):
    """A function of a package, and the bytes of its body without the docstring."""

    file: str
    name: str  # "load" or "Version.bump"
    begin: int
    end: int
    indent: str
    head: str  # the lines before the body


def functions_of(tree: ReleaseTree) -> list[Function]:
    """Return the functions: first what the tests name, with a docstring before others, in the order of their hashes."""
    words = set(re.findall(rb"\w+", b" ".join(tree.tests().values())))
    found = [one for path, data in tree.own().items() if path.endswith(".py") for one in _functions(path, data)]
    names = Counter(one.name for one in found)

    def fits(one: Function) -> bool:
        body = tree.files[one.file][one.begin : one.end].strip()
        return names[one.name] == 1 and not any(body in data for path, data in tree.files.items() if path != one.file)

    def rank(one: Function) -> tuple[bool, bool, bytes]:
        named = one.name.rpartition(".")[2].encode() in words
        return not named, '"""' not in one.head, hashlib.sha256(one.name.encode()).digest()

    return sorted(filter(fits, found), key=rank)


def _functions(path: str, source: bytes) -> Iterator[Function]:
    lines = source.splitlines(keepends=True)
    body = parsed(source).body
    inner = [("", body), *((f"{node.name}.", node.body) for node in body if isinstance(node, ast.ClassDef))]
    for place, node in ((place, node) for place, nodes in inner for node in nodes):
        if not isinstance(node, ast.FunctionDef) or not node.end_lineno:
            continue
        has_doc = ast.get_docstring(node, clean=False) is not None
        rest = node.body[has_doc:]
        first = (node.body[0].end_lineno or 0) + 1 if has_doc else node.body[0].lineno
        inner_first = rest and not has_doc and isinstance(rest[0], ast.FunctionDef | ast.ClassDef)  # with decorators
        if not rest or inner_first or first <= node.lineno or node.end_lineno - first + 1 not in _LINES:
            continue
        begin, end = (sum(map(len, lines[:at])) for at in (first - 1, node.end_lineno))
        indent = b" " * rest[0].col_offset
        if lines[rest[0].lineno - 1].startswith(indent):
            head = b"".join(lines[node.lineno - 1 : first - 1]).decode("utf-8", "replace")
            yield Function(path, place + node.name, begin, end, indent.decode(), head)


def without(tree: ReleaseTree, function: Function) -> ReleaseTree:
    """Return a release without a body, and without its tests and bytecode, from which a policy could copy."""
    source, blank = tree.files[function.file], f"{function.indent}raise NotImplementedError\n".encode()
    changed = source[: function.begin] + blank + source[function.end :]
    kept = {path: data for path, data in tree.files.items() if not is_test(path) and not path.endswith(".pyc")}
    return replace(tree, files={**kept, function.file: changed})


def function_tasks(tree: ReleaseTree, count: int) -> list[SoftwareTask]:
    """Make at most `count` tasks of a release; `NoTask` with the reason if none can be.

    Raises:
        SandboxError: if the sandbox failed, and not the tests.
    """
    suite, functions = suite_of(tree, tree), functions_of(tree)
    golden = first_run(suite)
    if golden.seconds > _MAX_SECONDS:
        raise NoTask(f"its tests take {golden.seconds:.0f} CPU seconds, at most {_MAX_SECONDS:.0f} make such tasks")
    always, seconds = passing(suite, golden)
    judging: dict[Function, frozenset[str]] = {}
    for function in functions[: _TRIED * count]:
        if len(judging) < count:
            blank = suite_of(without(tree, function), tree)
            failing = always - run_suite(blank, always, seconds=seconds).passed()
            if 0 < len(failing) <= _MAX_JUDGING:
                again = run_suite(blank, failing, seconds=seconds).by_id
                judging[function] = frozenset(one for one in failing if again.get(one) not in ("passed", "skipped"))
    union = frozenset[str]().union(*judging.values())
    variants = tuple(variants_of(suite, union, always - union)) if union else ()
    covered = {name for one in variants for name in one.ids}

    def of(names: frozenset[str]) -> Hidden:
        return Hidden(tuple(sorted(names)), tuple(sorted(always - names)), variants, seconds)

    # The right code is the same in all tasks, and judged once, but for the tests of a task alone.
    whole = bool(union) and judge(suite, of(union & covered)).solved
    made = []
    for function, names in judging.items():
        alone = names and names <= covered and names <= run_suite(suite, names, seconds=seconds).passed()
        if alone and (whole or judge(suite, of(names)).solved):
            made.append(_task(tree, function, of(names)))
    if not made:
        raise NoTask("no function of it is alone in what few tests need")
    return made


def _task(tree: ReleaseTree, function: Function, hidden: Hidden) -> SoftwareTask:
    old, release = without(tree, function), tree.release
    listed = "\n".join(f"- {name}" for name in hidden.fail_to_pass)
    text = (
        f"The current folder holds the source of {release.package} {release.version}, in which the body of "
        f"`{function.name}` in {function.file} is taken out. Write it. Only changes of {' and '.join(tree.package)} "
        f"count; tests that are not here decide.\n\n```python\n{function.head}{function.indent}raise "
        f"NotImplementedError\n```\n\nThese tests fail, and have to pass:\n\n{listed}"
    )
    name = f"{release.package}-{release.version}-{function.name.replace('.', '-')}"
    return SoftwareTask(name, old, tree, {LEVEL: text}, hidden, patch_of(old.own(), tree.own()))
