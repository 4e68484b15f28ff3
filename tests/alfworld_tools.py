"""Games and commands for the tests of ALFWorld, and the traces that the original engine left.

A trace is what TextWorld answered to a fixed sequence of commands. `python tests/alfworld_tools.py FOLDER` records all
of them anew, where the extra `alfworld` is installed and FOLDER holds official games in `json_2.1.1/valid_seen`; that
is needed after a change to the generator, and only then.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from agent_gym.envs.alfworld.data import load_game
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.game import AlfworldGame
from agent_gym.envs.alfworld.original import TextWorld
from agent_gym.envs.alfworld.world import KNIVES, TOOLS, AlfworldWorld

TRACES = Path(__file__).parent / "data" / "alfworld_traces.json"

HOSTILE = (
    *("", " \t\n", "x" * 100, "look\0", "LOOK", "  look\n", "look\tinventory", "look; inventory", "go to"),
    *("go  to drawer 1", "take mug 99 from shelf 1", "\u202elook", "lo\u00f6k \U0001f600", "\x1b[2Jlook", "[look]"),
    *("{o.name}", "#look.feedback#", "help", "examine", "__class__"),
)


class Adventure:
    """Commands: some at random, some hostile, chores that random ones hardly ever come to, and the expert's."""

    def __init__(self, game: AlfworldGame, rng: random.Random, length: int) -> None:
        self.game, self.world, self.rng = game, AlfworldWorld(game), rng
        self.expert = Expert(self.world)
        self.commands: list[str] = []
        # What no receptacle takes back fills the hand for good, and nothing else can be done after that.
        kept = {
            f"take {game.names[thing]} from"
            for thing in game.able["pickupable"]
            if not any(self.world.can_hold(place, thing) for place in game.place)
        }
        for _ in range(length):
            command = rng.choice(HOSTILE if rng.random() < 0.2 else self.world.view.admissible)
            if command.rpartition(" ")[0].rpartition(" ")[0] not in kept:
                self.do(command)
        self.empty_hand()
        self.slice_and_treat()
        self.do_chores()
        while not self.world.view.won:
            self.do(self.expert.next_command())

    def do(self, *commands: str | None) -> None:
        for command in (one for one in commands if one is not None):
            self.commands.append(command)
            self.world.step(command)

    def empty_hand(self) -> None:
        while self.world.hand:
            self.do(self.expert.put_away())

    def fetch(self, thing: str, place: str) -> None:
        while self.world.hand is None:
            self.do(self.expert.fetch((thing, place)))

    def slice_and_treat(self) -> None:
        """Slice something with a knife, then clean, heat and cool it, and look at it each time."""
        names = self.game.names
        lying = [(thing, place) for place in self.game.place for thing in sorted(self.world.inside[place])]
        knives = [pair for pair in lying if self.game.kind_of[pair[0]] in KNIVES]
        food = [pair for pair in lying if pair[0] in self.game.able["sliceable"]]
        if not knives or not food:
            return
        knife, (thing, place) = self.rng.choice(knives), self.rng.choice(food)
        if self.rng.random() < 0.6:
            self.fetch(*knife)
            self.do(f"examine {names[knife[0]]}", self.expert.go(place), f"slice {names[thing]} with {names[knife[0]]}")
            self.empty_hand()
        self.fetch(thing, place)
        for verb in self.rng.sample(sorted(TOOLS), 3):
            tool = next(place for place in self.game.place if self.game.type_of[place] == TOOLS[verb])
            self.do(self.expert.go(tool), f"{verb} {names[thing]} with {names[tool]}", f"examine {names[thing]}")
        self.do("inventory")
        self.empty_hand()

    def do_chores(self) -> None:
        """Open and close something, examine a vessel, and move something to another receptacle at the same place."""
        names, able, place_of = self.game.names, self.game.able, self.game.place
        for place in [place for place in place_of if not self.world.is_open(place)][:1]:
            self.do(self.expert.go(place), *(f"{verb} {names[place]}" for verb in ("open", "close", "examine")))
        lying = [(thing, place) for place in place_of for thing in sorted(self.world.inside[place])]
        lying = [(thing, place) for thing, place in lying if thing in able["pickupable"]]
        for thing, place in [pair for pair in lying if pair[0] in able["isreceptacleobject"]][:1]:
            self.fetch(thing, place)
            self.do(f"examine {names[thing]}")
            self.empty_hand()
        lying = [(thing, place) for thing, place in lying if thing in self.world.inside[place]]
        pairs = [(thing, place, other) for thing, place in lying for other in self.game.here[place_of[place]]]
        for thing, place, other in [(a, b, c) for a, b, c in pairs if b != c and self.world.can_hold(c, a)][:1]:
            self.fetch(thing, place)
            self.do("look", self.expert.reach(other), self.game.put_command(thing, other), "look")


def replay(game: AlfworldGame, commands: list[str], original: TextWorld | None = None) -> list[list[Any]]:
    """Everything that the native engine answers to commands; `original` has to answer the same.

    Of each view the text itself, the admissible commands as a digest, and whether it is won.
    """
    world = AlfworldWorld(game)
    views = [world.view, *(world.step(command) for command in commands)]
    if original:
        original.check(views[0], game=game.data)
        for command, view in zip(commands, views[1:], strict=True):
            original.check(view, command=command)
    return [[view.text, digest("\n".join(view.admissible)), view.won] for view in views]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def problem_digest(game: AlfworldGame) -> str:
    """Tells one generated game from another of the same name."""
    return digest(game.data["pddl_problem"])


def official_game(root: Path, task: str) -> Path:
    """The first trial of a task of valid_seen."""
    return min((root / "json_2.1.1" / "valid_seen" / task).glob("*/game.tw-pddl"))


def record(root: Path) -> None:
    """Let TextWorld play the games of the traces anew: each type and split in both grammars, and official ones."""
    original, traces = TextWorld(), []
    for number, trace in enumerate(json.loads(TRACES.read_text(encoding="utf-8"))):
        name, grammar = trace["game"], trace["grammar"]
        game = load_game(name if name.startswith("embedded/") else official_game(root, name), grammar)
        commands = Adventure(game, random.Random(number), 20).commands
        trace |= {"problem": problem_digest(game), "commands": commands, "said": replay(game, commands, original)}
        traces.append(json.dumps(trace))
    original.close()
    TRACES.write_text("[\n" + ",\n".join(traces) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
