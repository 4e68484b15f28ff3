"""`agent-gym rollout` and `agent-gym eval`: episodes into a file, and how well they went."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent_gym.cli.engine import SCRIPTS, Player, build, build_endpoint, find_players, scripted
from agent_gym.cli.parser import Parser, nearest, positive
from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.evaluate import EpisodeFile, EvalResult, make_specs, summarize
from agent_gym.evaluate.report import details, table
from agent_gym.policies import Policy
from agent_gym.registry import check_env_id
from agent_gym.rollout import (
    CONTEXTS,
    Budget,
    Context,
    Episode,
    EpisodeSpec,
    Runner,
    make_context,
    tighten,
    warn_of_expert,
)

SETTINGS = ("split", "seed", "temperature", "env_kwargs", "context") + (
    "max_turns", "max_turn_tokens", "max_tokens", "max_seconds"
)  # fmt: skip
"""Flags that decide what an episode is like: a file is continued under the same ones only."""
Cell = tuple[str, str]
"""A policy and an environment."""


def rollout(argv: Sequence[str]) -> int:
    """Play, write the trajectories, and print how it went and how fast."""
    parser = Parser("rollout", "Let a model, or the environment's expert, play episodes and write the trajectories.")
    flag = parser.add_argument
    flag("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    flag("--episodes", type=positive, default=8, metavar="N", help="number of tasks")
    flag("--group_size", type=positive, default=1, metavar="G", help="attempts per task")
    flag("--split", default="train", help="split to take the tasks from, its first one first")
    flag("--temperature", type=float, default=1.0, help="of the sampling; 0 is greedy")
    parser.set_defaults(policy=[])  # `eval` has a flag for it
    _add_playing(parser, "trajectories.jsonl")
    arguments = parser.parse(argv)
    (player,) = _check_player(arguments, [arguments.env_id])
    specs = _specs(arguments, arguments.env_id, arguments.group_size)
    with _open_file(arguments) as file, _open_runner(arguments, arguments.env_id, player.engine) as (tokenizer, runner):
        result = summarize(_play(arguments, player.name, specs, file, runner, tokenizer))
    print(f"success: {result}\nreward: {result.reward:.3f}")
    if result.failed:
        print("\n  ".join([f"failed episodes: {result.failed}", *result.failures]))
    for name, value in sorted(result.metrics.items()):
        print(f"  {name}: {value:.3g}")
    stats = runner.stats
    print(
        f"throughput: {stats.tokens_per_second:.0f} tokens/s ({stats.sampled_tokens} tokens in "
        f"{stats.wall_seconds:.2f} s: engine {stats.engine_seconds:.2f} s, waiting for envs {stats.wait_seconds:.2f} "
        f"s, loop {stats.overhead_seconds:.2f} s)\ntrajectories: {arguments.output}"
    )
    return 0


def evaluate(argv: Sequence[str]) -> int:
    """Play with one or several policies, and print how often they succeed and what else they do, with intervals."""
    parser = Parser("eval", "Measure how often a model, the expert or others solve an environment's tasks.")
    flag = parser.add_argument
    flag("env_id", metavar="ENV", nargs="+", help="environment ids, for example AgentR1/GSM8K-v0")
    flag("--episodes", type=positive, metavar="N", help="number of tasks per environment; default: all")
    help_text = "split to take the tasks from, its first one first; default: test, or the only one there is"
    flag("--split", help=help_text)
    help_text = "attempts per task: their mean (avg@K) and the chance that one of k succeeds (pass@k)"
    flag("--samples", type=positive, default=1, metavar="K", help=help_text)
    flag("--temperature", type=float, default=0.0, help="of the sampling; 0 is greedy")
    help_text = "further columns of the first table, by their names below it, for example env/f1"
    flag("--metrics", nargs="+", default=[], metavar="NAME", help=help_text)
    flag("--json", action="store_true", help="print the results as JSON")
    help_text = (
        "who plays, one or several: expert, random, model (the default), or the model with a variant of the "
        "environment, such as direct, naive-rag or react for AgentR1/HotpotQA-v0"
    )
    flag("--policy", nargs="+", default=[], metavar="NAME", help=help_text)
    _add_playing(parser)
    arguments = parser.parse(argv)
    env_ids = arguments.env_id if isinstance(arguments.env_id, list) else [arguments.env_id]
    players = _check_player(arguments, env_ids)
    if arguments.samples > 1 and arguments.temperature == 0 and any(one.engine not in SCRIPTS for one in players):
        raise ConfigError(f"{arguments.samples} samples at temperature 0 are all the same: give --temperature, say 1.0")
    if arguments.output and not arguments.output.endswith(".jsonl"):
        raise ConfigError(
            f"--output {arguments.output} must end in .jsonl: it gets the episodes. --json prints the results as JSON"
        )
    played = dict.fromkeys(env_id for player in players for env_id in player.env_ids.values())
    specs = {env_id: _specs(arguments, env_id, arguments.samples) for env_id in played}
    splits = {spec.split for some in specs.values() for spec in some}
    arguments.split = splits.pop() if len(splits) == 1 else None
    with _open_file(arguments) as file:
        results = _evaluate(arguments, players, specs, file)
    print(_json(arguments, results, players) if arguments.json else _text(results, arguments.metrics))
    known = {name: None for result in results.values() for name in result.measures}
    # After the report: the names are known when the episodes are played, and these must not be lost.
    for name in arguments.metrics:
        if known and name not in known:
            raise ConfigError(f"--metrics {name}: no environment here has such a measure; {nearest(name, known)}")
    return 0


def _add_playing(parser: Parser, output: str | None = None) -> None:
    """Add what both commands have: the file, who plays, tasks and limits."""
    help_text = "write each episode there as it ends; for view, rescore, compare and --resume"
    parser.add_argument("--output", default=output, metavar="FILE.jsonl", help=help_text)
    parser.add_argument("--resume", action="store_true", help="go on with what --output holds")
    parser.add_env_kwargs()
    flag = parser.add_model("who plays").add_argument
    flag("--expert", action="store_true", help="the environment's own expert plays instead of a model")
    help_text = "most requests at the endpoint at the same time"
    flag("--concurrency", type=positive, metavar="N", default=64, help=help_text)
    budget = Budget()
    flag = parser.add_argument_group("tasks and limits").add_argument
    flag("--seed", type=int, default=0, help="base of the seeds of environments and sampling")
    flag("--max_turns", type=int, metavar="N", help="turns, besides the environment's own limit")
    flag("--max_turn_tokens", type=int, metavar="N", default=budget.max_turn_tokens, help="tokens sampled per turn")
    help_text = "tokens of a context, prompt included"
    flag("--max_tokens", type=int, metavar="N", default=budget.max_tokens, help=help_text)
    flag("--max_seconds", type=float, metavar="S", help="wall-clock time of an episode")
    help_text = f"what the model sees next: {', '.join(CONTEXTS)}; write numbers for the capitals"
    flag("--context", metavar="POLICY", default="append", help=help_text)
    flag("--workers", type=positive, metavar="N", default=32, help="environments that run at once")
    help_text = "processes that run environments while the threads wait; for those that compute in Python"
    flag("--env_processes", type=int, metavar="N", default=0, help=help_text)


def _check_player(arguments: argparse.Namespace, env_ids: Sequence[str]) -> list[Player]:
    """Find the cheap mistakes before an engine is started, and return who plays."""
    for env_id in env_ids:
        check_env_id(env_id)
    players = find_players(arguments, env_ids)
    _limits(arguments)
    return players


def _limits(arguments: argparse.Namespace) -> tuple[Budget, Context]:
    context = make_context(arguments.context)
    budget = Budget(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns, arguments.max_seconds)
    return tighten(budget, context), context


def _specs(arguments: argparse.Namespace, env_id: str, group_size: int) -> list[EpisodeSpec]:
    return make_specs(
        env_id,
        arguments.env_kwargs,
        split=arguments.split,
        episodes=arguments.episodes,
        group_size=group_size,
        seed=arguments.seed,
    )


@contextmanager
def _open_file(arguments: argparse.Namespace) -> Iterator[EpisodeFile | None]:
    """Open the file of the episodes, if there is one, and say what is in it when the run is broken off."""
    if arguments.resume and not arguments.output:
        raise ConfigError("--resume goes on with a file: name it with --output")
    if not arguments.output:
        yield None
        return
    file = EpisodeFile(arguments.output, resume=arguments.resume)
    try:
        yield file
    except BaseException as error:
        if not file.finished:
            raise
        done = f"{file.finished} of {file.asked} episodes were finished"
        left = f"{done}; they are in {file.path}; go on with --resume"
        if isinstance(error, AgentGymError):
            raise type(error)(f"{error}; {left}") from error
        print(f"agent-gym: {left}", file=sys.stderr)
        raise
    finally:
        file.close()


@contextmanager
def _open_runner(arguments: argparse.Namespace, env_id: str, engine: str) -> Iterator[tuple[Any, Runner]]:
    """Start the policy, "model" or the name of a script, and a runner, and stop both at the end."""
    budget, context = _limits(arguments)
    tokenizer, policy = _policy(arguments, env_id, engine, budget.max_tokens)
    workers, processes = arguments.workers, arguments.env_processes
    runner = Runner(policy, tokenizer, budget, context=context, workers=workers, env_processes=processes, progress=True)
    try:
        yield tokenizer, runner
    finally:
        runner.close()
        policy.close()


def _policy(arguments: argparse.Namespace, env_id: str, engine: str, context: int) -> tuple[Any, Policy]:
    if engine in SCRIPTS:
        # A name at an endpoint is no folder or hub id.
        model = arguments.tokenizer or (None if arguments.endpoint else arguments.model)
        return scripted(model, env_id, arguments.env_kwargs, SCRIPTS[engine])
    if arguments.endpoint:
        return build_endpoint(arguments, env_id, context, arguments.concurrency)
    return build(arguments.model, arguments.engine, context=context, seed=arguments.seed)


def _play(
    arguments: argparse.Namespace,
    name: str,
    specs: Sequence[EpisodeSpec],
    file: EpisodeFile | None,
    runner: Runner,
    tokenizer: Any,
) -> list[Episode]:
    """Play those episodes of one environment that the file does not hold yet, and return all of them."""
    done: list[Episode] = []
    left, on_end = specs, None
    if file is not None:
        settings = {name: getattr(arguments, name) for name in SETTINGS}
        done, left = file.begin(name, settings, specs, tokenizer)
        on_end = file.write
    episodes = done + runner.run(left, temperature=arguments.temperature, on_end=on_end)
    if name == "expert":
        warn_of_expert(episodes)
    return episodes


def _evaluate(
    arguments: argparse.Namespace,
    players: Sequence[Player],
    specs: Mapping[str, list[EpisodeSpec]],
    file: EpisodeFile | None,
) -> dict[Cell, EvalResult]:
    results: dict[Cell, EvalResult] = {}
    for engine in dict.fromkeys(player.engine for player in players):
        mine = [player for player in players if player.engine == engine]
        with _open_runner(arguments, next(iter(mine[0].env_ids)), engine) as (tokenizer, runner):
            for player in mine:
                for asked, env_id in player.env_ids.items():
                    episodes = _play(arguments, player.name, specs[env_id], file, runner, tokenizer)
                    results[player.name, asked] = summarize(episodes)
    # In the order of --policy, whatever had to be started when.
    return {(player.name, asked): results[player.name, asked] for player in players for asked in player.env_ids}


def _text(results: Mapping[Cell, EvalResult], metrics: Sequence[str]) -> str:
    parts = [details(policy, env_id, result) for (policy, env_id), result in results.items()]
    return "\n\n".join([table(results, metrics), *parts])


def _json(arguments: argparse.Namespace, results: Mapping[Cell, EvalResult], players: Sequence[Player]) -> str:
    played = {(player.name, asked): env_id for player in players for asked, env_id in player.env_ids.items()}
    rows = [
        {"policy": policy, "env_id": played[policy, asked], **dataclasses.asdict(result)}
        for (policy, asked), result in results.items()
    ]
    return json.dumps({"settings": {name: getattr(arguments, name) for name in SETTINGS}, "results": rows}, indent=2)
