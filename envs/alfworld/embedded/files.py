"""The three texts of an official game file: the PDDL domain, the grammar of the world's sentences, and the problem.

All games share domain.pddl, and of the grammars (grammar_*.twl2) all but the task. The native engine reads neither:
world.py does the same in Python. They make a generated game a complete file, which the original engine plays, too.
Actions, predicates and sentences are the ones of ALFWorld (Shridhar et al., MIT licence, see NOTICE), without the parts
that no game reaches, such as putting things into other things.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import NamedTuple

from agent_gym.envs.alfworld.embedded import rooms

GRAMMARS = ("current", "legacy")


@functools.cache
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


_GOALS = tomllib.loads(_read("goals.toml"))


class Setting(NamedTuple):
    """A task in a room with everything in it."""

    plan: rooms.FloorPlan
    objects: Mapping[str, str]  # id to kind
    inside: Mapping[str, str]  # object to the receptacle it lies in; other objects stand about
    places: Mapping[str, str]  # object to its location
    agent: str  # where the agent begins
    task_type: str  # decides the form of the goal
    thing: str  # the kind of object that is wanted
    place: str  # the kind of receptacle to put it into, if any


_ABILITIES = {
    "isReceptacleObject": rooms.VESSELS,
    "cleanable": rooms.CLEANABLE,
    "heatable": rooms.HEATABLE,
    "coolable": rooms.COOLABLE,
    "toggleable": frozenset((rooms.LAMP, "FloorLamp")),
    "sliceable": rooms.SLICEABLE,
}
_ALL_OBJECTS = sorted(set().union(*rooms.HOLDS.values(), *rooms.DECOR.values(), {rooms.LAMP}))


def domain(grammar: str) -> str:
    """Return the PDDL domain; only the current one has the action `help`, the last of the file."""
    text = _read("domain.pddl")
    return text if grammar == "current" else text.partition(" (:action help")[0] + ")\n"


def grammar_text(grammar: str, task: str) -> str:
    """Return the grammar that states a task."""
    return _read(f"grammar_{grammar}.twl2").replace("{task}", json.dumps(task)[1:-1])


def problem_text(name: str, setting: Setting) -> str:
    """Write a PDDL problem under a name, section by section as official files have it."""
    plan = setting.plan
    objects = [
        "agent1 - agent",
        *(f"{kind} - object" for kind in _ALL_OBJECTS),
        *(f"{kind}Type - otype" for kind in _ALL_OBJECTS),
        *(f"{kind}Type - rtype" for kind in sorted(rooms.HOLDS)),
        *(f"{thing} - object" for thing in sorted(setting.objects)),
        *(f"{receptacle} - receptacle" for receptacle in sorted(plan.receptacles)),
        *(f"{spot} - location" for spot in sorted({*plan.places.values(), *setting.places.values(), setting.agent})),
    ]
    parts = _GOALS["task_types"][setting.task_type]
    goal = _GOALS["forms"][parts["form"]].format(thing=setting.thing, place=setting.place, lamp=rooms.LAMP, **parts)
    lines = [f"(define (problem plan_{name})", "(:domain alfred)", "(:objects", *(f"    {one}" for one in objects), ")"]
    lines += ["(:init", *(f"    ({' '.join(fact)})" for fact in _facts(setting)), ")"]
    return "\n".join([*lines, f"(:goal (and\n  {goal}))", ")\n"])


def _facts(setting: Setting) -> Iterator[tuple[str, ...]]:
    receptacles, objects, inside = setting.plan.receptacles, setting.objects, setting.inside
    yield from (("receptacleType", receptacle, f"{kind}Type") for receptacle, kind in receptacles.items())
    yield from (("objectType", thing, f"{kind}Type") for thing, kind in objects.items())
    present = set(objects.values())
    for kind in sorted(set(receptacles.values())):
        yield from (("canContain", f"{kind}Type", f"{held}Type") for held in sorted(rooms.HOLDS[kind] & present))
    yield from (("pickupable", thing) for thing in inside if objects[thing] != rooms.LAMP)
    for ability, kinds in _ABILITIES.items():
        yield from ((ability, thing) for thing, kind in objects.items() if kind in kinds)
    yield from (("openable", receptacle) for receptacle, kind in receptacles.items() if kind in rooms.OPENABLE)
    yield "atLocation", "agent1", setting.agent
    yield from (("inReceptacle", *pair) for pair in inside.items())
    yield from (("receptacleAtLocation", *pair) for pair in sorted(setting.plan.places.items()))
    yield from (("objectAtLocation", *pair) for pair in setting.places.items())
