"""Games and commands for the tests of ALFWorld, and the traces that the original engine left.

A trace is what TextWorld said to a fixed sequence of commands. `python tests/alfworld_tools.py FOLDER` records all of
them anew, where the extra `alfworld` is installed and FOLDER holds official games in `json_2.1.1/valid_seen`; that is
needed after a change to the generator, and only then.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_gym.envs.alfworld import expert
from agent_gym.envs.alfworld.data import load_game
from agent_gym.envs.alfworld.embedded.files import GRAMMARS
from agent_gym.envs.alfworld.engines import NativeEngine, TextWorldEngine
from agent_gym.envs.alfworld.game import Game
from agent_gym.envs.alfworld.world import KNIVES, TOOLS, View, World

TRACES = Path(__file__).parent / "data" / "alfworld_traces.json"

HOSTILE = (
    "",
    " \t\n",
    "x" * 100,
    "look\0",
    "LOOK",
    "  look\n",
    "look\tinventory",
    "look; inventory",
    "go to",
    "go  to drawer 1",
    "take mug 99 from shelf 1",
    "\u202elook",
    "lo\u00f6k \U0001f600",
    "\x1b[2Jlook",
    "[look]",
    "{o.name}",
    "#look.feedback#",
    "help",
    "examine",
    "__class__",
)


def adventure(game: Game, rng: random.Random, length: int) -> list[str]:
    """Return commands: some at random, some hostile, chores that random ones hardly ever come to, and the expert's."""
    world = World(game)
    view = world.view
    commands: list[str] = []

    def do(command: str | None) -> None:
        nonlocal view
        if command is not None:
            commands.append(command)
            view = world.step(command)

    # What no receptacle takes back fills the hand for good, and nothing else can be done after that.
    kept = {
        f"take {game.names[thing]} from"
        for thing in game.pickupable
        if not any(world.can_hold(place, thing) for place in game.place)
    }
    for _ in range(length):
        hostile = rng.random() < 0.2
        command = rng.choice(HOSTILE if hostile else view.admissible)
        if command.rpartition(" ")[0].rpartition(" ")[0] not in kept:
            do(command)
    put_away(world, do)
    open_and_close(world, do)
    slice_and_treat(world, rng, do)
    examine_vessel(world, do)
    move_beside(world, do)
    while not view.won:
        do(expert.next_command(world))
    return commands


def open_and_close(world: World, do: Callable[[str | None], None]) -> None:
    """Open something that is closed, close it, and look."""
    for place in world.game.place:
        if place in world.game.openable and place not in world.opened:
            name = world.game.names[place]
            do(expert._go(world, place))
            for verb in ("open", "close", "examine"):
                do(f"{verb} {name}")
            return


def slice_and_treat(world: World, rng: random.Random, do: Callable[[str | None], None]) -> None:
    """Slice something with a knife, then clean, heat and cool it, and look at it each time."""
    names = world.game.names
    lying = [(thing, place) for place in world.game.place for thing in sorted(world.inside[place])]
    knives = [pair for pair in lying if world.game.kind_of[pair[0]] in KNIVES]
    food = [pair for pair in lying if pair[0] in world.game.sliceable]
    if not knives or not food:
        return
    knife, (thing, place) = rng.choice(knives), rng.choice(food)
    if rng.random() < 0.6:
        fetch(world, *knife, do)
        do(f"examine {names[knife[0]]}")
        do(expert._go(world, place))
        do(f"slice {names[thing]} with {names[knife[0]]}")
        put_away(world, do)
    fetch(world, thing, place, do)
    for verb in rng.sample(sorted(TOOLS), 3):
        tool = next(place for place in world.game.place if world.game.type_of[place] == TOOLS[verb])
        do(expert._go(world, tool))
        do(f"{verb} {names[thing]} with {names[tool]}")
        do(f"examine {names[thing]}")
    do("inventory")
    put_away(world, do)


def examine_vessel(world: World, do: Callable[[str | None], None]) -> None:
    """Take something that could hold other things, and look at it."""
    for place in world.game.place:
        for thing in sorted(world.inside[place] & world.game.vessels & world.game.pickupable):
            fetch(world, thing, place, do)
            do(f"examine {world.game.names[thing]}")
            put_away(world, do)
            return


def move_beside(world: World, do: Callable[[str | None], None]) -> None:
    """Move something from one receptacle into another at the same place, and look."""
    for here in world.game.here.values():
        for one in here:
            for other in here:
                for thing in sorted(world.inside[one]):
                    if one != other and thing in world.game.pickupable and world.can_hold(other, thing):
                        fetch(world, thing, one, do)
                        do("look")
                        do(expert._reach(world, other))
                        do(world.game.put_command(thing, other))
                        do("look")
                        return


def put_away(world: World, do: Callable[[str | None], None]) -> None:
    """Empty the hand."""
    while world.hand:
        do(expert._put_away(world))


def fetch(world: World, thing: str, place: str, do: Callable[[str | None], None]) -> None:
    """Go to a receptacle, open it if it is closed, and take something."""
    while world.hand is None:
        do(expert._fetch(world, (thing, place)))


def fingerprint(view: View) -> list[Any]:
    """A view in few characters: the text itself, the commands as a digest, and whether it is won."""
    commands = hashlib.sha256("\n".join(view.admissible).encode()).hexdigest()[:16]
    return [view.text, commands, view.won]


def problem_digest(game: Game) -> str:
    """Tell one generated game from another of the same name."""
    return hashlib.sha256(game.data["pddl_problem"].encode()).hexdigest()[:16]


def trace_games() -> Iterator[tuple[str, str | None]]:
    """Yield what the traces are of: generated games of each type and split in both grammars, and official ones."""
    for number in range(6):
        yield f"embedded/{('train', 'valid_seen', 'valid_unseen')[number % 3]}/{number}", GRAMMARS[number % 2]
        yield f"embedded/{('valid_unseen', 'train', 'valid_seen')[number % 3]}/{number + 6}", GRAMMARS[1 - number % 2]
    for name in OFFICIAL_GAMES:
        yield name, None


OFFICIAL_GAMES = (
    "pick_and_place_simple-Pencil-None-Dresser-330",
    "look_at_obj_in_light-Box-None-DeskLamp-205",
    "pick_clean_then_place_in_recep-Ladle-None-DiningTable-27",
    "pick_heat_then_place_in_recep-Potato-None-Fridge-12",
    "pick_cool_then_place_in_recep-Cup-None-Microwave-17",
    "pick_two_obj_and_place-Glassbottle-None-Shelf-1",
)


def official_game(root: Path, task: str) -> Path:
    """The first trial of a task of valid_seen."""
    return min((root / "json_2.1.1" / "valid_seen" / task).glob("*/game.tw-pddl"))


def replay(engine: NativeEngine, game: Game, commands: list[str]) -> list[list[Any]]:
    """Everything an engine says to commands."""
    return [fingerprint(engine.start(game)), *(fingerprint(engine.step(command)) for command in commands)]


def record(root: Path) -> None:
    """Let TextWorld play and write down what it says."""
    engine, traces = TextWorldEngine(), []
    for number, (name, grammar) in enumerate(trace_games()):
        game = load_game(name if name.startswith("embedded/") else official_game(root, name), grammar)
        commands = adventure(game, random.Random(number), 20)
        said = replay(engine, game, commands)
        traces.append(
            {"game": name, "grammar": grammar, "problem": problem_digest(game), "commands": commands, "said": said}
        )
        print(name, len(commands))
    engine.close()
    lines = ",\n".join(json.dumps(trace) for trace in traces)
    TRACES.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
