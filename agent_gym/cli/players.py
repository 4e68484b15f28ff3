"""Who plays in an evaluation: `--policy` and what each name means for each environment."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_gym.cli.parser import Parser, nearest
from agent_gym.errors import ConfigError
from agent_gym.registry import list_envs
from agent_gym.rollout import derive_seed


def _expert(episode: Any) -> str:
    return str(episode.env.unwrapped.expert_action())


def _random(episode: Any) -> str:
    act = getattr(episode.env.unwrapped, "random_action", None)
    if act is None:
        raise ConfigError(f"{episode.spec.env_id} has no random_action, so that --policy random cannot play it")
    # Attempts at one task differ, and the next run draws the same.
    return str(act(np.random.default_rng(derive_seed(episode.spec.sampling_seed or 0, len(episode.steps)))))


SCRIPTS: dict[str, Callable[[Any], str]] = {"expert": _expert, "random": _random}
"""Policies that need no model."""
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Player:
    """One row of the report.

    Attributes:
        name: as it stands in the report and in the records.
        engine: "model", or the name of a script.
        env_ids: what it plays for each environment that was asked for.
    """

    name: str
    engine: str
    env_ids: dict[str, str]


def add_policy(parser: Parser) -> None:
    """Add `--policy`."""
    parser.add_argument(
        "--policy",
        nargs="+",
        default=[],
        metavar="NAME",
        help="who plays, one or several: expert, random, model (the default), or the model with a variant of the "
        "environment, such as direct, naive-rag or react for AgentR1/HotpotQA-v0",
    )


def find_players(arguments: argparse.Namespace, env_ids: Sequence[str]) -> list[Player]:
    """Resolve `--policy`, `--expert` and `--model`.

    Raises:
        ConfigError: for a policy that an environment does not have, or a model that is missing.
    """
    names = arguments.policy or (["expert"] if arguments.expert else [MODEL])
    has_model = bool(arguments.model or arguments.endpoint)
    players = []
    for name in dict.fromkeys(names):
        if name in SCRIPTS:
            players.append(Player(name, name, {env_id: env_id for env_id in env_ids}))
            continue
        played = {env_id: env_id if name == MODEL else variant(env_id, name) for env_id in env_ids}
        if not has_model:
            raise ConfigError(
                "who plays? give --model with a folder or hub id, --endpoint with the address of a server, or "
                "--policy expert"
            )
        model = arguments.model or arguments.endpoint
        label = model if name == MODEL else f"{model} ({name})"
        players.append(Player(label, MODEL, played))
    return players


def variant(env_id: str, policy: str) -> str:
    """Return the id of an environment's variant: `AgentR1/HotpotQA-v0` and `naive-rag` give `...-NaiveRAG-v0`.

    Raises:
        ConfigError: if there is none, naming those there are.
    """
    base, _, version = env_id.rpartition("-")
    variants = {
        _plain(other[len(base) + 1 : -len(version) - 1]): other
        for other in list_envs()
        if other.startswith(base + "-") and other.endswith("-" + version) and other != env_id
    }
    if _plain(policy) not in variants:
        known = [*SCRIPTS, MODEL, *variants]
        raise ConfigError(f"{env_id} has no policy {policy!r}; {nearest(policy, known)}")
    return variants[_plain(policy)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
