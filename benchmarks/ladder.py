"""How hard the environments are at each difficulty, from 1 to 5: what random actions, a script and the expert reach.

    python benchmarks/ladder.py                                       # all environments, ten minutes
    python benchmarks/ladder.py Bisect-v0 --tasks 300
    python benchmarks/ladder.py GSM8K-v0 --tasks 24 --model smollm2   # and a model, greedy

Each cell is the success on tasks spread over the split test, and after the slash the mean reward without format terms.
The scripts are short and learn nothing; each plays by the words that a policy reads:

    GSM8K        adds the first two numbers of the question
    HotpotQA     searches for the question, then for the first new name that it reads, twice, and answers the last one
    ReTool       answers the largest number of the problem
    PaperSearch  intersects citations (tests/attacks/papersearch.py)
    ALFWorld     looks into one receptacle after the other (the expert's style "searching")
    WebShop      buys the first product that a search for the instruction finds, with the options that stand in it
    VisualMaze   walks in a spiral
    Bisect       suspects the newest commits (the expert's style "newest")
    Support      looks up what is asked for, and keeps the rules (tests/attacks/support.py)
    Bargain      asks for all, and takes what is offered at last (tests/attacks/bargain.py)
    Terminal     has a command for nine sentences (tests/attacks/terminal.py); it needs a machine that can hold a shell
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser, print_provenance, print_table, provenance

import agent_gym

ENVS = (
    "GSM8K-v0 HotpotQA-v0 ReTool-v0 PaperSearch-v1 ALFWorld-v0 WebShop-v0 VisualMaze-v0 Bisect-v0 "
    "Support-v0 Bargain-v0 Terminal-v0"
).split()
Player = Callable[[Any], Iterator[str]]


def _style(*style: str) -> Player:
    def play(env: Any) -> Iterator[str]:
        while True:
            yield env.expert_action(*style)

    return play


def _random(env: Any) -> Iterator[str]:
    while True:
        yield env.random_action(env.np_random)


def _last(env: Any) -> str:
    """The last words of the world."""
    return env.transcript.segments[-1].text


def _sum(env: Any) -> Iterator[str]:
    yield f"<answer>{sum(map(int, re.findall('[0-9]+', _last(env))[:2]))}</answer>"


def _largest(env: Any) -> Iterator[str]:
    yield f"\\boxed{{{max(map(int, re.findall('[0-9]+', _last(env))), default=0)}}}"


def _names(env: Any) -> Iterator[str]:
    query, known, name = _last(env), set[str](), ""
    for _ in range(3):
        known |= set(re.findall(r"[A-Z]\w+", query))
        yield env.parser.render("search", {"query": query})
        found = re.findall(r"[A-Z]\w+(?: [A-Z]\w+)?", _last(env))
        query = name = next((one for one in found if not set(one.split()) & {*known, "The", "Its"}), name)
    yield f"<answer>{name}</answer>"


def _attack(name: str) -> Player:
    """Play as a script of the tests does."""
    file = Path(__file__).resolve().parents[1] / f"tests/attacks/{name}.py"

    def play(env: Any) -> Iterator[str]:
        moves = runpy.run_path(str(file))["attack"](_last(env))
        with suppress(StopIteration):
            action = next(moves)
            while True:
                yield action
                action = moves.send(_last(env))

    return play


def _first_hit(env: Any) -> Iterator[str]:
    wanted = env.session.goal["instruction_text"].partition(", and price lower")[0]
    yield env.parser.render("search", {"keywords": wanted})
    hits = [name for name, what in env.session.clickables().items() if what.kind == "link"]
    yield env.parser.render("click", {"element": hits[0] if hits else "back to search"})
    for name, what in env.session.clickables().items():
        if what.kind == "option" and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", wanted.lower()):
            yield env.parser.render("click", {"element": name})
    while True:
        yield env.parser.render("click", {"element": "buy now"})


def _spiral(env: Any) -> Iterator[str]:
    for side in range(1000):
        yield from [("right", "down", "left", "up")[side % 4]] * (side // 2 + 1)


SCRIPTS: dict[str, Player] = {
    "GSM8K": _sum,
    "HotpotQA": _names,
    "ReTool": _largest,
    "PaperSearch": _attack("papersearch"),
    "ALFWorld": _style("searching"),
    "WebShop": _first_hit,
    "VisualMaze": _spiral,
    "Bisect": _style("newest"),
    **{name: _attack(name.lower()) for name in ("Support", "Bargain", "Terminal")},
}


def chosen(env: Any, tasks: int) -> list[int]:
    """Spread tasks over the test split: in some, neighbours are alike."""
    size = len(env.tasks["test"])
    return [n * size // min(tasks, size) for n in range(min(tasks, size))]


def reach(env: Any, player: Player, tasks: int) -> tuple[float, float]:
    """Return the success and the mean reward of a player on tasks of the split test."""
    successes, rewards = [], []
    for index in chosen(env, tasks):
        env.reset(seed=index, options={"split": "test", "index": index})
        total, success = 0.0, False
        for action in player(env):
            _, _, terminated, truncated, info = env.step(action)
            total += sum(value for name, value in info["reward_terms"].items() if name != "format")
            if terminated or truncated:
                success = info["is_success"]
                break
        successes.append(success)
        rewards.append(total)
    return float(np.mean(successes)), float(np.mean(rewards))


def model_player(model: str) -> Callable[[str, dict[str, Any], list[int]], tuple[float, float]]:
    """Load a model, and return what measures its greedy play: success and reward, without the term for the format."""
    from agent_gym.cli.engine import build
    from agent_gym.evaluate import evaluate, make_specs
    from agent_gym.rollout import Budget, Runner

    tokenizer, policy = build(model, "auto", context=4096)
    runner = Runner(policy, tokenizer, Budget(max_turn_tokens=128, max_tokens=4096))

    def measure(env_id: str, env_kwargs: dict[str, Any], indices: list[int]) -> tuple[float, float]:
        specs = make_specs(env_id, env_kwargs)
        found = evaluate(runner, [specs[index] for index in indices])
        formed = found.metrics.get("reward/format", 0.0)
        return found.success, found.reward - formed

    return measure


def main() -> None:
    """Print the table."""
    options = parser(__doc__)
    options.add_argument("envs", nargs="*", default=ENVS, help="which environments, such as GSM8K-v0")
    options.add_argument("--tasks", type=int, default=100, help="test tasks of each difficulty")
    options.add_argument("--model", help="a model that plays, too")
    options.add_argument("--only_model", action="store_true", help="play nothing but the model")
    arguments = options.parse_args()
    tasks = 4 if arguments.quick else arguments.tasks
    print_provenance(facts := provenance(["numpy", "vllm", "transformers"]))
    measure = model_player(arguments.model) if arguments.model else None
    measurements = []
    for name in arguments.envs:
        rows = []
        env_id = name if "/" in name else f"AgentR1/{name}"
        script = SCRIPTS[re.sub("^.*/|-.*$", "", env_id)]
        for difficulty in range(1, 6):
            env: Any = agent_gym.make(env_id, difficulty=difficulty)
            players = {} if arguments.only_model else {"random": _random, "script": script, "expert": _style()}
            found = {player: reach(env, play, tasks) for player, play in players.items()}
            if measure:
                found[arguments.model] = measure(env_id, {"difficulty": difficulty}, chosen(env, tasks))
            env.close()
            measurements.append({"env": env_id, "difficulty": difficulty, "tasks": tasks, **found})
            rows.append([env_id, difficulty, *(f"{success:.2f} / {reward:.2f}" for success, reward in found.values())])
        print_table(["environment", "difficulty", *found], rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"provenance": facts, "measurements": measurements}, indent=2))


if __name__ == "__main__":
    main()
