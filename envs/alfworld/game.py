"""A game that is ready to be played: what no command changes about it, shared by all environments that play it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from agent_gym.envs.alfworld.logic import task_of
from agent_gym.envs.alfworld.problem import Fact, Goal, Problem, read_problem
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

    Args:
        problem: what is true at the start, and the goal.
        task: the task in words.
        name: where it is from, for messages.
        legacy: whether it speaks the grammar of json_2.1.1 as first published, `put .. in/on ..`, and not that of
            ALFWorld 0.4 and later, `move .. to ..`.
        has_help: whether there is the command `help`.
        file: makes the content of its file, for whoever needs that: the native engine does not.

    Attributes:
        task, name, legacy, has_help: see above.
        task_type: one of `TASK_TYPES`, as the goal has it.
        goal: what has to become true.
        start: the facts at the start, by predicate.
        at_start: those of them that the goal asks for.
        names: id to what the policy reads, such as "cabinet 3".
        place: receptacle to its location; `here` is the reverse, receptacles in the order in which they are named.
        type_of, kind_of: of a receptacle and of an object, such as "drawertype" and "pentype".
    """

    def __init__(
        self,
        problem: Problem,
        task: str,
        name: str,
        *,
        legacy: bool,
        has_help: bool,
        file: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Name everything in it."""
        self.task, self.name, self.legacy, self.has_help = task, name, legacy, has_help
        self._file = file
        self.goal, facts = problem.goal, problem.facts
        self.task_type = _type_of(self.goal)
        self.start = {predicate: tuple(found) for predicate, found in facts.items()}
        asked = {fact[0] for fact in self.goal.facts}
        self.at_start = {(p, *fact) for p in asked for fact in facts.get(p, ())} & self.goal.facts.keys()
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

    @classmethod
    def read(cls, data: Mapping[str, Any], name: str = "given") -> Game:
        """Read an official game file.

        Args:
            data: the JSON object of a `game.tw-pddl` file.
            name: where it is from, for messages.

        Raises:
            ConfigError: if it is no such file.
        """
        kept = {key: data.get(key) for key in FILE_KEYS}
        try:
            grammar = data["grammar"]
            return cls(
                read_problem(data["pddl_problem"]),
                task_of(grammar),
                name,
                legacy="move {o} to {r}" not in grammar,
                has_help="(:action help" in data["pddl_domain"],
                file=lambda: kept,
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"{name} is no game of ALFWorld (game.tw-pddl): {error!r:.200}") from error

    @property
    def data(self) -> Mapping[str, Any]:
        """The parts of the game's file that `FILE_KEYS` names, which is what the original engine plays."""
        return self._file()

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
