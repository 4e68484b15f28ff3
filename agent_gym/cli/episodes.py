"""`agent-gym rollout` and `agent-gym eval`: episodes into a file, and how well they went."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_gym.cli.engine import SCRIPTS, Player, find_players, open_model, scripted, spoken
from agent_gym.cli.gateway import add_agent, use_agent
from agent_gym.cli.parser import CommandParser, announce, nearest, positive, read_settings
from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.evaluate import EpisodeFile, EvalResult, make_specs
from agent_gym.evaluate.cards import describe_model, run_specs
from agent_gym.evaluate.panels import opened_env, read_panel
from agent_gym.evaluate.report import details, table
from agent_gym.evaluate.room import cut_line, with_room
from agent_gym.judges.judge import ENGINE, Judge
from agent_gym.rollout import CONTEXTS, Budget, EpisodeSpec, Runner, make_context, tighten, warn_of_expert
from agent_gym.tool_results import counted_raises

# Flags that influence episodes: a file is continued under the same ones only.
SETTINGS = "split panel seed temperature env_kwargs context max_turns max_turn_tokens max_tokens max_seconds".split()

_USUAL = {"max_turn_tokens": Budget().max_turn_tokens, "max_tokens": Budget().max_tokens}


def rollout(argv: Sequence[str]) -> int:
    """Let a model, or the environment's expert, play episodes and write the trajectories."""
    parser = CommandParser("rollout", rollout.__doc__)
    parser.flag("env_id ENV", "environment id, for example AgentR1/GSM8K-v0", nargs="?")
    parser.flag("--episodes N", "number of tasks", type=positive, default=8)
    parser.flag("--group_size G", "attempts per task", type=positive, default=1)
    parser.flag("--split", "split to take the tasks from, its first one first", default="train")
    parser.flag("--temperature", "of the sampling; 0 is greedy", type=float, default=1.0)
    help_text = "who plays: expert, random, a model, or a variant of the environment, as --policy of eval"
    parser.flag("--policy NAME", help_text, nargs=1, default=[])
    parser.set_defaults(panel=None)  # `eval` has a flag for it
    _add_playing(parser, "trajectories.jsonl")
    arguments = _numbered(parser.parse(argv))
    named = [arguments.env_id] if arguments.env_id else []
    (env_id,), arguments.env_kwargs = use_agent(named, arguments.env_kwargs, arguments)
    (player,) = find_players(arguments, [env_id])
    budgets = {env_id: _budget(arguments, env_id)}
    _read_judge(arguments, arguments.group_size)
    specs = _specs(arguments, env_id, arguments.group_size)
    playing = _open_file(arguments), _open_runner(arguments, budgets, {env_id: specs}, env_id, player.engine)
    with counted_raises(), playing[0] as file, playing[1] as runner:
        result = _play(arguments, player, budgets[env_id], specs, file, runner)
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
    """Measure how often a model, the expert or others solve an environment's tasks."""
    parser = CommandParser("eval", evaluate.__doc__)
    parser.flag("env_id ENV", "environment ids, for example AgentR1/GSM8K-v0", nargs="*")
    parser.flag("--episodes N", "number of tasks per environment; default: all", type=positive)
    parser.flag("--split", "split to take the tasks from, its first one first; default: test, or the only one there is")
    help_text = "play exactly the tasks of a panel, by its name, such as test, or its file (agent-gym export tasks)"
    parser.flag("--panel NAME", help_text)
    help_text = "attempts per task: their mean (avg@K) and the chance that one of k succeeds (pass@k), or all (pass^k)"
    parser.flag("--samples K", help_text, type=positive, default=1)
    parser.flag("--temperature", "of the sampling; 0 is greedy", type=float, default=0.0)
    help_text = "further columns of the first table, by their names below it, for example env/f1"
    parser.flag("--metrics NAME", help_text, nargs="+", default=[])
    parser.flag("--json", "print the results as JSON", action="store_true")
    help_text = (
        "who plays, one or several: expert, random, model (the default), a folder or hub id in place of --model, or "
        "the model with a variant of the environment, such as direct, naive-rag or react for AgentR1/HotpotQA-v0"
    )
    parser.flag("--policy NAME", help_text, nargs="+", default=[])
    _add_playing(parser)
    arguments = _numbered(parser.parse(argv))
    env_ids, arguments.env_kwargs = use_agent(arguments.env_id, arguments.env_kwargs, arguments)
    players = find_players(arguments, env_ids)
    played = dict.fromkeys(player.env_id for player in players)
    budgets = {env_id: _budget(arguments, env_id) for env_id in played}
    if arguments.samples > 1 and arguments.temperature == 0 and any(one.engine not in SCRIPTS for one in players):
        raise ConfigError(
            f"{arguments.samples} samples at temperature 0 are all the same: give --temperature, for example 1.0"
        )
    _read_judge(arguments, arguments.samples)
    specs = {env_id: _specs(arguments, env_id, arguments.samples) for env_id in played}
    splits = {spec.split for some in specs.values() for spec in some}
    arguments.split = splits.pop() if len(splits) == 1 else None
    with counted_raises():
        results = _evaluate(arguments, players, budgets, specs)
    if arguments.json:
        rows = [
            {"policy": one.name, "env_id": one.env_id, **dataclasses.asdict(results[one.name, one.asked])}
            for one in players
        ]
        print(json.dumps({"settings": _settings(arguments, *budgets.values()), "results": rows}, indent=2))
    else:
        parts = [details(policy, env_id, result) for (policy, env_id), result in results.items()]
        print("\n\n".join([table(results, arguments.metrics), *parts]))
    known = {name: None for result in results.values() for name in result.measures}
    # After the report: the names are known when the episodes are played, and these must not be lost.
    for name in arguments.metrics:
        if known and name not in known:
            raise ConfigError(f"--metrics {name}: no environment here has such a measure; {nearest(name, known)}")
    return 0


def _numbered(arguments: argparse.Namespace) -> argparse.Namespace:
    """Take `--tasks N` for `--episodes N`; of an agent it is the file of its tasks."""
    if str(arguments.tasks or "").isdecimal() and not Path(arguments.tasks).exists():
        arguments.episodes, arguments.tasks = positive(arguments.tasks), None
    return arguments


def _add_playing(parser: CommandParser, output: str | None = None) -> None:
    help_text = "write each episode there as it ends; for view, rescore, compare and --resume"
    parser.flag("--output FILE.jsonl", help_text, default=output)
    parser.flag("--resume", "go on with what --output holds", action="store_true")
    parser.add_env_kwargs()
    add_agent(parser)
    flag = parser.add_model("who plays")
    flag("--expert", "the environment's own expert plays instead of a model", action="store_true")
    flag("--concurrency N", "most requests at the endpoint at the same time", type=positive, default=64)
    parser.flag("--judge FILE", "a yaml or toml file with a judge, whose score is added to the reward")
    flag = parser.group("tasks and limits")
    flag("--seed", "base of the seeds of environments and sampling", type=int, default=0)
    flag("--max_turns N", "turns, besides the environment's own limit", type=int)
    otherwise = "default: that of the environment or its protocol, else"
    flag("--max_turn_tokens N", f"tokens sampled per turn; {otherwise} {_USUAL['max_turn_tokens']}", type=int)
    help_text = f"tokens of a context, prompt included; {otherwise} {_USUAL['max_tokens']}, more for long openings"
    flag("--max_tokens N", help_text, type=int)
    flag("--max_seconds S", "wall-clock time of an episode", type=float)
    help_text = f"what the model sees next: {', '.join(CONTEXTS)}; write numbers for the capitals"
    flag("--context POLICY", help_text, default="append")
    flag("--workers N", "environments that run at once", type=positive, default=32)
    help_text = "processes that run environments while the threads wait; for those that compute in Python"
    flag("--env_processes N", help_text, type=int, default=0)
    flag("--price_in X", "price of a million tokens that are read, for the card's cost", type=float)
    flag("--price_out X", "price of a million tokens that are sampled", type=float)


def _read_judge(arguments: argparse.Namespace, attempts: int) -> None:
    """Put the judge into the place of its file."""
    if arguments.judge is None:
        return
    arguments.judge = judge = Judge.of(read_settings(arguments.judge))
    if judge.kind.compares and (attempts < 2 or arguments.resume):
        why = "does not go with --resume" if arguments.resume else "needs at least two of each"
        raise ConfigError(f"the judge compares the attempts at a task, and {why}")
    if judge.endpoint == ENGINE and (arguments.expert or set(arguments.policy) & SCRIPTS.keys()):
        raise ConfigError(f"the judge's endpoint is {ENGINE!r}, and a script has none: name a server")
    judge.connect()


def _budget(arguments: argparse.Namespace, env_id: str) -> Budget:
    """Return the limits in an environment, with missing token limits from its protocol."""
    limits = {name: getattr(arguments, name) for name in _USUAL}
    if None in limits.values():
        with opened_env(env_id, arguments.env_kwargs) as env:
            protocol = getattr(env.unwrapped, "protocol", None)
            own = getattr(env.unwrapped, "rollout_budget", {})
        usual = {**_USUAL, **own, **(protocol.rollout if protocol else {})}
        limits = {name: usual[name] if value is None else value for name, value in limits.items()}
    budget = Budget(**limits, max_turns=arguments.max_turns, max_seconds=arguments.max_seconds)
    tighten(budget, make_context(arguments.context))  # a mistake is an error before anything is loaded
    return budget


def _specs(arguments: argparse.Namespace, env_id: str, group_size: int) -> list[EpisodeSpec]:
    tasks = {"split": arguments.split, "episodes": arguments.episodes, "seed": arguments.seed}
    panel = read_panel(arguments.panel, env_id) if arguments.panel else None
    return make_specs(env_id, arguments.env_kwargs, group_size=group_size, panel=panel, **tasks)


def _settings(arguments: argparse.Namespace, *budgets: Budget) -> dict[str, object]:
    """Return the limits under which episodes are played; None where environments differ in a limit."""
    limits = {name: {getattr(budget, name) for budget in budgets} for name in _USUAL}
    common = {name: values.pop() if len(values) == 1 else None for name, values in limits.items()}
    return {name: getattr(arguments, name) for name in SETTINGS} | common


@contextmanager
def _open_file(arguments: argparse.Namespace) -> Iterator[EpisodeFile | None]:
    """Open the file of the episodes, if one is named, and print its content when the run breaks off."""
    if arguments.resume and not arguments.output:
        raise ConfigError("--resume continues a file: name it with --output")
    if not arguments.output:
        yield None
        return
    path = Path(arguments.output)
    if path.suffix != ".jsonl" and not path.is_char_device():  # run.1 and run.2 would have one card
        more = ". --json prints the results as JSON" if "json" in arguments else ""
        raise ConfigError(f"--output {path} must end in .jsonl: it gets the episodes{more}")
    file = EpisodeFile(arguments.output, resume=arguments.resume)
    try:
        yield file
    except BaseException as error:
        if not file.finished:
            raise
        done = f"{file.finished} of {file.asked} episodes were finished"
        left = f"{done}; they are in {file.path}; continue with --resume"
        if isinstance(error, AgentGymError):
            raise type(error)(f"{error}; {left}") from error
        print(f"agent-gym: {left}", file=sys.stderr)
        raise
    finally:
        file.close()


@contextmanager
def _open_runner(
    arguments: argparse.Namespace,
    budgets: dict[str, Budget],
    specs: Mapping[str, list[EpisodeSpec]],
    env_id: str,
    engine: str,
) -> Iterator[Runner]:
    """Start the policy, "model" or the name of a script, and a runner, and stop both at the end.

    `budgets` get room for openings where their limit of tokens is the default.
    """
    context = make_context(arguments.context)

    def longest(tokenizer: Any) -> int:
        if engine not in SCRIPTS:
            print(f"agent-gym: {spoken(tokenizer)}", file=sys.stderr, flush=True)
        for name, budget in budgets.items():
            if arguments.max_tokens is None and budget.max_tokens == _USUAL["max_tokens"]:
                budgets[name], line = with_room(budget, specs[name], tokenizer)
                if line:
                    print(f"agent-gym: {line}; --max_tokens sets another", file=sys.stderr, flush=True)
        return max(tighten(budget, context).max_tokens for budget in budgets.values())

    if engine in SCRIPTS:
        # A name at an endpoint is neither a folder nor a hub id.
        model = arguments.tokenizer or (None if arguments.endpoint else arguments.model)
        tokenizer, policy = scripted(model, env_id, arguments.env_kwargs, SCRIPTS[engine])
        longest(tokenizer)
    else:
        tokenizer, policy = open_model(arguments, env_id, longest)
    runner = Runner(
        policy,
        tokenizer,
        next(iter(budgets.values())),
        context=context,
        workers=arguments.workers,
        env_processes=arguments.env_processes,
        progress=True,
        judge=arguments.judge,
    )
    try:
        yield runner
    finally:
        runner.close()
        policy.close()


def _play(
    arguments: argparse.Namespace,
    player: Player,
    budget: Budget,
    specs: Sequence[EpisodeSpec],
    file: EpisodeFile | None,
    runner: Runner,
) -> EvalResult:
    """Play the episodes of one environment that are not in the file yet, and condense all of them."""
    runner.budget = budget
    if runner.budget.max_tokens < tighten(budget, runner.context).max_tokens:
        announce(f"the model reads {runner.budget.max_tokens} tokens: episodes end there, not at {budget.max_tokens}")
    decoding = {name: getattr(arguments, name) for name in ("temperature", "seed", "engine", "context")}
    result, episodes = run_specs(
        runner,
        player.name,
        specs,
        file,
        read_panel(arguments.panel, specs[0].env_id) if arguments.panel else None,
        settings=_settings(arguments, budget),
        decoding={**decoding, "limits": dataclasses.asdict(runner.budget)},
        prices=(arguments.price_in, arguments.price_out),
        model=describe_model(arguments.model or arguments.endpoint) if player.engine == "model" else None,
    )
    if player.name == "expert":
        warn_of_expert(episodes)
    if None in (arguments.max_turn_tokens, arguments.max_tokens) and (line := cut_line(episodes, runner.budget)):
        print(f"agent-gym: {line}", file=sys.stderr, flush=True)
    return result


def _evaluate(
    arguments: argparse.Namespace,
    players: Sequence[Player],
    budgets: dict[str, Budget],
    specs: Mapping[str, list[EpisodeSpec]],
) -> dict[tuple[str, str], EvalResult]:
    """Return the results by policy and environment, in the order of --policy, whatever had to be started when."""
    results: dict[tuple[str, str], EvalResult] = {}
    with _open_file(arguments) as file:
        for engine in dict.fromkeys(player.engine for player in players):
            mine = [player for player in players if player.engine == engine]
            with _open_runner(arguments, budgets, specs, mine[0].asked, engine) as runner:
                for one in mine:
                    played = _play(arguments, one, budgets[one.env_id], specs[one.env_id], file, runner)
                    results[one.name, one.asked] = played
    return {(one.name, one.asked): results[one.name, one.asked] for one in players}
