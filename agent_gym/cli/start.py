"""The first commands: `list` shows the environments, `new` writes one to change, `speedrun` trains a tiny model."""

from __future__ import annotations

import dataclasses
import json
import keyword
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from agent_gym.cli.parser import Parser, add_engine, announce, print_table
from agent_gym.errors import ConfigError, require
from agent_gym.installed import install_command
from agent_gym.registry import check_env_id, entries

# Template to where it goes in the new folder.
_PLACES = {
    "env.py.txt": "{name}/env.py",
    "__init__.py.txt": "{name}/__init__.py",
    "test.py.txt": "tests/test_{name}.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}


def list_envs(argv: Sequence[str]) -> int:
    """Show the environments: id, what it is, tools, the extra that it needs."""
    parser = Parser("list", list_envs.__doc__, config=False)
    parser.flag("--json", "print JSON instead of a table", action="store_true")
    if parser.parse(argv).json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries()], indent=2, default=dict))
        return 0
    rows = [("ID", "TASK", "TOOLS", "EXTRA")]
    for entry in entries():
        summary = f"{entry.summary} ({entry.needs})" if entry.needs else entry.summary
        rows.append((entry.id, summary, ", ".join(entry.tools) or "-", entry.extra or "-"))
    print_table(rows)
    print(f"\nAn extra: {install_command('NAME')}. Data and arguments of one: agent-gym info ID")
    return 0


def new(argv: Sequence[str]) -> int:
    """Write a folder with a small environment that works, its registration and its test: yours to change."""
    parser = Parser("new", new.__doc__, config=False)
    parser.flag("kind", "what to make", choices=("env",))
    parser.flag("name", "name of the package, for example my_task")
    parser.flag("--folder", "where to; default: a folder of that name, here")
    parser.flag("--namespace", "first part of the environment's id", default="Mine")
    arguments = parser.parse(argv)
    name = arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"new: {name!r} cannot name a package: use small letters, digits and _, for example my_task")
    installed = find_spec(name)
    if installed is not None and installed.origin is not None:  # a mere folder has none, and hides nothing
        raise ConfigError(f"new: a module {name!r} is installed already, and would hide yours; choose another name")
    if not re.fullmatch(r"[A-Za-z][\w-]*", arguments.namespace):
        raise ConfigError(f"new: --namespace is {arguments.namespace!r}; use letters and digits, for example Mine")
    folder = Path(arguments.folder or name)
    if folder.exists():
        raise ConfigError(f"new: {str(folder)!r} exists already; give another name or --folder")
    camel = "".join(part.capitalize() for part in name.split("_"))
    env_id = f"{arguments.namespace}/{camel}-v0"
    title, dashed = name.replace("_", " ").capitalize(), name.replace("_", "-")
    words = {"name": name, "camel": camel, "dashed": dashed, "title": title, "env_id": env_id}
    for template, place in _PLACES.items():
        path = folder / place.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = files("agent_gym.cli").joinpath("new-env", template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8")
        print(path)
    print(
        f"\nNext:\n  cd {os.path.relpath(folder)}\n  python -m pytest\n  agent-gym play {name}:{env_id}\n"
        f"  agent-gym speedrun --env {name}:{env_id}"
    )
    return 0


def speedrun(argv: Sequence[str]) -> int:
    """Model, warm start, GRPO, evaluation: prints a table, writes curve.png and trajectories.html."""
    parser = Parser("speedrun", speedrun.__doc__)
    parser.flag(
        "--preset",
        "bisect: learning to search, with a tiny model made on the spot and with controls, minutes on two cores; "
        "smollm2: as bisect with SmolLM2-135M (agent-gym prepare smollm2); gpu: Qwen2.5-1.5B-Instruct on real GSM8K; "
        "the others with a tiny model and a made start: alfworld, learning to look for things; cpu, GSM8K; "
        "hotpotqa, learning to look up; maze, with a model that reads images; retool, learning to run programs; "
        "webshop, learning to shop",
        choices=("cpu", "gpu", "alfworld", "bisect", "hotpotqa", "maze", "retool", "smollm2", "webshop"),
        default="bisect",
    )
    parser.flag("--env ID", "an environment of your own instead of a preset's, with an expert")
    parser.add_env_kwargs()
    parser.flag("--seed", "seed of everything", type=int, default=0)
    parser.flag("--seeds LIST", "several runs, into output_dir/seed_N, and their means, for example 0,1,2", type=_seeds)
    parser.flag("--output_dir DIR", "where models and results go", default="runs/speedrun")
    add_engine(parser.flag)
    arguments = parser.parse(argv)
    announce("importing torch and TRL")
    from agent_gym.policies.vllm import set_environment

    set_environment()
    require("trl", "train")
    from agent_gym.examples.presets import own_preset
    from agent_gym.examples.speedrun import run_seeds, run_speedrun

    if arguments.env_kwargs and not arguments.env:
        raise ConfigError("speedrun: --env_kwargs belongs to --env; a preset has arguments of its own")
    preset = own_preset(check_env_id(arguments.env), arguments.env_kwargs) if arguments.env else arguments.preset
    if arguments.seeds:
        run_seeds(preset, arguments.seeds, arguments.output_dir, engine=arguments.engine)
    else:
        run_speedrun(preset, arguments.seed, arguments.output_dir, engine=arguments.engine)
    return 0


def _seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise ArgumentTypeError(f"expected different whole numbers with commas between them, as 0,1,2; got {text!r}")
    return [int(part) for part in parts]
