"""What `rollout` and `eval` share: the flags that say who plays and within which limits, and the playing itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agent_gym.cli import engine as engines
from agent_gym.cli.endpoint import build_endpoint
from agent_gym.cli.parser import Parser, positive
from agent_gym.cli.players import MODEL, SCRIPTS, Player, find_players
from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.evaluate import EpisodeFile
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
"""Flags that decide what an episode is like, so that a file is gone on with under the same ones only."""


def add_output(parser: Parser, default: str | None = None) -> None:
    """Add the flags for the file of the episodes."""
    help_text = "write each episode there as it ends; for view, rescore, compare and --resume"
    parser.add_argument("--output", default=default, metavar="FILE.jsonl", help=help_text)
    parser.add_argument("--resume", action="store_true", help="go on with what --output holds")


def add_player(parser: Parser) -> None:
    """Add the flags for the policy."""
    parser.set_defaults(policy=[])  # `eval` has a flag for it
    group = parser.add_argument_group("who plays")
    help_text = "model folder or hub id, or the model's name at an endpoint"
    group.add_argument("--model", "--model_name_or_path", metavar="PATH", help=help_text)
    group.add_argument("--expert", action="store_true", help="the environment's own expert plays instead of a model")
    help_text = "an OpenAI-compatible server, for example http://127.0.0.1:8000/v1; its key: $OPENAI_API_KEY"
    group.add_argument("--endpoint", metavar="URL", help=help_text)
    help_text = "folder or hub id of the tokenizer, where an endpoint does not tell; for the expert that of the model"
    group.add_argument("--tokenizer", metavar="PATH", help=help_text)
    group.add_argument(
        "--concurrency", type=positive, metavar="N", default=64, help="most requests at the endpoint at the same time"
    )
    group.add_argument(
        "--engine", choices=engines.ENGINES, default="auto", help="what samples; auto takes vLLM where it is installed"
    )


def add_limits(parser: Parser) -> None:
    """Add the flags for tasks, seeds and budgets."""
    budget = Budget()
    parser.add_env_kwargs()
    group = parser.add_argument_group("tasks and limits")
    group.add_argument("--seed", type=int, default=0, help="base of the seeds of environments and sampling")
    group.add_argument("--max_turns", type=int, metavar="N", help="turns, besides the environment's own limit")
    group.add_argument(
        "--max_turn_tokens", type=int, metavar="N", default=budget.max_turn_tokens, help="tokens sampled per turn"
    )
    group.add_argument(
        "--max_tokens", type=int, metavar="N", default=budget.max_tokens, help="tokens of a context, prompt included"
    )
    group.add_argument("--max_seconds", type=float, metavar="S", help="wall-clock time of an episode")
    group.add_argument(
        "--context",
        metavar="POLICY",
        default="append",
        help=f"what the model sees next: {', '.join(CONTEXTS)}; write numbers for the capitals",
    )
    group.add_argument("--workers", type=positive, metavar="N", default=32, help="environments that run at once")
    help_text = "processes that run environments while the threads wait; for those that compute in Python"
    group.add_argument("--env_processes", type=int, metavar="N", default=0, help=help_text)


def check_player(arguments: argparse.Namespace, env_ids: Sequence[str]) -> list[Player]:
    """Find the cheap mistakes before an engine is started, and return who plays.

    Raises:
        ConfigError: for an unknown environment, nobody who plays, a policy that an environment does not have, or a
            context policy that cannot be had.
    """
    for env_id in env_ids:
        check_env_id(env_id)
    players = find_players(arguments, env_ids)
    _limits(arguments)
    return players


def _limits(arguments: argparse.Namespace) -> tuple[Budget, Context]:
    context = make_context(arguments.context)
    budget = Budget(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns, arguments.max_seconds)
    return tighten(budget, context), context


@contextmanager
def open_runner(arguments: argparse.Namespace, env_id: str, engine: str = MODEL) -> Iterator[tuple[Any, Runner]]:
    """Start the policy and a runner, and stop both at the end.

    Args:
        arguments: the flags of `add_player` and `add_limits`.
        env_id: the environment.
        engine: what plays, as in `Player.engine`.

    Yields:
        The tokenizer and the runner.
    """
    budget, context = _limits(arguments)
    tokenizer, policy = _policy(arguments, env_id, engine, budget.max_tokens)
    runner = Runner(
        policy,
        tokenizer,
        budget,
        context=context,
        workers=arguments.workers,
        env_processes=arguments.env_processes,
        progress=True,
    )
    try:
        yield tokenizer, runner
    finally:
        runner.close()
        policy.close()


@contextmanager
def open_file(arguments: argparse.Namespace) -> Iterator[EpisodeFile | None]:
    """Open the file of the episodes, if there is to be one, and say what is in it when the run is broken off.

    Raises:
        ConfigError: see `EpisodeFile`.
    """
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


def play(
    arguments: argparse.Namespace,
    name: str,
    specs: Sequence[EpisodeSpec],
    file: EpisodeFile | None,
    runner: Runner,
    tokenizer: Any,
) -> list[Episode]:
    """Play what the file does not hold yet, and return all of it.

    Args:
        arguments: the flags.
        name: of the policy.
        specs: episodes of one environment.
        file: gets each episode as it ends.
        runner: plays.
        tokenizer: for the text of each token in the file.
    """
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


def _policy(arguments: argparse.Namespace, env_id: str, engine: str, context: int) -> tuple[Any, Policy]:
    if engine in SCRIPTS:
        # A name at an endpoint is no folder or hub id.
        model = arguments.tokenizer or (None if arguments.endpoint else arguments.model)
        return engines.scripted(model, env_id, arguments.env_kwargs, SCRIPTS[engine])
    if arguments.endpoint:
        return build_endpoint(
            arguments.endpoint,
            arguments.model,
            arguments.tokenizer,
            env_id=env_id,
            env_kwargs=arguments.env_kwargs,
            context=context,
            concurrency=arguments.concurrency,
        )
    return engines.build(arguments.model, arguments.engine, context=context, seed=arguments.seed)
