"""Compares two answers that reader.py has read, in a separate process: checker.py starts this file as a script.

Each part of an answer is compared with the part of the gold answer that is in its place: the order of a list or of a
set does not matter, the order in a pair does. A text with a value is compared by value (values.py), and all the rest
must be the same. Sums, integrals and limits have no value there; of two that consist of the same signs math-verify
decides (https://github.com/huggingface/Math-Verify), which compares values and does not see all signs.

The script reads lines of JSON, {"trees": [answer, gold], "texts": [answer, gold]}, and answers each with one line:
"equal", "different", or "limit" where the comparison took too much. `9^{9^{9^9}}` is a short answer, and mpmath would
compute it: in C, where no exception of Python's gets to. So the kernel bounds a comparison, by a timer of CPU time
whose signal ends the process and a limit of its memory. The process that reads the lines only forks and waits. It
imports nothing of its package but values.py, to start fast.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import logging
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mpmath

if TYPE_CHECKING or __package__:
    from agent_gym.envs.retool import values
else:  # a script finds the modules in its folder
    values = importlib.import_module("values")

CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 30

Node = list[Any]
Set = tuple[str | None, list[Any], Callable[[Any], bool]]  # the variable's name, the borders, its content

_BAGS = ("list", "curly")
_ORDERED = ("round", "square", "angle")
_SPANS = ("rel", "cup", "minus", "interval", "set")
_REVERSED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_CALCULUS = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|binom)(?![a-zA-Z])")
_SIGNS = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\S")
_BORDER_DIGITS = 300


def same_answer(given: Node, gold: Node, given_text: str = "", gold_text: str = "") -> bool:
    """Whether two answers are the same; their texts are for parts that no tree covers."""
    given, gold = _factors(given, gold), _factors(gold, given)
    if given[0] == "seq" or gold[0] == "seq":
        if given[0] != gold[0]:
            return False
        return _same_sequence(given[1], gold[1]) or _same_by_math_verify(given_text, gold_text)
    return same(given, gold)


def _factors(node: Node, other: Node) -> Node:
    r"""Read RH in `\pi RH` as a product where the other answer has R and H, and no RH."""
    letters = set(values.names_in(other)) if other[0] in values.SCALARS else set()

    def split(part: Any, inside: bool) -> Any:
        if not isinstance(part, list) or not part:
            return part
        if inside and part[0] == "v" and re.fullmatch("[A-Z]{2,}", str(part[1])) and letters >= {*part[1]}:
            return functools.reduce(lambda one, name: ["*", one, ["v", name]], part[1][1:], ["v", part[1][0]])
        return [split(piece, inside or part[0] == "*") for piece in part]

    return split(node, False)


def _same_sequence(given: list[Node], gold: list[Node]) -> bool:
    if len(given) != len(gold):
        return False
    pairs = zip(given, gold, strict=True)
    return all(a == b or ("token" not in (a[0], b[0]) and values.same_value(a, b)) for a, b in pairs)


def _same_by_math_verify(given: str, gold: str) -> bool:
    if not _CALCULUS.search(gold) or "\\text" in gold or re.search("[A-Z]{2}", gold):
        return False
    if Counter(_SIGNS.findall(given)) != Counter(_SIGNS.findall(gold)):
        return False
    from math_verify import parse, verify

    trees = [parse(f"\\boxed{{{text}}}", parsing_timeout=None, fallback_mode="no_fallback") for text in (gold, given)]
    return all(trees) and bool(verify(*trees, timeout_seconds=None))


def same(given: Node, gold: Node) -> bool:
    """Whether two trees are the same answer."""
    if given == gold:
        return True
    given, gold = _both_signs(given), _both_signs(gold)
    if gold[0] == "round":
        given = _in_order(given)
    if {given[0], gold[0]} & {"word"}:
        return given == gold
    spans = _same_set(given, gold)
    if spans is not None:
        return spans
    if given[0] == "list" or gold[0] == "list" or (given[0], gold[0]) == ("curly", "curly"):
        return _same_bag(given, gold)
    if given[0] == "rel" and gold[0] == "rel":
        return _same_relation(given[1], given[2], gold[1], gold[2])
    if "rel" in (given[0], gold[0]):
        return _same_without_name(given, gold)
    if "unit" in (given[0], gold[0]) or "unit" in (_minus(given)[0], _minus(gold)[0]):
        (one, a), (other, b) = _unit(given), _unit(gold)
        return (not one or not other or one == other) and same(a, b)
    return _same_thing(given, gold)


def _same_thing(given: Node, gold: Node) -> bool:
    kind = gold[0]
    if kind == "matrix" and given[0] == "square":
        lines = [row[1] if row[0] == "square" else None for row in given[1]]
        given = ["matrix", "matrix", lines] if all(lines) else given
    if kind == "matrix" and given[0] == "round" and all(len(row) == 1 for row in gold[2]):  # a vector
        given = ["matrix", gold[1], [[item] for item in given[1]]]
    if given[0] != kind:
        if kind in values.SCALARS and given[0] in values.SCALARS:
            return values.same_value(given, gold)
        return False
    if kind in _ORDERED:
        return len(given[1]) == len(gold[1]) and all(map(same, given[1], gold[1]))
    if kind == "interval":
        return given[1] == gold[1] and all(map(same, given[2:], gold[2:]))
    if kind == "matrix":
        rows: list[Any] = [given[2], gold[2]]
        if given[1] != gold[1] or [len(row) for row in rows[0]] != [len(row) for row in rows[1]]:
            return False
        pairs = [pair for lines in zip(*rows, strict=True) for pair in zip(*lines, strict=True)]
        return all(same(a, b) for a, b in pairs)
    return kind in values.SCALARS and values.same_value(given, gold)


def _minus(node: Node) -> Node:
    return node[1] if node[0] == "neg" else node


def _unit(node: Node) -> tuple[str, Node]:
    """Return the unit of a quantity, "" without one, and the quantity without it."""
    if node[0] == "unit":
        return node[1], node[2]
    if node[0] == "neg" and node[1][0] == "unit":
        return node[1][1], ["neg", node[1][2]]
    return "", node


# Plus-minus


def _both_signs(node: Node) -> Node:
    r"""Write an expression with one `\pm` as a list of two."""
    if node[0] in _BAGS:
        items: list[Node] = []
        for item in node[-1]:
            both = _both_signs(item)
            items += both[2] if both[0] == "list" and item[0] != "list" else [item]
        return node if items == node[-1] else [*node[:-1], items]
    signs = _signs(node)
    if not signs or (len(signs) > 1 and len(set(signs)) == 1):
        return node
    return ["list", [","], [_with_sign(node, 1), _with_sign(node, -1)]]


def _signs(node: Any) -> list[int]:
    if not isinstance(node, list):
        return []
    own = [node[2]] if node and node[0] == "pm" else []
    return own + [sign for part in node for sign in _signs(part)]


def _with_sign(node: Any, sign: int) -> Any:
    if not isinstance(node, list):
        return node
    if node and node[0] == "pm":
        inner = _with_sign(node[1], sign)
        return inner if sign == node[2] else ["neg", inner]
    return [_with_sign(part, sign) for part in node]


# Lists, and names in front of values


def _same_bag(given: Node, gold: Node) -> bool:
    """Whether two lists have the same members, whatever their order."""
    if gold[0] == "list" and given[0] == "square" and not _is_interval(given):  # a list of Python's
        given = ["list", [], given[1]]
    if given[0] not in _BAGS or gold[0] not in _BAGS:
        return False
    a, b = given[-1], gold[-1]
    if len(a) != len(b):
        return False
    names = [{_root_name(item) for item in items if _named(item)} for items in (a, b)]
    if any(len(found) > 1 for found in names) and names[0] != names[1]:
        return False  # 2, 1 is not x = 1, y = 2
    left = list(b)
    for item in a:
        place = next((at for at, other in enumerate(left) if same(item, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _is_interval(node: Node) -> bool:
    """Whether square brackets hold two numbers of which the second is larger: that is no list of two."""
    return len(node[1]) == 2 and _set(node) is not None


def _named(node: Node) -> bool:
    r"""Whether a node is `x = 5`, `f(x) = 5` or `x \in A`: a name and its value."""
    if node[0] != "rel" or len(node[1]) != 1 or node[1][0] not in ("=", "in"):
        return False
    name = node[2][0]
    return name[0] == "v" or (name[0] == "ap" and len(name) == 3)


def _root_name(node: Node) -> str:
    """Return the name of `x_1 = 3`, without its number: x_1 = 3, x_2 = 5 are two roots of x."""
    name = node[2][0]
    return re.sub(r"_\{?\d+\}?$", "", name[1]) if name[0] == "v" else json.dumps(name)


def _in_order(node: Node) -> Node:
    """Return `x = 1, y = 2` as `(1, 2)`, where the names are letters in their order; another node as it is."""
    items = node[2] if node[0] == "list" and all(map(_named, node[2])) else []
    names = [item[2][0][1] for item in items if item[2][0][0] == "v" and item[1] == ["="]]
    letters = len(names) == len(items) > 1 and all(len(name) == 1 for name in names) and sorted(set(names)) == names
    return ["round", [item[2][1] for item in items]] if letters else node


def _names_a_point(node: Node) -> bool:
    """Whether a node is `(x, y) = (1, 2)`."""
    if node[0] != "rel" or node[1] != ["="] or [side[0] for side in node[2]] != ["round", "round"]:
        return False
    return all(one[0] == "v" for one in node[2][0][1]) and len(node[2][0][1]) == len(node[2][1][1])


def _same_without_name(given: Node, gold: Node) -> bool:
    if _names_a_point(given):
        return same(given[2][1], gold)
    if _named(given):
        return same(given[2][1], gold)
    return _named(gold) and same(given, gold[2][1])


def _same_relation(given_ops: list[str], given: list[Node], gold_ops: list[str], gold: list[Node]) -> bool:
    """Whether two relations are the same: read from either end, or one times a number."""
    turned = [_REVERSED.get(operator, operator) for operator in reversed(given_ops)]
    for operators, sides in ((given_ops, given), (turned, given[::-1])):
        if operators == gold_ops and all(map(same, sides, gold)):
            return True
        if operators == gold_ops and len(operators) == 1 and operators[0] in ("=", "<", ">", "<=", ">=", "!="):
            if not all(side[0] in values.SCALARS for side in (*sides, *gold)):
                continue
            if not all(any(map(values.names_in, pair)) for pair in (sides, gold)):
                continue
            ratios = values.ratios((sides[0], sides[1]), (gold[0], gold[1]))
            if not ratios or any(abs(ratio / ratios[0] - 1) > mpmath.mpf(10) ** -100 for ratio in ratios):
                continue
            if operators[0] in ("=", "!=") or mpmath.re(ratios[0]) > 0:
                return True
    return False


# Sets of real numbers


def _same_set(given: Node, gold: Node) -> bool | None:
    """Whether two sets of real numbers are the same; None where one is none, or brackets say enough."""
    if not any(node[0] in _SPANS or _inequalities(node) for node in (given, gold)):
        return None
    if all(_equation(node) for node in (given, gold)):
        return None
    with mpmath.workdps(_BORDER_DIGITS):
        one, other = _set(given), _set(gold)
        if one is None or other is None:
            return None
        if one[0] is not None and other[0] is not None and one[0] != other[0]:
            return False
        borders: list[Any] = []
        for border in sorted([*one[1], *other[1]]):
            if not borders or not _close(borders[-1], border):
                borders.append(border)
        middles = [(low + high) / 2 for low, high in itertools.pairwise(borders)]
        ends = [borders[0] - 1, borders[-1] + 1] if borders else [mpmath.mpf(0)]
        return all(one[2](at) == other[2](at) for at in (*borders, *middles, *ends))


def _close(one: Any, other: Any) -> bool:
    return bool(abs(one - other) <= max(abs(one), abs(other)) * mpmath.mpf(10) ** (20 - _BORDER_DIGITS))


def _equation(node: Node) -> bool:
    return node[0] == "rel" and set(node[1]) == {"="}


def _inequalities(node: Node) -> bool:
    return node[0] == "list" and bool(node[2]) and all(item[0] == "rel" and not _equation(item) for item in node[2])


def _set(node: Node) -> Set | None:
    """Return a set of real numbers as its borders and its content; None for another thing."""
    kind = node[0]
    if kind == "set":
        return (None, [], lambda at: node[1] == "R") if node[1] in ("R", "empty") else None
    if kind in ("round", "square") and len(node[1]) == 2:
        low, high = (values.real(end, _BORDER_DIGITS) for end in node[1])
        ordered = low is not None and high is not None and low < high  # else it is a point
        return _span(node[1][0], node[1][1], kind == "square", kind == "square") if ordered else None
    if kind == "interval":
        return _span(node[2], node[3], node[1][0] == "[", node[1][1] == "]")
    if kind == "curly":
        points = [values.real(item, _BORDER_DIGITS) for item in node[1]]
        return None if None in points else (None, points, lambda at: any(_close(at, point) for point in points))
    if kind in ("cup", "minus"):
        parts = [_set(part) for part in (node[1] if kind == "cup" else node[1:])]
        return _joined(parts, any if kind == "cup" else lambda found: (both := list(found))[0] and not both[1])
    if kind == "rel" and node[1] == ["in"] and node[2][0][0] == "v":
        inner = _set(node[2][1])
        return inner and (node[2][0][1], *inner[1:])
    if kind == "rel" and "=" not in node[1]:
        return _joined([_half(op, a, b) for op, (a, b) in zip(node[1], itertools.pairwise(node[2]), strict=True)], all)
    if _inequalities(node) and len(set(node[1])) == 1 and node[1][0] in ("and", "or"):
        return _joined([_set(item) for item in node[2]], any if node[1][0] == "or" else all)
    return None


def _joined(parts: list[Set | None], rule: Callable[[Any], bool]) -> Set | None:
    known = [part for part in parts if part is not None]
    names = {part[0] for part in known} - {None}
    if len(known) < len(parts) or len(names) > 1:
        return None
    borders = [border for part in known for border in part[1]]
    return next(iter(names), None), borders, lambda at: bool(rule(part[2](at) for part in known))


def _half(operator: str, left: Node, right: Node) -> Set | None:
    r"""Return the set of `x < 3`, `3 > x` or `x \ne 3`."""
    if right[0] == "v" and left[0] != "v":
        left, right, operator = right, left, _REVERSED.get(operator, operator)
    if left[0] != "v" or operator not in ("<", ">", "<=", ">=", "!="):
        return None
    if operator == "!=":
        point = values.real(right, _BORDER_DIGITS)
        return None if point is None else (left[1], [point], lambda at: not _close(at, point))
    below = operator in ("<", "<=")
    low, high = (["neg", ["c", "inf"]], right) if below else (right, ["c", "inf"])
    span = _span(low, high, not below and operator == ">=", below and operator == "<=")
    return span and (left[1], *span[1:])


def _span(low: Node, high: Node, with_low: bool, with_high: bool) -> Set | None:
    borders = [values.real(end, _BORDER_DIGITS) for end in (low, high)]
    start, stop = borders
    if start is None or stop is None:
        return None
    if (with_low and mpmath.isinf(start)) or (with_high and mpmath.isinf(stop)):
        return None  # nothing reaches to infinity and contains it

    def holds(at: Any) -> bool:
        if not mpmath.isinf(start) and _close(at, start):
            return with_low and (mpmath.isinf(stop) or start < stop or (_close(start, stop) and with_high))
        if not mpmath.isinf(stop) and _close(at, stop):
            return with_high and start < stop
        return bool(start < at < stop)

    return None, [border for border in borders if not mpmath.isinf(border)], holds


def main() -> None:
    """Serve until the input ends."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)  # it warns that nothing watches the time
    # All others inherit the imports and compilations of the first comparison.
    verify(parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None), parse(r"\boxed{x^2}", parsing_timeout=None))
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            verdict = 3
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
                verdict = 2
                sys.setrecursionlimit(5000)  # a product of 300 factors is 300 nodes deep
                verdict = 0 if same_answer(*request["trees"], *request["texts"]) else 1
            finally:
                os._exit(verdict)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 3:
            sys.exit("comparisons cannot be bounded here")  # and so must not be made
        # A signal and a lack of memory mean the same: too much for so little.
        print({0: "equal", 1: "different"}.get(code, "limit"), flush=True)


if __name__ == "__main__":
    main()
