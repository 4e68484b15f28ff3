"""A parsed game: everything about it that no command changes, shared by all environments that play it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from agent_gym.envs.alfworld.logic import task_of
from agent_gym.envs.alfworld.problem import Fact, Goal, read_problem
from agent_gym.errors import ConfigError

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

_CLASS_ENDS = "_bar_"  # the ids are those of the simulator, Apple|+00.10|..., with `|` written out


class Game:
    """An official game file, read.

    Everything is computed once and only read afterwards, so that any number of threads may share a game.

    Args:
        data: the JSON object of a `game.tw-pddl` file.
        name: where it is from, for messages.

    Attributes:
        task: the task in words.
        task_type: one of `TASK_TYPES`, as the goal has it.
        goal: what has to become true.
        legacy: whether it speaks the grammar of json_2.1.1 as first published, `put .. in/on ..`, and not that of
            ALFWorld 0.4 and later, `move .. to ..`.
        start: the facts at the start, by predicate.
        names: id to what the policy reads, such as "cabinet 3".
        place: receptacle to its location; `here` is the reverse, receptacles in the order in which they are named.
        type_of, kind_of: of a receptacle and of an object, such as "drawertype" and "pentype".

    Raises:
        ConfigError: if it is no such file.
    """

    def __init__(self, data: Mapping[str, Any], name: str = "given") -> None:
        """Read the problem and name everything in it."""
        self.name = name
        self.data = {key: data.get(key) for key in ("pddl_domain", "grammar", "pddl_problem")}
        try:
            grammar, problem = data["grammar"], read_problem(data["pddl_problem"])
            self.task = task_of(grammar)
            self.legacy = "move {o} to {r}" not in grammar
            self.has_help = "(:action help" in data["pddl_domain"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"{name} is no game of ALFWorld (game.tw-pddl): {error!r:.200}") from error
        self.goal, facts = problem.goal, problem.facts
        self.task_type = _type_of(self.goal)
        self.start = {predicate: tuple(found) for predicate, found in facts.items()}
        self.names = _names(facts)
        self.place: dict[str, str] = dict(sorted((r, place) for r, place in self.start.get("receptacleatlocation", ())))
        here: dict[str, list[str]] = defaultdict(list)
        for receptacle, place in self.place.items():
            here[place].append(receptacle)
        self.here = {place: tuple(receptacles) for place, receptacles in here.items()}
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


def _names(facts: Mapping[str, list[Fact]]) -> dict[str, str]:
    """Name things as ALFWorld does: by class and number, where the first id in the alphabet gets the highest number."""
    ids = sorted({thing for found in facts.values() for fact in found for thing in fact if _CLASS_ENDS in thing})
    left = Counter(map(_class_of, ids))
    names = {}
    for thing in ids:
        kind = _class_of(thing)
        names[thing] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _class_of(thing: str) -> str:
    # The basin is a part of the simulator's sink, Sink|x|y|z|SinkBasin, and what is put into the sink is put there.
    return thing.split(_CLASS_ENDS, 1)[0] + ("basin" if "basin" in thing else "")
