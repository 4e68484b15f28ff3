"""The expert: the next command towards the goal, planned anew at each step, so that it can take over at any time.

It reads the world's state, so it wastes no step on searching. In the style "searching" it counts on nothing that was
not shown, and looks into one receptacle after the other, in the order in which they are named.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent_gym.envs.alfworld.game import Game
from agent_gym.envs.alfworld.world import TOOLS, World

_MADE_BY = {"isclean": "clean", "ishot": "heat", "iscool": "cool"}


class Wanted:
    """What a goal asks for.

    Attributes:
        kind: of the object or objects, such as "appletype".
        receptacle: the type of receptacle to put them into, or
        lamp: the kind of lamp to switch on beside it.
        state: what has to be done to the object before, such as "ishot".
    """

    def __init__(self, game: Game) -> None:
        atoms = game.goal.atoms
        lamps = {atom[1] for atom in atoms if atom[0] == "istoggled"}
        kinds = {atom[1]: atom[2] for atom in atoms if atom[0] == "objecttype"}
        things = [variable for variable in kinds if variable not in lamps]
        self.kind = kinds[things[0]]
        self.lamp = next((kinds[lamp] for lamp in sorted(lamps)), None)
        self.receptacle = next((atom[2] for atom in atoms if atom[0] == "receptacletype"), None)
        self.state = next((atom[0] for atom in atoms if atom[0] in _MADE_BY), None)


def next_command(world: World, *, searching: bool = False) -> str:
    """Return the next command towards the goal, of a short way; `searching` acts on what was shown alone."""
    game, wanted = world.game, Wanted(world.game)
    known = [receptacle for receptacle in game.place if not searching or receptacle in world.seen]
    target = None if wanted.lamp else _target(world, wanted)
    hand = world.hand
    if hand is None:
        found = _nearest(world, wanted, target, known)
        return _fetch(world, found) if found else _search(world)
    if game.kind_of.get(hand) != wanted.kind or (target and not world.can_hold(target, hand)):
        return _put_away(world)
    if target is None:
        lamp = _lamp(world, wanted, known)
        return (_go(world, lamp[1]) or f"use {game.names[lamp[0]]}") if lamp else _search(world)
    if wanted.state and wanted.state.removeprefix("is") not in world.states.get(hand, ()):
        verb = _MADE_BY[wanted.state]
        tool = _of_type(game, TOOLS[verb])[0]
        return _go(world, tool) or f"{verb} {game.names[hand]} with {game.names[tool]}"
    return _reach(world, target) or game.put_command(hand, target)


def guess(world: World, last: str, rng: np.random.Generator) -> str:
    """Return the next command of one who goes anywhere and tries; `last` is the command before, "" at the start."""
    game, wanted = world.game, Wanted(world.game)
    carries = world.hand is not None and game.kind_of.get(world.hand) == wanted.kind
    if world.hand is not None and not (carries and wanted.lamp):
        return next_command(world)
    verb = "use" if carries else "take"
    here = game.here.get(world.location, ())
    if not here or last.startswith(verb):
        return f"go to {game.names[rng.choice([r for r in game.place if r not in here])]}"
    receptacle = rng.choice(here)
    if not _is_open(world, receptacle):
        return f"open {game.names[receptacle]}"
    everywhere = list(game.place)
    if carries:
        lamp = _lamp(world, wanted, everywhere)
        return f"use {game.names[lamp[0]]}" if lamp else "look"
    found = _nearest(world, wanted, None if wanted.lamp else _target(world, wanted), everywhere)
    return f"take {game.names[found[0]]} from {game.names[receptacle]}" if found else "look"


def _search(world: World) -> str:
    """Look into the next receptacle; one that stands at the same place as the last is in reach, and yet not seen."""
    unseen = next(receptacle for receptacle in world.game.place if receptacle not in world.seen)
    return _reach(world, unseen) or f"examine {world.game.names[unseen]}"


def _target(world: World, wanted: Wanted) -> str:
    """Choose the receptacle: the one that has most of what it should have, then one that is here, then the first."""
    candidates = _of_type(world.game, wanted.receptacle or "")
    return max(
        candidates,
        key=lambda r: (len(_placed(world, wanted, r)), world.game.place[r] == world.location, -candidates.index(r)),
    )


def _placed(world: World, wanted: Wanted, receptacle: str) -> list[str]:
    return [thing for thing in world.inside.get(receptacle, ()) if _is_done(world, wanted, thing)]


def _is_done(world: World, wanted: Wanted, thing: str) -> bool:
    done = not wanted.state or wanted.state.removeprefix("is") in world.states.get(thing, ())
    return done and world.game.kind_of.get(thing) == wanted.kind


def _nearest(world: World, wanted: Wanted, target: str | None, known: Sequence[str]) -> tuple[str, str] | None:
    """Choose what to take, and from which of the known receptacles: what needs the fewest commands."""
    game = world.game
    placed = set(_placed(world, wanted, target)) if target else set()
    found = [
        (thing, receptacle)
        for receptacle in known
        for thing in sorted(world.inside.get(receptacle, ()))
        if game.kind_of.get(thing) == wanted.kind and thing in game.pickupable and thing not in placed
    ]
    return min(
        found,
        key=lambda pair: (
            # What has the wanted state already need only be carried over.
            not (wanted.state and _is_done(world, wanted, pair[0])),
            game.place[pair[1]] != world.location,
            not _is_open(world, pair[1]),
        ),
        default=None,
    )


def _fetch(world: World, pair: tuple[str, str]) -> str:
    thing, receptacle = pair
    names = world.game.names
    return _reach(world, receptacle) or f"take {names[thing]} from {names[receptacle]}"


def _lamp(world: World, wanted: Wanted, known: Sequence[str]) -> tuple[str, str] | None:
    game = world.game
    lamps = [
        (thing, receptacle)
        for receptacle in known
        for thing in sorted(world.inside.get(receptacle, ()))
        if game.kind_of.get(thing) == wanted.lamp and thing in game.toggleable
    ]
    return min(lamps, key=lambda pair: game.place[pair[1]] != world.location, default=None)


def _put_away(world: World) -> str:
    game, hand = world.game, world.hand or ""
    takers = [r for r in game.place if world.can_hold(r, hand)]
    if not takers:
        # Some official games have things that no receptacle takes back: the agent then carries it to the end.
        return "inventory"
    taker = min(takers, key=lambda r: (game.place[r] != world.location, not _is_open(world, r)))
    return _reach(world, taker) or game.put_command(hand, taker)


def _reach(world: World, receptacle: str) -> str | None:
    """Return the next command on the way into a receptacle; None if it can be reached into."""
    step = _go(world, receptacle)
    if step is None and not _is_open(world, receptacle):
        return f"open {world.game.names[receptacle]}"
    return step


def _is_open(world: World, receptacle: str) -> bool:
    return receptacle not in world.game.openable or receptacle in world.opened


def _go(world: World, receptacle: str) -> str | None:
    return None if world.game.place[receptacle] == world.location else f"go to {world.game.names[receptacle]}"


def _of_type(game: Game, type_: str) -> list[str]:
    return [receptacle for receptacle in game.place if game.type_of.get(receptacle) == type_]
