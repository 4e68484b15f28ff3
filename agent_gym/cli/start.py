"""The first commands: `list` shows the environments, `speedrun` trains a tiny model."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence

from agent_gym.cli.parser import Parser, add_engine, announce, print_table, seed_list
from agent_gym.errors import ConfigError, require
from agent_gym.installed import install_command
from agent_gym.registry import check_env_id, entries

_PRESETS = "cpu gpu alfworld bargain bisect hotpotqa maze retool smollm2 support webshop".split()
"""The names in examples/presets.toml, which are read after the arguments."""


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
        tools = textwrap.shorten(", ".join(entry.tools) or "-", 40, placeholder=" ...")
        rows.append((entry.id, summary, tools, entry.extra or "-"))
    print_table(rows)
    print(f"\nAn extra: {install_command('NAME')}. Data and arguments of one: agent-gym info ID")
    return 0


def speedrun(argv: Sequence[str]) -> int:
    """Model, warm start, GRPO, evaluation: prints a table, writes curve.png and trajectories.html."""
    parser = Parser("speedrun", speedrun.__doc__)
    parser.flag(
        "--preset",
        "with a tiny model made on the spot, minutes on two cores, with controls: bisect, learning to search; bargain, "
        "to wait; support, to keep rules; webshop, to shop; smollm2: as bisect with SmolLM2-135M (agent-gym prepare "
        "smollm2); gpu: Qwen2.5-1.5B-Instruct on real GSM8K; from a made start: alfworld, to look for things; "
        "cpu, GSM8K; hotpotqa, to look up; maze, with a model that reads images; retool, to run programs",
        choices=_PRESETS,
        default="bisect",
    )
    parser.flag("--env ID", "an environment of your own instead of a preset's, with an expert")
    parser.add_env_kwargs()
    parser.flag("--seed", "seed of everything", type=int, default=0)
    parser.flag("--seeds LIST", "several runs, into output_dir/seed_N, and their means, for example 0,1,2")
    parser.flag("--output_dir DIR", "where models and results go", default="runs/speedrun")
    add_engine(parser.flag)
    arguments = parser.parse(argv)
    seeds = seed_list(arguments.seeds) if arguments.seeds is not None else []
    announce("importing torch and TRL")
    from agent_gym.cli.launch import quiet
    from agent_gym.policies.vllm import set_environment

    quiet()
    set_environment()
    require("trl", "train")
    from agent_gym.examples.presets import own_preset
    from agent_gym.examples.speedrun import run_seeds, run_speedrun

    if arguments.env_kwargs and not arguments.env:
        raise ConfigError("speedrun: --env_kwargs belongs to --env; a preset has arguments of its own")
    preset = own_preset(check_env_id(arguments.env), arguments.env_kwargs) if arguments.env else arguments.preset
    if seeds:
        run_seeds(preset, seeds, arguments.output_dir, engine=arguments.engine)
    else:
        run_speedrun(preset, arguments.seed, arguments.output_dir, engine=arguments.engine)
    return 0
