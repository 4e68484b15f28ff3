"""`agent-gym certify` and `agent-gym info`: tests of an environment's promises, and its card."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from typing import Any

import gymnasium

from agent_gym import __version__
from agent_gym.certify import CHECKS
from agent_gym.certify import certify as run_checks
from agent_gym.certify.attacks import load_script
from agent_gym.certify.record import Record
from agent_gym.certify.report import badge, page, text
from agent_gym.cli.engine import load_tokenizer, spoken
from agent_gym.cli.parser import CommandParser
from agent_gym.cli.view import check_new
from agent_gym.errors import ConfigError, write_whole
from agent_gym.registry import EnvEntry, entries, make
from agent_gym.viewer.card import card

_SHOWN = 400  # characters of a text of the example


def certify(argv: Sequence[str]) -> int:
    """Check an environment, yours or ours, by playing it: exit code 1 if a check fails."""
    parser = CommandParser("certify", certify.__doc__)
    parser.add_env()
    parser.add_env_kwargs()
    parser.flag("--quick", "a tenth of the tasks and actions: seconds and not minutes", action="store_true")
    parser.flag("--checks NAME", "only these", nargs="+", choices=[*CHECKS], default=[*CHECKS])
    parser.flag("--model PATH", "a model that plays, for the difficulty: smollm2, a folder or a hub id")
    parser.flag("--learn", "train the tiny model of `speedrun --env`, too (minutes)", action="store_true")
    parser.flag("--env_processes N", "let the expert play in so many processes, as trainers do", type=int, default=0)
    parser.flag("--script FILE.py", "an attacker of your own, attack(opening), played beside the others")
    parser.flag("--json FILE", "write the records there")
    parser.flag("--page FILE.html", "write the certificate as one page")
    parser.flag("--badge FILE.svg", "write a badge for a README")
    arguments = parser.parse(argv)
    outputs = {kind: path for kind in ("json", "page", "badge") if (path := getattr(arguments, kind))}
    for path in outputs.values():
        check_new(path)
    if arguments.script:
        load_script(arguments.script)

    def show(record: Record) -> None:
        print(f"{record.name:<12} {record.verdict:<8} {record.text}", flush=True)

    if arguments.model:
        print(f"{'calls':<12} {'':<8} {spoken(load_tokenizer(arguments.model))}", flush=True)
    settings = {name: getattr(arguments, name) for name in ("quick", "script", "model", "learn", "env_processes")}
    records = run_checks(arguments.env_id, arguments.env_kwargs, checks=arguments.checks, on_record=show, **settings)
    print(f"\n{text(records)}")
    about = {
        "env_id": arguments.env_id,
        "env_kwargs": arguments.env_kwargs,
        "quick": arguments.quick,
        "agent_gym": __version__,
        "gymnasium": gymnasium.__version__,
        "records": [dataclasses.asdict(record) for record in records],
    }
    written = {
        "json": json.dumps(about, indent=2) + "\n",
        "page": page(arguments.env_id, records),
        "badge": badge(records),
    }
    for kind, path in outputs.items():
        write_whole(path, written[kind])
        print(f"{kind:<12} {path}")
    return int(any(record.verdict == "fail" for record in records))


def info(argv: Sequence[str]) -> int:
    """Print the card of an environment: summary, spaces, arguments, rewards, tools, baselines, an episode."""
    parser = CommandParser("info", info.__doc__)
    parser.add_env()
    parser.add_env_kwargs("arguments with which the example is played, for an id that needs some")
    parser.flag("--model PATH", "a model, to say in which form it writes calls: smollm2, a folder or a hub id")
    arguments = parser.parse(argv)
    spec = gymnasium.registry[arguments.env_id.rpartition(":")[2]]
    point = spec.entry_point
    made: Any = gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    if not isinstance(made, type):  # a function
        made = type(make(arguments.env_id, **arguments.env_kwargs))
    if not hasattr(made, "reward_weights"):
        raise ConfigError(f"{arguments.env_id} is not a class of agent_gym.TextEnv; see help() of {point}")
    known = {entry.id: entry for entry in entries()}
    about = (inspect.getdoc(made) or "").partition("\n")[0]
    entry = known.get(spec.id) or EnvEntry(spec.id, str(point), about, kwargs=spec.kwargs)
    print(card([entry], made, arguments.env_kwargs, _SHOWN), end="")
    if arguments.model:
        print(f"\n{arguments.model}: {spoken(load_tokenizer(arguments.model))}")
    return 0
