"""What ALFWorld costs: the native engine beside TextWorld, on the same games and commands, and memory per environment.

    pip install 'agentic-gym[alfworld]'            # TextWorld; without it that side is left out
    python benchmarks/alfworld.py                # ten minutes, nearly all of them TextWorld's
    python benchmarks/alfworld.py --data FOLDER  # official games instead of generated ones

Each round takes one game file, and each side begins it and does the same commands in it: twenty admissible ones at
random, then the expert's. The sides take turns, game by game, so that a busy machine slows both. What they say is
compared, and the script stops if it differs. Sides:

    engine      `AlfworldWorld`, the native engine alone
    env         `AgentR1/ALFWorld-v0` around it, with its calls, transcript and records
    textworld   the original engine with ALFWorld's names, in one process for all games

Rows: `begin` is from the file to the first observation, with nothing cached; `begin again` the same for a game that was
parsed before, which TextWorld does not distinguish; `step` is one command with its admissible commands; `episode` is
the beginning and all steps. Milliseconds of CPU time, which a busy machine stretches less than the clock, TextWorld's
process included; medians over the games. The last columns are the medians of textworld divided by the others, game by
game. Below the table stand steps per CPU second, of all steps together, and the smallest of the ratios.

`reset` of the environment is measured once more by itself, also in CPU time: games that nothing is cached of, from the
generator with full and with small rooms and from files, and a game that was played before.

Memory is resident memory of a fresh process that has 256 environments, each in a game of its own after twenty steps,
divided by them; once all games, once the environments alone (with all games parsed before). Beside it stands one
process of TextWorld after its games, of which each of its environments needs one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
import gymnasium

from agent_gym.envs.alfworld import data as games
from agent_gym.envs.alfworld.embedded import write_embedded
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.original import TextWorld
from agent_gym.envs.alfworld.world import AlfworldWorld

ENVS = 256
RANDOM_STEPS = 20
RESETS = 400
STEPS_GOAL, RATIO_GOAL = 15_000, 300

MEMORY = """
import gymnasium, random, agent_gym
from pathlib import Path
from agent_gym.envs.alfworld.data import load_game

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

made = [gymnasium.make("AgentR1/ALFWorld-v0", commands="text") for _ in range({envs})]
made[0].reset(options={{"index": 0}})
if {parsed}:
    games = [load_game(f"embedded/train/{{i}}") for i in range({envs})]
rng, before = random.Random(0), resident()
for i, env in enumerate(made):
    _, info = env.reset(options={{"index": i}})
    for _ in range(20):
        *_, info = env.step(rng.choice(info["admissible_commands"]))
print((resident() - before) / {envs})
"""


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--games", type=int, default=24, metavar="N", help="how many games")
    parser.add_argument("--data", metavar="FOLDER", help="official games")
    options = parser.parse_args()
    if options.quick:
        options.games = 2
    facts = _common.provenance(("agent-gym", "gymnasium", "textworld", "alfworld"))
    _common.print_provenance(facts)

    with tempfile.TemporaryDirectory() as folder:
        data = options.data or str(write_embedded(folder, {"train": options.games}))
        files = random.Random(0).sample(games.game_names(data)["train"], options.games)
        times, process_mib = compare(files)
        resets = {
            name: reset_times(names) for name, names in reset_games(files, 8 if options.quick else RESETS).items()
        }
    original = times.get("textworld")
    rows = []
    for row, engine in times["engine"].items():
        sides = (engine, times["env"][row])
        there = original[row] if original else None
        ratios = [_common.median(a / b for a, b in zip(there, side, strict=True)) if there else None for side in sides]
        rows.append((row, *map(_common.median, sides), _common.median(there) if there else None, *ratios))
    _common.print_table(("CPU ms", "engine", "env", "textworld", "x engine", "x env"), rows)
    print_speed(times)

    head = ("CPU ms of a reset", "median", "mean")
    means = [(name, _common.median(found), sum(found) / len(found)) for name, found in resets.items()]
    _common.print_table(head, means)

    envs = 8 if options.quick else ENVS
    memory = {name: per_env(envs, parsed) for name, parsed in (("with its game", False), ("alone", True))}
    _common.print_table(("KiB per environment", "KiB"), [(name, size / 1024) for name, size in memory.items()])
    if process_mib is not None:
        print(f"a process of TextWorld: {process_mib:.0f} MiB\n")
    _common.write_json(
        options.json, **facts, milliseconds=times, resets=resets, memory=memory, textworld_mib=process_mib
    )


def print_speed(times: dict[str, dict[str, list[float]]]) -> None:
    """Print what the goals are about."""
    for side in ("engine", "env"):
        # Each game counts as one step here, the mean one of it.
        steps = 1000 * len(times[side]["step"]) / sum(times[side]["step"])
        print(f"{side}: {steps:,.0f} steps per CPU second (goal: at least {STEPS_GOAL:,})")
    original = times.get("textworld", {})
    for row in ("begin", "step"):
        if original:
            least = min(a / b for a, b in zip(original[row], times["env"][row], strict=True))
            print(f"env: at least {least:,.0f} times as fast as TextWorld in {row} (goal: {RATIO_GOAL} times)")
    print()


class Engine:
    """The native engine alone."""

    def cpu(self) -> float:
        return time.process_time()

    def begin(self, file: str) -> str:
        self.world = AlfworldWorld(games.load_game(file))
        return self.world.view.text

    def step(self, command: str) -> str:
        return self.world.step(command).text


class Env:
    """The environment; no prompt, so that its first observation is the engine's."""

    def __init__(self) -> None:
        made = gymnasium.make("AgentR1/ALFWorld-v0", commands="text", system_prompt="", max_turns=1000)
        self.env: Any = made.unwrapped

    def cpu(self) -> float:
        return time.process_time()

    def begin(self, file: str) -> str:
        return self.env.reset(options={"game": file})[0]

    def step(self, command: str) -> str:
        return self.env.step(command)[0]


class Original:
    """The original engine."""

    def __init__(self) -> None:
        self.engine = TextWorld()

    def cpu(self) -> float:
        """CPU seconds of this process, which writes and reads JSON, and of TextWorld's, in hundredths."""
        if self.engine.process is None:
            return time.process_time()
        # utime and stime are fields 14 and 15; counted from behind the name, which may have spaces.
        fields = Path(f"/proc/{self.engine.process.pid}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def begin(self, file: str) -> str:
        return self.engine.send(game=json.loads(Path(file).read_text(encoding="utf-8"))).text

    def step(self, command: str) -> str:
        return self.engine.send(command=command).text

    def mib(self) -> float:
        assert self.engine.process is not None
        pages = Path(f"/proc/{self.engine.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096 / 2**20


def compare(files: Sequence[str]) -> tuple[dict[str, dict[str, list[float]]], float | None]:
    """Play each file on each side; milliseconds by side and row, and how large TextWorld's process became."""
    original = Original() if importlib.util.find_spec("textworld") else None
    sides: dict[str, Any] = {"engine": Engine(), "env": Env()} | ({"textworld": original} if original else {})
    times: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    for number, file in enumerate(files):
        commands = commands_for(file, random.Random(number))
        answers = [play(side, file, commands, times[name]) for name, side in sides.items()]
        if any(one != answers[0] for one in answers):
            raise SystemExit(f"the sides do not say the same in {file}")
    mib = original.mib() if original else None
    if original:
        original.engine.close()
    return times, mib


def play(side: Any, file: str, commands: Sequence[str], times: dict[str, list[float]]) -> list[str]:
    """Begin twice and do the commands; note what CPU time each took, and return the answers."""
    games._from_file.cache_clear()
    answers = []
    for row in ("begin", "begin again"):
        started = side.cpu()
        answers.append(side.begin(file))
        times[row].append((side.cpu() - started) * 1000)
    started = side.cpu()
    answers += [side.step(command) for command in commands]
    spent = (side.cpu() - started) * 1000
    times["step"].append(spent / len(commands))
    times["episode"].append(times["begin again"][-1] + spent)
    return answers


def reset_games(files: Sequence[str], number: int) -> dict[str, list[str]]:
    """Name games to begin, by where they are from."""
    return {
        "generated": games.game_names("embedded")["train"][:number],
        "generated, 6 receptacles": games.game_names("embedded", receptacles=6)["train"][:number],
        "from a file": [files[i % len(files)] for i in range(number)],
        "played before": [games.game_names("embedded")["train"][0]] * number,
    }


def reset_times(names: Sequence[str]) -> list[float]:
    """Begin each game; milliseconds of CPU time."""
    env = gymnasium.make("AgentR1/ALFWorld-v0").unwrapped
    env.reset(options={"game": names[0]})
    times = []
    for name in names:
        if name != names[0]:
            games._from_file.cache_clear()
            games._generated.cache_clear()
        started = time.process_time()
        env.reset(options={"game": name})
        times.append((time.process_time() - started) * 1000)
    return times


def commands_for(file: str, rng: random.Random) -> list[str]:
    """Twenty at random, and then the expert's."""
    world, commands = AlfworldWorld(games.load_game(file)), []
    expert = Expert(world)
    view = world.view
    while not view.won:
        commands.append(rng.choice(view.admissible) if len(commands) < RANDOM_STEPS else expert.next_command())
        view = world.step(commands[-1])
    return commands


def per_env(envs: int, parsed: bool) -> float:
    """Bytes of a fresh process per environment."""
    code = MEMORY.format(envs=envs, parsed=parsed)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
