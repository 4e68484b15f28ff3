"""The problem of a generated game: as facts and a goal, and as a text, section by section as official files have it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent_gym.envs.alfworld.embedded import rooms
from agent_gym.envs.alfworld.problem import Fact, Goal, Problem


class Setting(NamedTuple):
    """A task in a room with everything in it.

    Attributes:
        plan: the room.
        objects: id to kind.
        inside: object to the receptacle it lies in; what is missing stands about.
        places: object to its location.
        agent: where the agent begins.
        task_type: decides the form of the goal.
        thing: the kind of object that is wanted.
        place: the kind of receptacle to put it into, if any.
    """

    plan: rooms.FloorPlan
    objects: Mapping[str, str]
    inside: Mapping[str, str]
    places: Mapping[str, str]
    agent: str
    task_type: str
    thing: str
    place: str


_ONE = """(exists (?r - receptacle) (exists (?o - object) (and
    {ability}
    (objectType ?o {thing}Type)
    (receptacleType ?r {place}Type)
    {state}
    (inReceptacle ?o ?r))))"""
_TWO = """(exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 {thing}Type)
    (receptacleType ?r {place}Type)
    (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and
        (not (= ?o1 ?o2))
        (objectType ?o2 {thing}Type)
        (receptacleType ?r {place}Type)
        (inReceptacle ?o2 ?r))))))"""
_LIGHT = """(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
    (objectType ?ot {lamp}Type)
    (toggleable ?ot)
    (isToggled ?ot)
    (receptacleAtLocation ?r ?l)
    (atLocation ?a ?l)
    (inReceptacle ?ot ?r)))
  (exists (?o - object ?a - agent) (and
    (objectType ?o {thing}Type)
    (holds ?a ?o)))"""
_GOALS = {
    "pick_and_place_simple": (_ONE, "", ""),
    "look_at_obj_in_light": (_LIGHT, "", ""),
    "pick_clean_then_place_in_recep": (_ONE, "(cleanable ?o)", "(isClean ?o)"),
    "pick_heat_then_place_in_recep": (_ONE, "(heatable ?o)", "(isHot ?o)"),
    "pick_cool_then_place_in_recep": (_ONE, "(coolable ?o)", "(isCool ?o)"),
    "pick_two_obj_and_place": (_TWO, "", ""),
}

_ABILITIES = {
    "isReceptacleObject": rooms.VESSELS,
    "cleanable": rooms.CLEANABLE,
    "heatable": rooms.HEATABLE,
    "coolable": rooms.COOLABLE,
    "toggleable": frozenset((rooms.LAMP, "FloorLamp")),
    "sliceable": rooms.SLICEABLE,
}
_ALL_RECEPTACLES = sorted(rooms.HOLDS)
_ALL_OBJECTS = sorted(
    {kind for kinds in rooms.HOLDS.values() for kind in kinds}
    | {kind for decor in rooms.DECOR.values() for kind in decor}
    | {rooms.LAMP}
)


class _Words:
    """How kinds are written in facts.

    Attributes:
        types: kind to the name of its type.
        takes: kind of receptacle to the kinds it takes, each with the fact that says so. These are half of a game's
            facts, and the same in all of them but for what there is.
    """

    def __init__(self, spell: Callable[[str], str]) -> None:
        """Write all of them once."""
        self.types = {kind: sys.intern(spell(f"{kind}Type")) for kind in (*_ALL_RECEPTACLES, *_ALL_OBJECTS)}
        self.takes: Mapping[str, list[tuple[str, Fact]]] = {
            kind: [(held, (self.types[kind], self.types[held])) for held in sorted(kinds)]
            for kind, kinds in rooms.HOLDS.items()
        }


_AS_IN_FILES, _IN_LOWER_CASE = _Words(str), _Words(str.lower)


def problem(setting: Setting) -> Problem:
    """Return the problem, without the way over its text that `read_problem(problem_text(...))` would be."""
    found = _facts(_in_lower_case(setting), _IN_LOWER_CASE)
    facts = {predicate.lower(): those for predicate, those in found if those}
    return Problem(facts, Goal(_goal_text(setting), facts))


def _in_lower_case(setting: Setting) -> Setting:
    """Write the ids as the engine has them: here and not in the facts, a dozen of which name the same id."""
    plan = setting.plan
    ids = (*plan.receptacles, *plan.places.values(), *setting.objects, *setting.places.values(), setting.agent)
    low = {name: sys.intern(name.lower()) for name in ids}
    receptacles = {low[receptacle]: kind for receptacle, kind in plan.receptacles.items()}
    return setting._replace(
        plan=plan._replace(receptacles=receptacles, places=_lowered(_in_order(plan.places), low)),
        objects={low[thing]: kind for thing, kind in setting.objects.items()},
        inside=_lowered(setting.inside, low),
        places=_lowered(setting.places, low),
        agent=low[setting.agent],
    )


def _lowered(pairs: Mapping[str, str], low: Mapping[str, str]) -> dict[str, str]:
    return {low[one]: low[other] for one, other in pairs.items()}


def _in_order(places: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(places.items()))


def problem_text(name: str, setting: Setting) -> str:
    """Write a problem under a name."""
    plan = setting.plan._replace(places=_in_order(setting.plan.places))
    setting = setting._replace(plan=plan)
    locations = sorted({*plan.places.values(), *setting.places.values(), setting.agent})
    objects = [
        "agent1 - agent",
        *(f"{kind} - object" for kind in _ALL_OBJECTS),
        *(f"{kind}Type - otype" for kind in _ALL_OBJECTS),
        *(f"{kind}Type - rtype" for kind in _ALL_RECEPTACLES),
        *(f"{thing} - object" for thing in sorted(setting.objects)),
        *(f"{receptacle} - receptacle" for receptacle in sorted(plan.receptacles)),
        *(f"{location} - location" for location in locations),
    ]
    facts = [
        f"({' '.join((predicate, *fact))})" for predicate, found in _facts(setting, _AS_IN_FILES) for fact in found
    ]
    parts = [f"(define (problem plan_{name})", "(:domain alfred)", "(:objects", *_indented(objects), ")"]
    parts += ["(:init", *_indented(facts), ")", _goal_text(setting), ")"]
    return "\n".join(parts) + "\n"


def _goal_text(setting: Setting) -> str:
    form, ability, state = _GOALS[setting.task_type]
    words = {"thing": setting.thing, "place": setting.place, "lamp": rooms.LAMP, "ability": ability, "state": state}
    return f"(:goal (and\n  {form.format(**words)}))"


def _facts(setting: Setting, words: _Words) -> Iterator[tuple[str, list[Fact]]]:
    plan, objects, inside, types = setting.plan, setting.objects, setting.inside, words.types
    yield "receptacleType", [(receptacle, types[kind]) for receptacle, kind in plan.receptacles.items()]
    yield "objectType", [(thing, types[kind]) for thing, kind in objects.items()]
    present = set(objects.values())
    yield (
        "canContain",
        [
            fact
            for kind in sorted(set(plan.receptacles.values()))
            for held, fact in words.takes[kind]
            if held in present
        ],
    )
    yield "pickupable", [(thing,) for thing in inside if objects[thing] != rooms.LAMP]
    for ability, kinds in _ABILITIES.items():
        yield ability, [(thing,) for thing, kind in objects.items() if kind in kinds]
    yield "openable", [(receptacle,) for receptacle, kind in plan.receptacles.items() if kind in rooms.OPENABLE]
    yield "atLocation", [("agent1", setting.agent)]
    yield "inReceptacle", list(inside.items())
    yield "receptacleAtLocation", list(plan.places.items())
    yield "objectAtLocation", list(setting.places.items())


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
