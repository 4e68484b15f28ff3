"""A game as its file has it: names, places, abilities and the goal, all that no command changes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, product
from sys import intern
from typing import Any

from agent_gym.errors import ConfigError

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

FILE_KEYS = ("pddl_domain", "grammar", "pddl_problem")

_CLASS_ENDS = "_bar_"  # the ids are those of the simulator, Apple|+00.10|..., with `|` written out


class Game:
    """A game, ready to be played.

    Everything is computed once and only read afterwards, so that any number of threads may share a game.

    Attributes:
        name: see above.
        data: the parts of the file that `FILE_KEYS` names, which is what the original engine plays.
        task: the task in words.
        legacy: whether it speaks the grammar of json_2.1.1 as first published, `put .. in/on ..`, and not that of
            ALFWorld 0.4 and later, `move .. to ..`.
        has_help: whether there is the command `help`.
        task_type: one of `TASK_TYPES`, as the goal has it.
        goal: what has to become true.
        start: the facts at the start, by predicate.
        at_start: those of them that the goal asks for.
        names: id to what the policy reads, such as "cabinet 3".
        place: receptacle to its location; `here` is the reverse, receptacles in the order in which they are named.
        type_of, kind_of: of a receptacle and of an object, such as "drawertype" and "pentype".

    Raises:
        ConfigError: if `data` is no such file.
    """

    def __init__(self, data: Mapping[str, Any], name: str = "given") -> None:
        self.name, self.data = name, {key: data.get(key) for key in FILE_KEYS}
        try:
            self.task = task_of(data["grammar"])
            self.legacy = "move {o} to {r}" not in data["grammar"]
            self.has_help = "(:action help" in data["pddl_domain"]
            self.start, self.goal = read_problem(data["pddl_problem"])
            self.task_type = _type_of(self.goal)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"{name} is no game of ALFWorld (game.tw-pddl): {error!r:.200}") from error
        self.at_start = {fact for fact in self.goal.facts if fact[1:] in self.start.get(fact[0], ())}
        self.names = _names(self.start)
        self.place: dict[str, str] = dict(sorted((r, place) for r, place in self.start.get("receptacleatlocation", ())))
        self.here: dict[str, list[str]] = {}
        for receptacle, place in self.place.items():
            self.here.setdefault(place, []).append(receptacle)
        self.type_of: dict[str, str] = dict(self.start.get("receptacletype", ()))  # type: ignore[arg-type]
        self.kind_of: dict[str, str] = dict(self.start.get("objecttype", ()))  # type: ignore[arg-type]
        self.fits = frozenset(self.start.get("cancontain", ()))
        self.openable, self.pickupable = self._those("openable"), self._those("pickupable")
        self.cleanable, self.heatable, self.coolable = map(self._those, ("cleanable", "heatable", "coolable"))
        self.toggleable, self.sliceable = self._those("toggleable"), self._those("sliceable")
        self.vessels = self._those("isreceptacleobject")
        self.go_commands = {f"go to {self.names[r]}": r for r in self.place}

    def put_command(self, thing: str, receptacle: str) -> str:
        """Write the command that puts an object into a receptacle."""
        words = ("put", "in/on") if self.legacy else ("move", "to")
        return f"{words[0]} {self.names[thing]} {words[1]} {self.names[receptacle]}"

    def _those(self, predicate: str) -> frozenset[str]:
        return frozenset(fact[0] for fact in self.start.get(predicate, ()))


def _type_of(goal: Goal) -> str:
    asked = [atom[0] for atom in goal.atoms]
    states = {"istoggled": 1, "isclean": 2, "ishot": 3, "iscool": 4}
    state = next((number for predicate, number in states.items() if predicate in asked), None)
    return TASK_TYPES[state if state is not None else 5 if asked.count("inreceptacle") > 1 else 0]


def _names(facts: Mapping[str, Sequence[Fact]]) -> dict[str, str]:
    """Name things as ALFWorld does: by class and number, where the first id in the alphabet gets the highest number."""
    # What takes what is half of the facts, and says nothing of things but only of their kinds.
    told = (found for predicate, found in facts.items() if predicate != "cancontain")
    mentioned = set(chain.from_iterable(chain.from_iterable(told)))
    things = sorted([x for x in mentioned if _CLASS_ENDS in x])
    # The basin is a part of the simulator's sink, Sink|x|y|z|SinkBasin, and what is put into the sink is put there.
    kinds = [thing.partition(_CLASS_ENDS)[0] + ("basin" if "basin" in thing else "") for thing in things]
    left = Counter(kinds)
    names = {}
    for thing, kind in zip(things, kinds, strict=True):
        names[thing] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


Fact = tuple[str, ...]
"""A predicate and its arguments, all in lower case."""

# What commands change. Every other predicate holds for good.
CHANGING = frozenset(
    "atlocation inreceptacle objectatlocation holds opened ishot iscool isclean istoggled issliced".split()
)

_TOKEN = re.compile(r"[()]|[^\s()]+")


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
        self.atoms: list[Fact] = []
        self._unequal: list[tuple[str, str]] = []
        self._flatten(_expression(text)[1], {})
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
        static = [(atom[1:], _matching(atom, facts)) for atom in self.atoms if atom[0] not in CHANGING]
        # The rarest first, which keeps what is joined small.
        for arguments, matching in sorted(static, key=lambda part: len(part[1])):
            candidates = [{x: value for x, value in zip(arguments, v, strict=True) if x[0] == "?"} for v in matching]
            bindings = [
                known | new
                for known in bindings
                for new in candidates
                if all(known.get(x, new[x]) == new[x] for x in new)
            ]
        bound = {x for arguments, _ in static for x in arguments}
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


def _matching(atom: Fact, facts: Mapping[str, Sequence[Fact]]) -> list[Fact]:
    """Return the arguments of the facts that agree with the constants of a condition."""
    predicate, *arguments = atom
    return [
        values
        for values in facts.get(predicate, ())
        if all(x[0] == "?" or x == value for x, value in zip(arguments, values, strict=True))
    ]


def read_problem(text: str) -> tuple[dict[str, list[Fact]], Goal]:
    """Read a PDDL problem: what is true at the start, in the order of the file, and what has to become true.

    Only what ALFWorld's problem files use is read: ground facts, and a goal of `and`, `exists` and `not (= ...)`. What
    the commands do is not read from the file's domain, since it is the same in all of them; world.py says it in Python.

    Raises:
        ValueError: if it is none, or its goal is of a form that ALFWorld does not use.
    """
    text = text.lower()
    start, end = text.index("(:init"), text.index("(:goal")
    facts: dict[str, list[Fact]] = {}
    for piece in text[start + len("(:init") : end].replace(")", " ").split("("):
        # Ids are long and each stands in a dozen facts: interned, a game takes a third of the memory.
        predicate, *arguments = map(intern, piece.split() or [""])
        if arguments:
            facts.setdefault(predicate, []).append(tuple(arguments))
    if "atlocation" not in facts:
        raise ValueError("nothing says where the agent is")
    return facts, Goal(text[end:], facts)


def task_of(grammar: str) -> str:
    """Read the task from a grammar.

    Raises:
        ValueError: if it states none.
    """
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
