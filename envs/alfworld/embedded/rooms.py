"""The floor plans of games (rooms.json): the furniture of rooms, their objects, and the places for objects.

The words are the ones of the AI2-THOR simulator, which ALFWorld's games come from, and the numbers were chosen so that
a generated room is about as full as an official one (tests/test_alfworld_games.py has both). A room is a floor plan
with a number; this file also has which floor plans a split may use.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

ROOMS = ("kitchen", "living room", "bedroom", "bathroom")

LEAST_RECEPTACLES = 4
"""So few make a room in which every type of task can be set: three that treat things, and one to put them into."""

_PLANS_PER_ROOM = 30
_UNSEEN_PLANS = 4  # the last of each kind of room; no other split has them
_TABLES = json.loads(files(__package__).joinpath("rooms.json").read_text("utf-8"))


def _kinds(text: str) -> frozenset[str]:
    """Read kinds of objects; a word in lower case means a group of them."""
    return frozenset(kind for word in text.split() for kind in _TABLES["groups"].get(word, word).split())


FURNITURE: Mapping[str, Mapping[str, tuple[float, int, int]]] = _TABLES["furniture"]
"""Room to kinds of receptacles: the share of floor plans that have it, and then at least and at most how many."""
OPENABLE = frozenset(("Cabinet", "Drawer", "Fridge", "Microwave", "Safe"))
HOLDS: Mapping[str, frozenset[str]] = {receptacle: _kinds(text) for receptacle, text in _TABLES["holds"].items()}
"""Receptacle to the kinds of objects that it takes."""
DECOR: Mapping[str, Mapping[str, int]] = _TABLES["decor"]
"""Room to the things that one can only look at, with their numbers."""

LAMP = "DeskLamp"
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
LAMP_ROOMS = ("living room", "bedroom")

CLEANABLE, HEATABLE, COOLABLE, SLICEABLE, VESSELS, SINGLE = (
    _kinds(_TABLES["kinds"][name]) for name in ("cleanable", "heatable", "coolable", "sliceable", "vessels", "single")
)
"""Kinds of objects by the actions that they allow; of the kinds in SINGLE a room rarely has several."""


class FloorPlan(NamedTuple):
    """A furnished room."""

    number: int  # as the simulator has them: kitchens from 1, then from 201, 301 and 401
    room: str  # the kind of room
    receptacles: dict[str, str]  # id to kind
    places: dict[str, str]  # id of a receptacle to its location
    things: tuple[str, ...]  # kinds of objects that are found there
    homes: dict[str, dict[str, list[str]]]  # object kind to the kinds of receptacles that take it there


def plan_numbers(room: str, *, unseen: bool) -> range:
    """Return the floor plans of a kind of room: only the ones of `valid_unseen`, or of all other splits."""
    first = (0, 200, 300, 400)[ROOMS.index(room)] + 1
    last = first + _PLANS_PER_ROOM
    return range(last - _UNSEEN_PLANS, last) if unseen else range(first, last - _UNSEEN_PLANS)


@functools.lru_cache(maxsize=128)
def floor_plan(number: int) -> FloorPlan:
    """Furnish a floor plan; it depends on its number alone."""
    rng = random.Random(f"alfworld/floor plan/{number}")
    room = ROOMS[max(0, number // 100 - 1)]
    receptacles: dict[str, str] = {}
    places: dict[str, str] = {}
    for kind, (share, least, most) in FURNITURE[room].items():
        if rng.random() >= share:
            continue
        for _ in range(rng.randint(least, most)):
            receptacle = object_id(kind, rng)
            # One often reaches two drawers or cabinets from the same spot.
            last = next(reversed(receptacles), "")
            shared = kind in ("Cabinet", "Drawer", "Shelf") and receptacles.get(last) == kind and rng.random() < 0.15
            places[receptacle] = places[last] if shared else location_id(rng)
            receptacles[receptacle] = kind
    # Kinds of objects that are always there, that every other floor plan has, and that are rare.
    things: list[str] = []
    for text, share in zip(_TABLES["things"][room], (1, 0.5, 0.2), strict=True):
        things += [kind for kind in text.split() if share == 1 or rng.random() < share]
    return _plan(number, room, receptacles, places, things)


def corner(plan: FloorPlan, most: int, rng: random.Random) -> FloorPlan:
    """Keep a few receptacles of a floor plan, each at a different place, and as many kinds of objects and two more.

    Among them are the ones that some types of tasks need.
    """
    order = rng.sample(sorted(plan.receptacles), len(plan.receptacles))
    stands = LAMP_STANDS if plan.room in LAMP_ROOMS else ()
    needed = [("SinkBasin",), ("Microwave",), ("Fridge",), stands]
    first = [next((r for r in order if plan.receptacles[r] in kinds), "") for kinds in needed]
    kept: dict[str, str] = {}
    for receptacle in (*filter(None, first), *order):
        if len(kept) < most:
            kept.setdefault(plan.places[receptacle], receptacle)
    receptacles = {r: kind for r, kind in plan.receptacles.items() if kept.get(plan.places[r]) == r}
    places = {receptacle: plan.places[receptacle] for receptacle in receptacles}
    small = _plan(plan.number, plan.room, receptacles, places, plan.things)
    return small._replace(things=tuple(sorted(rng.sample(small.things, min(len(small.things), most + 2)))))


def _plan(
    number: int, room: str, receptacles: dict[str, str], places: dict[str, str], things: Sequence[str]
) -> FloorPlan:
    present: dict[str, list[str]] = {}
    for receptacle, kind in receptacles.items():
        present.setdefault(kind, []).append(receptacle)
    homes = {thing: {kind: present[kind] for kind in sorted(present) if thing in HOLDS[kind]} for thing in things}
    return FloorPlan(number, room, receptacles, places, tuple(thing for thing in things if homes[thing]), homes)


def object_id(kind: str, rng: random.Random) -> str:
    """Invent an id as the simulator has them, a kind and a point in space, with its signs written out."""
    # The basins are parts of a sink and a bathtub.
    first, last = (kind.removesuffix("Basin"), [kind]) if kind.endswith("Basin") else (kind, [])
    point = (_written_out(f"{rng.uniform(-4, 4):+06.2f}") for _ in range(3))
    return "_bar_".join([first, *point, *last])


def location_id(rng: random.Random) -> str:
    """Invent a place to stand: x, z, a quarter turn and an angle to look down."""
    x, z, turn, angle = rng.randint(-40, 40), rng.randint(-40, 40), rng.randrange(4), rng.choice((0, 30, 45, 60))
    return f"loc_bar_{_written_out(str(x))}_bar_{_written_out(str(z))}_bar_{turn}_bar_{angle}"


def _written_out(number: str) -> str:
    return number.replace("+", "_plus_").replace("-", "_minus_").replace(".", "_dot_")
