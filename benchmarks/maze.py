"""What a policy that sees nothing reaches in the mazes of `AgentR1/VisualMaze-v0`: what eyes have to beat.

    python benchmarks/maze.py    # half a minute

Success on the first 500 tasks of the split test, for the default mazes with three budgets of turns and for those of
`agent-gym speedrun --preset maze`. Players:

    random    moves at random
    spiral    always the same moves, in a spiral around the start: they cover the most cells that may be near
    search    depth-first search that takes a move as done unless it reads "There is a wall.", with `feedback=True`
    unheard   the same search with `feedback=False`, where it never reads of a wall
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from agent_gym.envs.maze import MOVES
from agent_gym.speedrun.presets import PRESETS

TASKS = 500
_BACK = {"up": "down", "down": "up", "left": "right", "right": "left"}


def random_moves(env: Any, seed: int) -> Iterator[str]:
    """Move at random."""
    rng = np.random.default_rng(seed)
    while True:
        yield env.random_action(rng)


def spiral(env: Any, seed: int) -> Iterator[str]:
    """Walk around the start, one cell farther after each two sides."""
    sides = ("right", "down", "left", "up")
    side = 0
    while True:
        for _ in range(side // 2 + 1):
            yield sides[side % 4]
        side += 1


def search(env: Any, seed: int) -> Iterator[str]:
    """Search depth-first, going by the words of the last answer alone."""
    cell, seen, way = (0, 0), {(0, 0)}, []
    while True:
        for move, (down, right) in MOVES.items():
            near = cell[0] + down, cell[1] + right
            if near not in seen:
                seen.add(near)
                yield move
                if "wall" not in env.transcript.segments[-1].text:
                    cell = near
                    way.append(move)
                break
        else:
            move = _BACK[way.pop()] if way else "up"
            yield move
            cell = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def success(player: Any, **kwargs: Any) -> float:
    """Return the share of the test tasks that a player solves; its moves depend on the task's index alone."""
    env: Any = gymnasium.make("AgentR1/VisualMaze-v0", split="test", **kwargs).unwrapped
    solved = 0
    tasks = min(TASKS, len(env.tasks["test"]))  # of small mazes there are fewer
    for index in range(tasks):
        env.reset(seed=index, options={"index": index})
        for move in player(env, index):
            *_, terminated, truncated, _ = env.step(move)
            if terminated or truncated:
                break
        solved += terminated
    return solved / tasks


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| mazes | turns | random | spiral | search | unheard |\n|---|---|---|---|---|---|")
    settings = [("default", {"max_turns": turns}) for turns in (10, 30, 60)]
    for name, kwargs in [*settings, ("preset maze", dict(PRESETS["maze"].env_kwargs))]:
        shares = [success(player, **kwargs) for player in (random_moves, spiral)]
        shares += [success(search, feedback=feedback, **kwargs) for feedback in (True, False)]
        print(f"| {name} | {kwargs['max_turns']} |", *(f"{100 * share:.1f}% |" for share in shares), flush=True)


if __name__ == "__main__":
    main()
