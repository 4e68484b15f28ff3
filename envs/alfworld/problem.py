"""The PDDL of a game: what is true at the start, and what has to become true.

Only what ALFWorld's problem files use is read: ground facts, and a goal of `and`, `exists` and `not (= ...)`. What the
commands do is not read from the file's domain, since it is the same in all of them; world.py says it in Python.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from sys import intern
from typing import Any

Fact = tuple[str, ...]
"""A predicate and its arguments, all in lower case."""

# What commands change. Every other predicate holds for good.
CHANGING = frozenset(
    "atlocation inreceptacle objectatlocation holds opened ishot iscool isclean istoggled issliced".split()
)

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """What a problem file says.

    Attributes:
        facts: predicate to the argument tuples for which it holds at the start, in the order of the file.
        goal: the goal.
    """

    facts: dict[str, list[Fact]]
    goal: Goal


class Goal:
    """A conjunction over variables, and how far a state has come.

    A goal asks for some binding of its variables under which all conditions hold. Which bindings fit the conditions
    that never change (types, abilities) is worked out once, so that a step only counts facts.

    Attributes:
        atoms: all conditions, variables written `?name#n`.
        conditions: number of the conditions that commands can make true.
        facts: each fact that can be one of these conditions, to the bindings under which it is one.
    """

    def __init__(self, text: str, facts: Mapping[str, Sequence[Fact]]) -> None:
        """Flatten the expression, and join what never changes.

        Args:
            text: from `(:goal` on.
            facts: those of the start.

        Raises:
            ValueError: if the goal is of a form that ALFWorld does not use.
        """
        self.atoms: list[Fact] = []
        self._unequal: list[tuple[str, str]] = []
        self._flatten(_expression(text.lower())[1], {})
        changing = [atom for atom in self.atoms if atom[0] in CHANGING]
        self.conditions = len(changing)
        met_by: defaultdict[Fact, list[int]] = defaultdict(list)
        self._satisfiable = False
        for number, binding in enumerate(self._bindings(facts)):
            self._satisfiable = True
            for predicate, *arguments in changing:
                met_by[(predicate, *(binding.get(x, x) for x in arguments))].append(number)
        self.facts = dict(met_by)

    def progress(self, true: set[Fact]) -> float:
        """Return the largest share of conditions that hold together, given which of `facts` are true."""
        if not self.conditions:
            return float(self._satisfiable)
        met: dict[int, int] = {}
        for fact in true:
            for binding in self.facts[fact]:
                met[binding] = met.get(binding, 0) + 1
        return max(met.values(), default=0) / self.conditions

    def _flatten(self, expression: Any, names: dict[str, str]) -> None:
        """Collect conditions; `exists` may use a name again for something else, so each gets a number."""
        head, *rest = expression
        if head == "and":
            for part in rest:
                self._flatten(part, names)
        elif head == "exists":
            fresh = len(self.atoms) + len(self._unequal)
            inner = {name: f"{name}#{fresh}" for name in rest[0] if name.startswith("?")}
            self._flatten(rest[1], {**names, **inner})
        elif head == "not" and rest[0][0] == "=":
            one, other = rest[0][1:]
            self._unequal.append((names.get(one, one), names.get(other, other)))
        elif head in ("or", "forall", "not", "imply"):
            raise ValueError(f"a goal with {head!r} is not understood")
        else:
            self.atoms.append((head, *(names.get(x, x) for x in rest)))

    def _bindings(self, facts: Mapping[str, Sequence[Fact]]) -> list[dict[str, str]]:
        """Return all bindings under which the unchanging conditions hold."""
        bindings: list[dict[str, str]] = [{}]
        static = [
            (arguments, _matching(arguments, facts.get(predicate, ())))
            for predicate, *arguments in self.atoms
            if predicate not in CHANGING
        ]
        bound: set[str] = set()
        # The rarest first, which keeps what is joined small.
        for arguments, matching in sorted(static, key=lambda part: len(part[1])):
            # A hash join: what the bindings so far have in common with this condition decides what goes together.
            shared = [i for i, x in enumerate(arguments) if x in bound]
            values_for: defaultdict[Fact, list[Fact]] = defaultdict(list)
            for values in matching:
                values_for[tuple([values[i] for i in shared])].append(values)
            bindings = [
                binding | {x: value for x, value in zip(arguments, values, strict=True) if x[0] == "?"}
                for binding in bindings
                for values in values_for.get(tuple([binding[arguments[i]] for i in shared]), ())
            ]
            bound.update(x for x in arguments if x[0] == "?")
        free = sorted({x for atom in self.atoms for x in atom[1:] if x[0] == "?"} - bound)
        if bindings and free:
            # Named in no unchanging condition: the agent, of whom there is one.
            agents = sorted({values[0] for values in facts["atlocation"]})
            bindings = [
                binding | dict(zip(free, choice, strict=True))
                for binding in bindings
                for choice in product(agents, repeat=len(free))
            ]
        return [b for b in bindings if all(b.get(one, one) != b.get(two, two) for one, two in self._unequal)]


def _matching(arguments: list[str], facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts that agree with the constants among the arguments."""
    for i, x in enumerate(arguments):
        if x[0] != "?":
            facts = [values for values in facts if values[i] == x]
    return facts


def read_problem(text: str) -> Problem:
    """Read a problem file.

    Raises:
        ValueError: if it is none, or its goal is of a form that ALFWorld does not use.
    """
    text = text.lower()
    start, end = text.index("(:init"), text.index("(:goal")
    facts: defaultdict[str, list[Fact]] = defaultdict(list)
    contains = facts["cancontain"]
    for piece in text[start + len("(:init") : end].replace(")", " ").split("("):
        if piece.startswith("cancontain "):  # half of a file, and the same in many files
            contains.append(_shared_arguments(piece))
            continue
        words = piece.split()
        # Ids are long and each stands in a dozen facts: interned, a game takes a third of the memory.
        if len(words) == 3:  # nearly all of them
            facts[words[0]].append((intern(words[1]), intern(words[2])))
        elif len(words) > 1:
            facts[words[0]].append(tuple(map(intern, words[1:])))
    if "atlocation" not in facts:
        raise ValueError("nothing says where the agent is")
    return Problem(dict(facts), Goal(text[end:], facts))


@functools.lru_cache(maxsize=1 << 12)
def _shared_arguments(fact: str) -> Fact:
    return tuple(map(intern, fact.split()[1:]))


def _expression(text: str) -> Any:
    """Read the first expression of a text into nested lists."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise ValueError("a bracket of the goal is not closed")
