"""`agent-gym play ENV`: a person plays."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agent_gym.cli.parser import Parser
from agent_gym.play import play
from agent_gym.rollout import make_env


def main(argv: Sequence[str]) -> int:
    """Play one episode on stdin and stdout."""
    summary = "Play one episode yourself: read the task, write your turns, see the rewards."
    parser = Parser("play", summary, config=False)
    parser.add_argument("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    parser.add_env_kwargs()
    parser.add_argument("--split", help="split to take the task from; default: the environment's own")
    parser.add_argument("--index", type=int, help="which task of the split; default: drawn by the seed")
    parser.add_argument("--seed", type=int, help="seed of the episode; default: a new one each time")
    arguments = parser.parse(argv)
    picked = {"split": arguments.split, "index": arguments.index}
    env = make_env(arguments.env_id, arguments.env_kwargs)
    print(arguments.env_id)
    play(
        env,
        ask,
        lambda text: print(text, flush=True),
        seed=arguments.seed,
        options={key: value for key, value in picked.items() if value is not None},
    )
    env.close()
    return 0


def ask() -> str | None:
    """Read the next line of the person, None when there is no more; what came through a pipe is echoed."""
    try:
        line = input("> ")
    except EOFError:
        print()
        return None
    if not sys.stdin.isatty():
        print(line)  # what came through a pipe was not echoed by a terminal
    return line
