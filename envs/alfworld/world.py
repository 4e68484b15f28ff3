"""The native engine: ALFWorld's text world in plain Python, and word for word.

It plays any official game file, of either grammar (game.py), and gives the observations, admissible commands, scores
and ends that TextWorld gives, several hundred times as fast. A world belongs to one episode at a time.

Some behaviour of the original looks like a slip and is kept, because policies and published numbers have met it:

- Away from all receptacles, `look` sees "nothing"; only the beginning of an episode lists the things in the room.
- Only the object in the hand can be examined. Heating, cooling and cleaning need no open door.
- An object taken out of one receptacle and put into another at the same place is listed as next to them.
- `use` switches a lamp on, again and again, and never off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from agent_gym.envs.alfworld.game import AlfworldGame

KNIVES = ("knifetype", "butterknifetype")
TOOLS = {"clean": "sinkbasintype", "heat": "microwavetype", "cool": "fridgetype"}
"""Commands that change an object, to the receptacle that they need."""
STATES = {"clean": "clean", "heat": "hot", "cool": "cool"}
"""The same commands, to the state that they bring about."""
NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_IN_THE_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see"
COMMANDS = {
    "look": "look around your current location",
    "inventory": "check your current inventory",
    "go to (receptacle)": "move to a receptacle",
    "open (receptacle)": "open a receptacle",
    "close (receptacle)": "close a receptacle",
    "take (object) from (receptacle)": "take an object from a receptacle",
    "move (object) to (receptacle)": "place an object in or on a receptacle",
    "examine (something)": "examine a receptacle or an object",
    "use (object)": "use an object",
    "heat (object) with (receptacle)": "heat an object using a receptacle",
    "clean (object) with (receptacle)": "clean an object using a receptacle",
    "cool (object) with (receptacle)": "cool an object using a receptacle",
    "slice (object) with (object)": "slice an object using a sharp object",
}
# The column of one line is off by two in the original.
_HELP_LINES = [f"  {one + ':':<{32 if one.startswith('move') else 34}}{what}\n" for one, what in COMMANDS.items()]
HELP = "Available commands:\n" + "".join(_HELP_LINES)


class View(NamedTuple):
    """The answer of an engine: the observation, all commands with an effect (sorted), and whether it is won."""

    text: str
    admissible: tuple[str, ...]
    won: bool


class AlfworldWorld:
    """One episode of a game."""

    def __init__(self, game: AlfworldGame) -> None:
        self.game, start = game, game.start
        self.agent, self.location = start["atlocation"][0]
        self.hand = next((fact[1] for fact in start["holds"]), None)  # the object that the agent holds
        self.opened = {fact[0] for fact in start["opened"]}
        self.inside: dict[str, set[str]] = defaultdict(set)  # receptacle to its content
        self.states: dict[str, set[str]] = defaultdict(set)  # object to its states, such as {"clean", "hot"}
        self.seen: set[str] = set()  # receptacles whose content was shown
        self._near: dict[str, set[str]] = defaultdict(set)
        self._taken_from: set[tuple[str, str]] = set()
        for thing, receptacle in start["inreceptacle"]:
            self.inside[receptacle].add(thing)
        for thing, place in start["objectatlocation"]:
            self._near[place].add(thing)
        for state in ("hot", "cool", "clean", "toggled", "sliced"):
            for fact in start[f"is{state}"]:
                self.states[fact[0]].add(state)
        self._true = set(game.at_start)
        self.progress = game.goal.progress(self._true)
        here = game.here.get(self.location)
        seen = self._look() if here else f"{_IN_THE_MIDDLE} {listing(game.names[r] for r in game.place)}."
        self.view = self._view(f"{WELCOME}\n\n{seen}\n\nYour task is to: {game.task}")

    def step(self, command: str) -> View:
        """Carry out a command, or do nothing if it is not admissible as it is written."""
        action = self._actions.get(command.strip())
        self.view = self._view(action()) if action else self.view._replace(text=NOTHING_HAPPENS)
        return self.view

    def _view(self, text: str) -> View:
        self._actions = self._possible()
        return View(text, tuple(sorted(self._actions)), self.progress == 1.0)

    def _set(self, value: bool, *fact: str) -> None:
        if fact in self.game.goal.facts:
            (self._true.add if value else self._true.discard)(fact)
            self.progress = self.game.goal.progress(self._true)

    # The possible actions.

    def _possible(self) -> dict[str, Callable[[], str]]:
        game, names, hand = self.game, self.game.names, self.hand
        actions: dict[str, Callable[[], str]] = {"look": self._look, "inventory": self._inventory}
        if game.has_help:
            actions["help"] = partial(str, HELP)
        for command, receptacle in game.go_commands.items():
            if game.place[receptacle] != self.location:
                actions[command] = partial(self._go, receptacle)
        for receptacle in game.here.get(self.location, ()):
            name, reachable = names[receptacle], self.is_open(receptacle)
            actions[f"examine {name}"] = partial(self._examine, receptacle)
            if receptacle in game.able["openable"]:
                actions[f"{'close' if reachable else 'open'} {name}"] = partial(self._turn, receptacle, not reachable)
            for thing in self.inside.get(receptacle, ()):
                if reachable and hand is None and thing in game.able["pickupable"]:
                    actions[f"take {names[thing]} from {name}"] = partial(self._take, thing, receptacle)
                if thing in game.able["toggleable"]:
                    actions[f"use {names[thing]}"] = partial(self._use, thing)
            if hand is not None:
                if reachable and self.can_hold(receptacle, hand):
                    actions[game.put_command(hand, receptacle)] = partial(self._put, hand, receptacle)
                for verb, tool in TOOLS.items():
                    if hand in game.able[f"{verb}able"] and game.type_of.get(receptacle) == tool:
                        actions[f"{verb} {names[hand]} with {name}"] = partial(self._change, verb, hand, receptacle)
        if hand is not None:
            actions[f"examine {names[hand]}"] = partial(self._inspect, hand)
            if game.kind_of.get(hand) in KNIVES:
                for thing in self._near.get(self.location, set()) & game.able["sliceable"]:
                    actions[f"slice {names[thing]} with {names[hand]}"] = partial(self._slice, thing, hand)
        return actions

    def can_hold(self, receptacle: str, thing: str) -> bool:
        return (self.game.type_of.get(receptacle, ""), self.game.kind_of.get(thing, "")) in self.game.fits

    def is_open(self, receptacle: str) -> bool:
        return receptacle not in self.game.able["openable"] or receptacle in self.opened

    # The actions, and the sentences that report them.

    def _go(self, receptacle: str) -> str:
        game = self.game
        self._set(False, "atlocation", self.agent, self.location)
        self.location = game.place[receptacle]
        self._set(True, "atlocation", self.agent, self.location)
        # The older grammar names the location, which nothing else does: "loc 12", numbered as receptacles are.
        where = game.names[self.location] if game.legacy else game.names[receptacle]
        return f"You arrive at {where}. {self._examine(receptacle)}"

    def _turn(self, receptacle: str, open: bool) -> str:
        (self.opened.add if open else self.opened.discard)(receptacle)
        self._set(open, "opened", receptacle)
        name = self.game.names[receptacle]
        return f"You open the {name}. {self._examine(receptacle)}" if open else f"You close the {name}."

    def _take(self, thing: str, receptacle: str) -> str:
        self.inside[receptacle].discard(thing)
        self._near[self.location].discard(thing)
        self._taken_from.add((thing, receptacle))
        self._hold(thing, receptacle, True)
        return f"You pick up the {self.game.names[thing]} from the {self.game.names[receptacle]}."

    def _put(self, thing: str, receptacle: str) -> str:
        self.inside[receptacle].add(thing)
        self._near[self.location].add(thing)
        self._taken_from.discard((thing, receptacle))
        self._hold(thing, receptacle, False)
        what, where = self.game.names[thing], self.game.names[receptacle]
        return f"You put the {what} in/on the {where}." if self.game.legacy else f"You move the {what} to the {where}."

    def _hold(self, thing: str, receptacle: str, held: bool) -> None:
        self.hand = thing if held else None
        self._set(held, "holds", self.agent, thing)
        self._set(not held, "inreceptacle", thing, receptacle)
        self._set(not held, "objectatlocation", thing, self.location)

    def _change(self, verb: str, thing: str, receptacle: str) -> str:
        self._mark(thing, STATES[verb])
        if undone := {"heat": "cool", "cool": "hot"}.get(verb):
            self.states[thing].discard(undone)
            self._set(False, f"is{undone}", thing)
        return f"You {verb} the {self.game.names[thing]} using the {self.game.names[receptacle]}."

    def _use(self, thing: str) -> str:
        self._mark(thing, "toggled")
        return f"You turn on the {self.game.names[thing]}."

    def _slice(self, thing: str, knife: str) -> str:
        self._mark(thing, "sliced")
        return f"You sliced the {self.game.names[thing]} with the {self.game.names[knife]}."

    def _mark(self, thing: str, state: str) -> None:
        self.states[thing].add(state)
        self._set(True, f"is{state}", thing)

    def _inventory(self) -> str:
        return f"You are carrying: a {self.game.names[self.hand]}." if self.hand else "You are not carrying anything."

    def _look(self) -> str:
        names, here = self.game.names, self.game.here.get(self.location)
        if not here:
            return f"{_IN_THE_MIDDLE} nothing."
        moved = [o for o in sorted(self._near.get(self.location, ())) for r in here if (o, r) in self._taken_from]
        facing = _joined([names[r] for r in here])
        return f"You are facing the {facing}. Next to it, you see {listing(names[o] for o in moved)}."

    def _examine(self, receptacle: str) -> str:
        name = self.game.names[receptacle]
        if not self.is_open(receptacle):
            return f"The {name} is closed."
        self.seen.add(receptacle)
        content = listing(self.game.names[o] for o in sorted(self.inside.get(receptacle, ())))
        if receptacle in self.game.able["openable"]:
            return f"The {name} is open. In it, you see {content}."
        return f"On the {name}, you see {content}."

    def _inspect(self, thing: str) -> str:
        able, name, state = self.game.able, self.game.names[thing], self.states.get(thing, set())
        if thing in able["isreceptacleobject"]:
            inner = sorted(one for one, outer in self.game.start["inreceptacleobject"] if outer == thing)
            return f"This is a normal {name}. In it, you see {listing(self.game.names[one] for one in inner)}."
        look = " and ".join(one for one in ("hot", "cool", "clean") if one in state)
        if look:
            look = f"{look} sliced" if "sliced" in state else "cold" if look == "cool" else look
            return f"This is a {look} {name}."
        if thing in able["toggleable"] and "toggled" in state:
            return f"This {name} is on."
        if thing in able["sliceable"] and "sliced" in state:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


def listing(names: Iterable[str]) -> str:
    """List things with the article, which is "a" before any word; "nothing" if there are none."""
    named = [f"a {name}" for name in names]
    return _joined(named) if named else "nothing"
