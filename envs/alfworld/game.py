"""A game as its file has it: names, places, abilities and the goal, all that no command changes."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from sys import intern
from typing import Any

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

Fact = tuple[str, ...]
"""A predicate and its arguments, all in lower case."""

# The predicates that commands change. Every other predicate holds for good.
CHANGING = frozenset(
    "atlocation inreceptacle objectatlocation holds opened ishot iscool isclean istoggled issliced".split()
)
_ABILITIES = "openable pickupable cleanable heatable coolable toggleable sliceable isreceptacleobject".split()
_CLASS_ENDS = "_bar_"  # the ids are the simulator's, Apple|+00.10|..., with `|` written out
_TOKEN = re.compile(r"[()]|[^\s()]+")


class AlfworldGame:
    """A game, ready to be played.

    Everything is computed once and only read afterwards, so that any number of threads may share a game. A file that is
    no game raises one of Python's errors that `data.load_game` catches.
    """

    def __init__(self, data: Mapping[str, Any], name: str = "given") -> None:
        self.name = name  # its path, or the name of a generated game
        # The parts of the file that the original engine plays.
        self.data = {key: data[key] for key in ("pddl_domain", "grammar", "pddl_problem")}
        self.task = task_of(data["grammar"])
        # The grammar of json_2.1.1 as first published, `put .. in/on ..`, or `move .. to ..` of ALFWorld 0.4 and later.
        self.legacy = "move {o} to {r}" not in data["grammar"]
        self.has_help = "(:action help" in data["pddl_domain"]
        self.start, self.goal = _read_problem(data["pddl_problem"])
        wanted = [atom[0] for atom in self.goal.atoms]
        state = next((n for n, x in enumerate(("istoggled", "isclean", "ishot", "iscool"), 1) if x in wanted), None)
        self.task_type = TASK_TYPES[state or (5 if wanted.count("inreceptacle") > 1 else 0)]
        self.at_start = {fact for fact in self.goal.facts if fact[1:] in self.start[fact[0]]}  # objects of the goal
        self.names = _names(self.start)  # id to the name that the policy reads, such as "cabinet 3"
        # Receptacle to its location, and the reverse, receptacles in the order in which they are named.
        self.place: dict[str, str] = dict(sorted((r, place) for r, place in self.start["receptacleatlocation"]))
        self.here: dict[str, list[str]] = {}
        for receptacle, place in self.place.items():
            self.here.setdefault(place, []).append(receptacle)
        # Of receptacles and of objects, such as "drawertype" and "pentype".
        self.type_of: dict[str, str] = dict(self.start["receptacletype"])  # type: ignore[arg-type]
        self.kind_of: dict[str, str] = dict(self.start["objecttype"])  # type: ignore[arg-type]
        self.fits = frozenset(self.start["cancontain"])
        self.able = {predicate: frozenset(fact[0] for fact in self.start[predicate]) for predicate in _ABILITIES}
        self.go_commands = {f"go to {self.names[r]}": r for r in self.place}

    def put_command(self, thing: str, receptacle: str) -> str:
        words = ("put", "in/on") if self.legacy else ("move", "to")
        return f"{words[0]} {self.names[thing]} {words[1]} {self.names[receptacle]}"


def _names(start: Mapping[str, list[Fact]]) -> dict[str, str]:
    """Name things as ALFWorld does: by class and number, where the first id in the alphabet gets the highest number."""
    # The facts of "cancontain" are half of all, and name kinds only.
    facts = itertools.chain.from_iterable(found for predicate, found in start.items() if predicate != "cancontain")
    left, names = Counter[str](), dict[str, str]()
    for thing in sorted({x for fact in facts for x in fact if _CLASS_ENDS in x}, reverse=True):
        # The basin is a part of the simulator's sink, Sink|x|y|z|SinkBasin, and an object put into the sink is put
        # there.
        kind = thing.partition(_CLASS_ENDS)[0] + ("basin" if "basin" in thing else "")
        left[kind] += 1
        names[thing] = f"{kind} {left[kind]}"
    return names


class Goal:
    """A conjunction over variables, and how far a state has come.

    A goal needs some binding of its variables under which all conditions hold. Which bindings fit the conditions that
    never change (types, abilities) is computed once, so that a step only counts facts.
    """

    def __init__(self, text: str, start: Mapping[str, list[Fact]]) -> None:
        self.atoms: list[Fact] = []  # all conditions, variables written `?name#n`
        self._unequal: list[tuple[str, str]] = []
        self._flatten(_expression(text)[1], {})
        changing = [atom for atom in self.atoms if atom[0] in CHANGING]
        if not changing:
            raise ValueError("the goal has no condition that a command can change")
        self.conditions = len(changing)
        # Each fact that can be a condition that commands change, to the bindings under which it is one.
        self.facts: dict[Fact, list[int]] = {}
        for number, binding in enumerate(self._bindings(start)):
            for predicate, *arguments in changing:
                fact = (predicate, *(binding.get(x, x) for x in arguments))
                self.facts.setdefault(fact, []).append(number)

    def progress(self, true: set[Fact]) -> float:
        """Return the largest share of conditions that hold together, given which of `facts` are true."""
        met = Counter(binding for fact in true for binding in self.facts[fact])
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

    def _bindings(self, start: Mapping[str, list[Fact]]) -> list[dict[str, str]]:
        parts: list[list[dict[str, str]]] = []  # the possible values of each condition's variables
        # A variable that no unchanging condition names is the agent, of whom there is one.
        agent = start["atlocation"][0][0]
        free = {x for atom in self.atoms for x in atom[1:] if x[0] == "?"}
        for predicate, *arguments in self.atoms:
            if predicate not in CHANGING:
                pairs = [list(zip(arguments, fact, strict=True)) for fact in start[predicate]]
                parts.append([dict(one) for one in pairs if all(x[0] == "?" or x == value for x, value in one)])
                free -= set(arguments)
        bindings: list[dict[str, str]] = [dict.fromkeys(sorted(free), agent)]
        # The rarest first, which keeps the joins small.
        for candidates in sorted(parts, key=len):
            bindings = [
                known | new
                for known in bindings
                for new in candidates
                if all(known.get(x, value) == value for x, value in new.items())
            ]
        return [b for b in bindings if all(b.get(one, one) != b.get(two, two) for one, two in self._unequal)]


def _read_problem(text: str) -> tuple[dict[str, list[Fact]], Goal]:
    """Read a PDDL problem: the facts at the start, and the goal.

    Only the constructs of ALFWorld's problem files are read: ground facts, and a goal of `and`, `exists` and `not (=
    ...)`. The domain is the same in all of them; world.py has it in Python.
    """
    text = text.lower()
    begin, end = text.index("(:init"), text.index("(:goal")
    facts: defaultdict[str, list[Fact]] = defaultdict(list)
    for piece in text[begin + len("(:init") : end].replace(")", " ").split("("):
        # Ids are long and each is in a dozen facts: interned, a game takes a third of the memory.
        predicate, *arguments = map(intern, piece.split() or [""])
        if arguments:
            facts[predicate].append(tuple(arguments))
    if "atlocation" not in facts:
        raise ValueError("no fact states where the agent is")
    return facts, Goal(text[end:], facts)


def task_of(grammar: str) -> str:
    """Read the task from a grammar; `ValueError` if it states none."""
    found = re.search(r"Your task is to: (.*?)\"", grammar)
    if found is None:
        raise ValueError("the grammar states no task")
    return found[1]


def _expression(text: str) -> Any:
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
