"""What stands in which room, what lies in it, and what can be put where: the tables behind generated games.

The words are those of the AI2-THOR simulator, which ALFWorld's games come from, and the numbers were chosen so that a
generated room is about as full as an official one (tests/test_alfworld_generator.py has both). A room is a floor plan
with a number; which floor plans a split may use is said here too.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ROOMS = ("kitchen", "living room", "bedroom", "bathroom")

LEAST_RECEPTACLES = 4
"""So few make a room in which every type of task can be set: three that treat things, and one to put them into."""

_PLANS_PER_ROOM = 30
_UNSEEN_PLANS = 4  # the last of each kind of room; no other split has them


class Furniture(NamedTuple):
    """How often a floor plan has a kind of receptacle, and then how many: at least, at most."""

    share: float
    least: int
    most: int


def _furniture(table: str) -> Mapping[str, Furniture]:
    rows = (line.split() for line in table.strip().splitlines())
    return {kind: Furniture(float(share), int(least), int(most)) for kind, share, least, most in rows}


FURNITURE: Mapping[str, Mapping[str, Furniture]] = {
    "kitchen": _furniture("""
        Cabinet 1 6 18
        CoffeeMachine 1 1 1
        CounterTop 1 1 3
        DiningTable .6 1 2
        Drawer .95 3 9
        Fridge 1 1 1
        GarbageCan 1 1 1
        Microwave 1 1 1
        Safe .05 1 1
        Shelf .15 2 4
        SideTable .1 1 1
        SinkBasin 1 1 1
        StoveBurner 1 4 4
        Toaster 1 1 1
    """),
    "living room": _furniture("""
        ArmChair .95 1 2
        Cabinet .25 1 5
        CoffeeTable .75 1 2
        DiningTable .5 1 1
        Drawer .85 3 12
        Dresser .5 1 1
        GarbageCan 1 1 1
        Ottoman .15 1 1
        Safe .05 1 1
        Shelf .3 2 8
        SideTable .9 1 4
        Sofa 1 1 2
        TVStand .3 1 1
    """),
    "bedroom": _furniture("""
        ArmChair .15 1 2
        Bed 1 1 2
        Cabinet .1 1 3
        Desk .8 1 2
        DiningTable .1 1 1
        Drawer .95 3 11
        Dresser .55 1 1
        GarbageCan 1 1 1
        LaundryHamper .2 1 1
        Safe .2 1 1
        Shelf .7 2 7
        SideTable .6 1 2
    """),
    "bathroom": _furniture("""
        BathtubBasin .75 1 1
        Cabinet .45 2 7
        Cart .15 1 1
        CounterTop .8 1 2
        Drawer .55 3 8
        GarbageCan 1 1 1
        HandTowelHolder 1 1 3
        Shelf .3 1 4
        SideTable .1 1 1
        SinkBasin 1 1 2
        Toilet 1 1 1
        ToiletPaperHanger 1 1 1
        TowelHolder 1 1 2
    """),
}

OPENABLE = frozenset(("Cabinet", "Drawer", "Fridge", "Microwave", "Safe"))

_FOOD = "Apple Bread Egg Lettuce Potato Tomato"
_CROCKERY = "Bowl Cup Mug Plate"
_COOKWARE = "Kettle Pan Pot"
_CUTLERY = "ButterKnife Fork Knife Ladle Spatula Spoon"
_SPICES = "PepperShaker SaltShaker"
_BOTTLES = "Glassbottle WineBottle"
_SMALL = "CD CellPhone CreditCard KeyChain Pen Pencil RemoteControl Watch"
_PAPER = "Book Newspaper"
_ORNAMENTS = "AlarmClock Box Candle Statue TissueBox Vase WateringCan"
_WASHING = "Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle ToiletPaper"
_SPORT = "BaseballBat BasketBall TennisRacket"
_SOFT = "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl"

HOLDS: Mapping[str, frozenset[str]] = {
    receptacle: frozenset(kinds.split())
    for receptacle, kinds in {
        "ArmChair": _SOFT,
        "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
        "Bed": "BaseballBat BasketBall Book CellPhone Laptop Pillow TeddyBear TennisRacket",
        "Cabinet": f"{_CROCKERY} {_COOKWARE} {_SPICES} {_BOTTLES} {_PAPER} {_WASHING} Box CD Candle Ladle TissueBox "
        "Vase",
        "Cart": f"{_WASHING} Candle TissueBox",
        "CoffeeMachine": "Mug",
        "CoffeeTable": f"{_SMALL} {_PAPER} {_ORNAMENTS} Bowl Laptop Plate",
        "CounterTop": f"{_FOOD} {_CROCKERY} {_COOKWARE} {_CUTLERY} {_SPICES} {_BOTTLES} {_SMALL} {_WASHING} "
        "AlarmClock Book Candle Laptop Statue TissueBox Vase",
        "Desk": f"{_SMALL} {_ORNAMENTS} BasketBall Book Bowl Cloth Laptop Mug TennisRacket",
        "DiningTable": f"{_FOOD} {_CROCKERY} {_COOKWARE} {_CUTLERY} {_SPICES} {_BOTTLES} {_SMALL} {_PAPER} "
        f"{_ORNAMENTS} DishSponge Laptop SoapBottle SprayBottle",
        "Drawer": f"{_CUTLERY} {_SPICES} {_SMALL} {_PAPER} {_WASHING} Candle TissueBox",
        "Dresser": f"{_SMALL} {_PAPER} {_ORNAMENTS} {_SPORT} Bowl Cloth Laptop Mug Plate SprayBottle ToiletPaper",
        "Fridge": f"{_FOOD} {_CROCKERY} {_BOTTLES} Pan Pot",
        "GarbageCan": f"{_FOOD} CD Cloth DishSponge HandTowel Newspaper Pen Pencil SoapBar SoapBottle SprayBottle "
        "TissueBox ToiletPaper WineBottle",
        "HandTowelHolder": "HandTowel",
        "LaundryHamper": "Cloth",
        "Microwave": f"{_CROCKERY} Apple Bread Egg Glassbottle Potato Tomato",
        "Ottoman": _SOFT,
        "Safe": "CD CellPhone CreditCard KeyChain Statue Vase",
        "Shelf": f"{_CROCKERY} {_SPICES} {_BOTTLES} {_SMALL} {_PAPER} {_ORNAMENTS} {_WASHING} Kettle Pot",
        "SideTable": f"{_FOOD} {_CROCKERY} {_COOKWARE} {_CUTLERY} {_SPICES} {_SMALL} {_PAPER} {_ORNAMENTS} {_WASHING} "
        f"{_SPORT} Laptop WineBottle",
        "SinkBasin": f"{_CROCKERY} {_COOKWARE} {_CUTLERY} Apple Cloth DishSponge Egg Glassbottle HandTowel Lettuce "
        "Potato SoapBar Tomato",
        "Sofa": _SOFT,
        "StoveBurner": _COOKWARE,
        "TVStand": "TissueBox",
        "Toaster": "",
        "Toilet": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "ToiletPaperHanger": "ToiletPaper",
        "TowelHolder": "Towel",
    }.items()
}
"""Receptacle to the kinds of objects that it takes."""

# Kinds of objects per room: those that are always there, those that every other floor plan has, those that are rare.
THINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    room: (tuple(always.split()), tuple(often.split()), tuple(rarely.split()))
    for room, (always, often, rarely) in {
        "kitchen": (
            "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Knife Lettuce Mug Pan PepperShaker Plate Pot Potato "
            "SaltShaker SoapBottle Spatula Spoon Tomato",
            "Kettle Ladle WineBottle",
            "Book CellPhone CreditCard Glassbottle Pen Pencil SprayBottle Statue Vase",
        ),
        "living room": (
            "Box CreditCard KeyChain Laptop Pillow RemoteControl Statue",
            "Book CellPhone Newspaper Vase Watch WateringCan",
            "Bowl Candle Pen Pencil Plate TissueBox",
        ),
        "bedroom": (
            "AlarmClock Book CD CellPhone CreditCard KeyChain Laptop Pen Pencil Pillow",
            "BaseballBat BasketBall Bowl Box Mug TeddyBear TennisRacket",
            "Cloth RemoteControl Statue TissueBox Vase Watch",
        ),
        "bathroom": (
            "Candle Cloth HandTowel SoapBar SoapBottle SprayBottle ToiletPaper Towel",
            "DishSponge TissueBox",
            "",
        ),
    }.items()
}

# What one can look at and no more.
DECOR: Mapping[str, Mapping[str, int]] = {
    "kitchen": {"Chair": 1, "HousePlant": 1, "LightSwitch": 1, "Sink": 1, "StoveKnob": 4, "Window": 1},
    "living room": {"Chair": 3, "Curtains": 1, "FloorLamp": 1, "HousePlant": 1, "LightSwitch": 1, "Painting": 2}
    | {"Television": 1, "Window": 3},
    "bedroom": {"Blinds": 1, "Chair": 1, "HousePlant": 1, "LightSwitch": 1, "Mirror": 1, "Painting": 1, "Window": 2},
    "bathroom": {"Bathtub": 1, "LightSwitch": 1, "Mirror": 1, "PaperTowelRoll": 1, "Plunger": 1, "ScrubBrush": 1}
    | {"ShowerDoor": 1, "Sink": 1, "Window": 1},
}

LAMP = "DeskLamp"
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
LAMP_ROOMS = ("living room", "bedroom")

SINGLE = frozenset("BaseballBat BasketBall Laptop Box TeddyBear TennisRacket Towel WateringCan".split())
"""Kinds of which a room rarely has several."""

CLEANABLE = frozenset(
    f"{_CROCKERY} {_COOKWARE} {_CUTLERY} Apple Cloth DishSponge Egg Lettuce Potato SoapBar Tomato".split()
)
HEATABLE = frozenset("Apple Bread Cup Egg Mug Plate Potato Tomato".split())
COOLABLE = frozenset(f"{_FOOD} {_CROCKERY} Pan Pot WineBottle".split())
SLICEABLE = frozenset(_FOOD.split())
VESSELS = frozenset(f"{_CROCKERY} Box Pan Pot".split())


class FloorPlan(NamedTuple):
    """A room of some number.

    Attributes:
        number: as the simulator has them: kitchens from 1, then from 201, 301 and 401.
        room: what kind of room it is.
        receptacles: id to kind.
        places: id of a receptacle to its location.
        things: kinds of objects that are found there.
        homes: kind of object to the kinds of receptacles that take it, each with those that are there.
    """

    number: int
    room: str
    receptacles: dict[str, str]
    places: dict[str, str]
    things: tuple[str, ...]
    homes: dict[str, dict[str, list[str]]]


def plan_numbers(room: str, *, unseen: bool) -> range:
    """Return the floor plans of a kind of room, those that only `valid_unseen` has or those that the others share."""
    first = (0, 200, 300, 400)[ROOMS.index(room)] + 1
    last = first + _PLANS_PER_ROOM
    return range(last - _UNSEEN_PLANS, last) if unseen else range(first, last - _UNSEEN_PLANS)


def floor_plan(number: int) -> FloorPlan:
    """Furnish a floor plan; it depends on its number alone."""
    rng = random.Random(f"alfworld/floor plan/{number}")
    room = ROOMS[max(0, number // 100 - 1)]
    receptacles: dict[str, str] = {}
    places: dict[str, str] = {}
    for kind, furniture in FURNITURE[room].items():
        if rng.random() >= furniture.share:
            continue
        for _ in range(rng.randint(furniture.least, furniture.most)):
            receptacle = object_id(kind, rng)
            # One often reaches two drawers or cabinets from the same spot.
            last = next(reversed(receptacles), "")
            shared = kind in ("Cabinet", "Drawer", "Shelf") and receptacles.get(last) == kind and rng.random() < 0.15
            places[receptacle] = places[last] if shared else location_id(rng)
            receptacles[receptacle] = kind
    always, often, rarely = THINGS[room]
    things = [*always, *(k for k in often if rng.random() < 0.5), *(k for k in rarely if rng.random() < 0.2)]
    return _plan(number, room, receptacles, places, things)


def corner(plan: FloorPlan, most: int, rng: random.Random) -> FloorPlan:
    """Keep a few receptacles of a floor plan, each at a place of its own, and as many kinds of objects and two more.

    Among them are those without which there would be types of tasks that the room cannot have.
    """
    order = rng.sample(sorted(plan.receptacles), len(plan.receptacles))
    stands = LAMP_STANDS if plan.room in LAMP_ROOMS else ()
    needed = [*((kind,) for kind in ("SinkBasin", "Microwave", "Fridge")), stands]
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
    """Work out which of the things find a place."""
    present: dict[str, list[str]] = {}
    for receptacle, kind in receptacles.items():
        present.setdefault(kind, []).append(receptacle)
    homes = {thing: {kind: present[kind] for kind in sorted(present) if thing in HOLDS[kind]} for thing in things}
    return FloorPlan(number, room, receptacles, places, tuple(thing for thing in things if homes[thing]), homes)


_PARTS = {"SinkBasin": ("Sink", "SinkBasin"), "BathtubBasin": ("Bathtub", "BathtubBasin")}


def object_id(kind: str, rng: random.Random) -> str:
    """Invent an id as the simulator has them, a kind and a point in space, with its signs written out."""
    first, *last = _PARTS.get(kind, (kind,))
    # A list, and the number that rng.uniform(-4, 4) would give: a game has fifty ids, which took a tenth of its time.
    point = [_written_out(f"{8 * rng.random() - 4:+06.2f}") for _ in range(3)]
    return "_bar_".join([first, *point, *last])


def location_id(rng: random.Random) -> str:
    """Invent a place to stand: x, z, a quarter turn and an angle to look down."""
    x, z, turn, angle = rng.randint(-40, 40), rng.randint(-40, 40), rng.randrange(4), rng.choice((0, 30, 45, 60))
    return f"loc_bar_{_written_out(str(x))}_bar_{_written_out(str(z))}_bar_{turn}_bar_{angle}"


@functools.cache  # a number has few digits, and a game has a hundred of them
def _written_out(number: str) -> str:
    return number.replace("+", "_plus_").replace("-", "_minus_").replace(".", "_dot_")
