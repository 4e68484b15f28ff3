"""What `rollout` and `eval` share: the flags that say who plays and within which limits, and the playing itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent_gym.cli import engine
from agent_gym.cli.parser import Parser, positive
from agent_gym.errors import ConfigError
from agent_gym.registry import check_env_id
from agent_gym.rollout import CONTEXTS, Budget, Context, Runner, make_context, tighten


def add_player(parser: Parser) -> None:
    """Add the flags for the policy."""
    group = parser.add_argument_group("who plays")
    group.add_argument("--model", "--model_name_or_path", metavar="PATH", help="model folder or hub id")
    group.add_argument("--expert", action="store_true", help="the environment's own expert plays instead of a model")
    group.add_argument(
        "--engine", choices=engine.ENGINES, default="auto", help="what samples; auto takes vLLM where it is installed"
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
    group.add_argument("--workers", type=positive, metavar="N", default=32, help="threads that run environments")


def check_player(arguments: argparse.Namespace, env_ids: list[str]) -> None:
    """Find the cheap mistakes before an engine is started.

    Raises:
        ConfigError: for an unknown environment, not exactly one of model and expert where that matters, or a context
            policy that cannot be had.
    """
    for env_id in env_ids:
        check_env_id(env_id)
    if arguments.model is None and not arguments.expert:
        raise ConfigError("who plays? give --model with a folder or hub id, or --expert")
    _limits(arguments)


def _limits(arguments: argparse.Namespace) -> tuple[Budget, Context]:
    context = make_context(arguments.context)
    budget = Budget(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns, arguments.max_seconds)
    return tighten(budget, context), context


@contextmanager
def open_runner(arguments: argparse.Namespace, env_id: str) -> Iterator[tuple[Any, Runner]]:
    """Start the policy and a runner, and stop both at the end.

    Args:
        arguments: the flags of `add_player` and `add_limits`.
        env_id: the environment whose demonstrations the expert's own tokenizer is trained on, where it needs one.

    Yields:
        The tokenizer and the runner.
    """
    budget, context = _limits(arguments)
    if arguments.expert:
        tokenizer, policy = engine.expert(arguments.model, env_id, arguments.env_kwargs)
    else:
        tokenizer, policy = engine.build(
            arguments.model, arguments.engine, context=budget.max_tokens, seed=arguments.seed
        )
    runner = Runner(policy, tokenizer, budget, context=context, workers=arguments.workers, progress=True)
    try:
        yield tokenizer, runner
    finally:
        runner.close()
        policy.close()
