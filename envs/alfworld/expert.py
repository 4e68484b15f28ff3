"""The expert: the next command towards the goal, planned anew at each step, so that it can take over at any time.

It reads the world's state, so it wastes no step on searching. In the style "searching" it counts only on objects that
were shown, and looks into one receptacle after the other, in the order in which they are named.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agent_gym.envs.alfworld.world import STATES, TOOLS, AlfworldWorld

_Found = tuple[str, str]  # an object, and the receptacle that it is in


class Expert:
    """Knows the goal of a game, and the way to it."""

    def __init__(self, world: AlfworldWorld) -> None:
        self.world, self.game = world, world.game
        atoms = self.game.goal.atoms
        lamps = {atom[1] for atom in atoms if atom[0] == "istoggled"}
        kinds = {atom[1]: atom[2] for atom in atoms if atom[0] == "objecttype"}
        # The kind of object that is wanted, the type of receptacle to put it into or the lamp to look at it under, and
        # the command that has to change it before, such as "heat", if any.
        self.kind = next(kind for variable, kind in kinds.items() if variable not in lamps)
        self.lamp = next((kinds[lamp] for lamp in sorted(lamps)), None)
        self.receptacle = next((atom[2] for atom in atoms if atom[0] == "receptacletype"), "")
        predicates = {atom[0] for atom in atoms}
        self.verb = next((verb for verb, state in STATES.items() if f"is{state}" in predicates), None)

    def next_command(self, *, searching: bool = False) -> str:
        """Return the next command of a short way to the goal; `searching` uses only shown objects."""
        game, hand = self.game, self.world.hand
        known = [receptacle for receptacle in game.place if not searching or receptacle in self.world.seen]
        target = None if self.lamp else self._target()
        if hand is None:
            found = self._nearest(known)
            return self.fetch(found) if found else self._search()
        if game.kind_of.get(hand) != self.kind or (target and not self.world.can_hold(target, hand)):
            return self.put_away()
        if target is None:
            lamp = self._nearest(known, lamp=True)
            return (self.go(lamp[1]) or f"use {game.names[lamp[0]]}") if lamp else self._search()
        if self.verb and STATES[self.verb] not in self.world.states.get(hand, ()):
            tool = self._of_type(TOOLS[self.verb])[0]
            return self.go(tool) or f"{self.verb} {game.names[hand]} with {game.names[tool]}"
        return self.reach(target) or game.put_command(hand, target)

    def random_command(self, last: str, rng: np.random.Generator) -> str:
        """Return a command of the style "guessing": go anywhere and try. `last` is the command before, or ""."""
        world, game = self.world, self.game
        carries = world.hand is not None and game.kind_of.get(world.hand) == self.kind
        if world.hand is not None and not (carries and self.lamp):
            return self.next_command()
        verb = "use" if carries else "take"
        here = game.here.get(world.location, ())
        if not here or last.startswith(verb):
            return f"go to {game.names[rng.choice([r for r in game.place if r not in here])]}"
        receptacle = rng.choice(here)
        if not world.is_open(receptacle):
            return f"open {game.names[receptacle]}"
        if carries:
            lamp = self._nearest(game.place, lamp=True)
            return f"use {game.names[lamp[0]]}" if lamp else "look"
        found = self._nearest(game.place)
        return f"take {game.names[found[0]]} from {game.names[receptacle]}" if found else "look"

    # The way to a command. `go` and `reach` return None where one is there.

    def go(self, receptacle: str) -> str | None:
        return None if self._is_here(receptacle) else f"go to {self.game.names[receptacle]}"

    def reach(self, receptacle: str) -> str | None:
        closed = self._is_here(receptacle) and not self.world.is_open(receptacle)
        return f"open {self.game.names[receptacle]}" if closed else self.go(receptacle)

    def fetch(self, found: _Found) -> str:
        names, (thing, receptacle) = self.game.names, found
        return self.reach(receptacle) or f"take {names[thing]} from {names[receptacle]}"

    def put_away(self) -> str:
        hand = self.world.hand or ""
        takers = [r for r in self.game.place if self.world.can_hold(r, hand)]
        if not takers:
            # Some official games have things that no receptacle takes back: the agent then carries it to the end.
            return "inventory"
        taker = min(takers, key=lambda r: (not self._is_here(r), not self.world.is_open(r)))
        return self.reach(taker) or self.game.put_command(hand, taker)

    def _search(self) -> str:
        # A receptacle at the same place as the last one can be reached already, and yet its content was not shown.
        unseen = next(receptacle for receptacle in self.game.place if receptacle not in self.world.seen)
        return self.reach(unseen) or f"examine {self.game.names[unseen]}"

    # The places of objects.

    def _target(self) -> str:
        """Choose the receptacle that has most of the wanted objects, then one that is here, then the first."""
        return max(self._of_type(self.receptacle), key=lambda r: (len(self._placed(r)), self._is_here(r)))

    def _placed(self, receptacle: str) -> list[str]:
        return [thing for thing in self.world.inside.get(receptacle, ()) if self._is_done(thing)]

    def _is_done(self, thing: str) -> bool:
        done = self.verb is None or STATES[self.verb] in self.world.states.get(thing, ())
        return done and self.game.kind_of.get(thing) == self.kind

    def _nearest(self, known: Iterable[str], *, lamp: bool = False) -> _Found | None:
        """Choose the object to take, or the lamp, among the known places: the one that needs the fewest commands."""
        world, game, kind = self.world, self.game, self.lamp if lamp else self.kind
        able = game.able["toggleable"] if lamp else game.able["pickupable"]
        allowed = able if self.lamp else able.difference(self._placed(self._target()))
        found = [(thing, r) for r in known for thing in sorted(world.inside.get(r, ())) if thing in allowed]
        # An object that has the wanted state already need only be carried over.
        return min(
            (one for one in found if game.kind_of.get(one[0]) == kind),
            key=lambda one: (
                not (self.verb and self._is_done(one[0])),
                not self._is_here(one[1]),
                not world.is_open(one[1]),
            ),
            default=None,
        )

    def _of_type(self, type_: str) -> list[str]:
        return [receptacle for receptacle in self.game.place if self.game.type_of.get(receptacle) == type_]

    def _is_here(self, receptacle: str) -> bool:
        return self.game.place[receptacle] == self.world.location
