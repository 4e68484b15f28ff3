"""`agent-gym eval ENV...`: how often policies succeed, and what else they do, with intervals that the data can bear."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from agent_gym.cli.episodes import (
    SETTINGS,
    add_limits,
    add_output,
    add_player,
    check_player,
    open_file,
    open_runner,
    play,
)
from agent_gym.cli.parser import Parser, nearest, positive
from agent_gym.cli.players import SCRIPTS, Player, add_policy
from agent_gym.errors import ConfigError
from agent_gym.evaluate import EpisodeFile, EvalResult, make_specs, summarize
from agent_gym.evaluate.report import details, table
from agent_gym.rollout import EpisodeSpec

Cell = tuple[str, str]
"""A policy and an environment."""


def main(argv: Sequence[str]) -> int:
    """Evaluate and report."""
    parser = Parser("eval", "Measure how often a model, the expert or others solve an environment's tasks.")
    parser.add_argument("env_id", metavar="ENV", nargs="+", help="environment ids, for example AgentR1/GSM8K-v0")
    parser.add_argument("--episodes", type=positive, metavar="N", help="number of tasks per environment; default: all")
    help_text = "split to take the tasks from, its first one first; default: test, or the only one there is"
    parser.add_argument("--split", help=help_text)
    help_text = "attempts per task: their mean (avg@K) and the chance that one of k succeeds (pass@k)"
    parser.add_argument("--samples", type=positive, default=1, metavar="K", help=help_text)
    parser.add_argument("--temperature", type=float, default=0.0, help="of the sampling; 0 is greedy")
    help_text = "further columns of the first table, by their names below it, for example env/f1"
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help=help_text)
    add_output(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_policy(parser)
    add_player(parser)
    add_limits(parser)
    arguments = parser.parse(argv)
    env_ids = arguments.env_id if isinstance(arguments.env_id, list) else [arguments.env_id]
    players = check_player(arguments, env_ids)
    _check(arguments, players)
    specs = {
        env_id: make_specs(
            env_id,
            arguments.env_kwargs,
            split=arguments.split,
            episodes=arguments.episodes,
            group_size=arguments.samples,
            seed=arguments.seed,
        )
        for env_id in dict.fromkeys(env_id for player in players for env_id in player.env_ids.values())
    }
    played = {spec.split for some in specs.values() for spec in some}
    arguments.split = played.pop() if len(played) == 1 else None
    with open_file(arguments) as file:
        results = _play(arguments, players, specs, file)
    print(_json(arguments, results, players) if arguments.json else _text(results, arguments.metrics))
    known = {name: None for result in results.values() for name in result.measures}
    # After the report: what a name means is known when the episodes are played, and they are not to be lost.
    for name in arguments.metrics:
        if known and name not in known:
            raise ConfigError(f"--metrics {name}: no environment here has such a measure; {nearest(name, known)}")
    return 0


def _check(arguments: argparse.Namespace, players: Sequence[Player]) -> None:
    models = [player for player in players if player.engine not in SCRIPTS]
    if arguments.samples > 1 and arguments.temperature == 0 and models:
        raise ConfigError(f"{arguments.samples} samples at temperature 0 are all the same: give --temperature, say 1.0")
    if arguments.output and not arguments.output.endswith(".jsonl"):
        raise ConfigError(
            f"--output {arguments.output} must end in .jsonl: it gets the episodes. --json prints the results as JSON"
        )


def _play(
    arguments: argparse.Namespace,
    players: Sequence[Player],
    specs: dict[str, list[EpisodeSpec]],
    file: EpisodeFile | None,
) -> dict[Cell, EvalResult]:
    results: dict[Cell, EvalResult] = {}
    for engine in dict.fromkeys(player.engine for player in players):
        mine = [player for player in players if player.engine == engine]
        with open_runner(arguments, next(iter(mine[0].env_ids)), engine) as (tokenizer, runner):
            for player in mine:
                for asked, env_id in player.env_ids.items():
                    episodes = play(arguments, player.name, specs[env_id], file, runner, tokenizer)
                    results[player.name, asked] = summarize(episodes)
    # In the order of --policy, whatever had to be started when.
    return {(player.name, asked): results[player.name, asked] for player in players for asked in player.env_ids}


def _text(results: dict[Cell, EvalResult], metrics: Sequence[str]) -> str:
    parts = [details(policy, env_id, result) for (policy, env_id), result in results.items()]
    return "\n\n".join([table(results, metrics), *parts])


def _json(arguments: argparse.Namespace, results: dict[Cell, EvalResult], players: Sequence[Player]) -> str:
    played = {(player.name, asked): env_id for player in players for asked, env_id in player.env_ids.items()}
    rows = [
        {"policy": policy, "env_id": played[policy, asked], **dataclasses.asdict(result)}
        for (policy, asked), result in results.items()
    ]
    return json.dumps({"settings": {name: getattr(arguments, name) for name in SETTINGS}, "results": rows}, indent=2)
