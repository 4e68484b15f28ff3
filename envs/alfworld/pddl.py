"""Writes the problem of a generated game, section by section as the official files have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent_gym.envs.alfworld import rooms


class Setting(NamedTuple):
    """A room with everything in it.

    Attributes:
        plan: the room.
        objects: id to kind.
        inside: object to the receptacle it lies in; what is missing stands about.
        places: object to its location.
        agent: where the agent begins.
    """

    plan: rooms.FloorPlan
    objects: Mapping[str, str]
    inside: Mapping[str, str]
    places: Mapping[str, str]
    agent: str


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


def problem_text(name: str, setting: Setting, task_type: str, thing: str, place: str) -> str:
    """Write a problem.

    Args:
        name: of the problem.
        setting: the room.
        task_type: decides the form of the goal.
        thing: the kind of object that is wanted.
        place: the kind of receptacle to put it into, if any.
    """
    plan = setting.plan
    form, ability, state = _GOALS[task_type]
    goal = form.format(thing=thing, place=place, lamp=rooms.LAMP, ability=ability, state=state)
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
    parts = [f"(define (problem plan_{name})", "(:domain alfred)", "(:objects", *_indented(objects), ")"]
    parts += ["(:init", *_indented(f"({fact})" for fact in _facts(setting)), ")", f"(:goal (and\n  {goal}))", ")"]
    return "\n".join(parts) + "\n"


def _facts(setting: Setting) -> Iterable[str]:
    plan, objects = setting.plan, setting.objects
    for receptacle, kind in plan.receptacles.items():
        yield f"receptacleType {receptacle} {kind}Type"
    for thing, kind in objects.items():
        yield f"objectType {thing} {kind}Type"
    present = set(objects.values())
    for kind in sorted(set(plan.receptacles.values())):
        yield from (f"canContain {kind}Type {held}Type" for held in sorted(rooms.HOLDS[kind] & present))
    yield from (f"pickupable {thing}" for thing in setting.inside if objects[thing] != rooms.LAMP)
    for ability, kinds in _ABILITIES.items():
        yield from (f"{ability} {thing}" for thing, kind in objects.items() if kind in kinds)
    yield from (f"openable {receptacle}" for receptacle, kind in plan.receptacles.items() if kind in rooms.OPENABLE)
    yield f"atLocation agent1 {setting.agent}"
    yield from (f"inReceptacle {thing} {receptacle}" for thing, receptacle in setting.inside.items())
    yield from (f"receptacleAtLocation {receptacle} {place}" for receptacle, place in sorted(plan.places.items()))
    yield from (f"objectAtLocation {thing} {place}" for thing, place in setting.places.items())


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
