"""The first commands: `list` shows the environments, `completion` helps a shell, `speedrun` trains a tiny model.

To complete commands, ids and flags, a shell asks `agent-gym completion words` for the possible next words, which reads
the flags off a command's help.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import CommandParser, add_engine, announce, nearest, positive, seed_list
from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError, require
from agent_gym.evaluate.report import align
from agent_gym.registry import EnvEntry, entries, resolve_env_id

_PRESETS = "bargain bisect gpu maze support webshop zero".split()
"""The names in speedrun/presets.toml, which are read after the arguments."""
_ALGORITHMS = ("grpo", "ppo", "rpp")  # in speedrun/presets.toml, too
_SHELLS = ("bash", "zsh", "fish")


def list_envs(argv: Sequence[str]) -> int:
    """Show the environments: id, summary, tools, the extra that it needs."""
    parser = CommandParser("list", list_envs.__doc__)
    parser.flag("--json", "print JSON instead of a table", action="store_true")
    if parser.parse(argv).json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries()], indent=2, default=dict))
        return 0
    print(_table_of(entries(), shutil.get_terminal_size((80, 24)).columns))
    print(f"\nAn extra: {install_command('NAME')}. Data and arguments of one: agent-gym info ID")
    return 0


def _table_of(shown: Sequence[EnvEntry], width: int) -> str:
    """Return the environments as a table, or where that is wider than the terminal as a list of two columns."""
    rows = [("ID", "TASK", "TOOLS", "EXTRA")]
    for entry in shown:
        summary = f"{entry.summary} ({entry.needs})" if entry.needs else entry.summary
        rows.append((entry.id, summary, ", ".join(entry.tools) or "-", entry.extra or "-"))
    if max(map(len, (table := align(rows)).splitlines())) <= width:
        return table
    left = max(len(entry.id) for entry in shown) + 2
    lines = []
    for name, summary, tools, extra in rows[1:]:
        more = [f"{label}: {text}" for label, text in (("tools", tools), ("extra", extra)) if text != "-"]
        texts = textwrap.wrap(summary, max(20, width - left)) + textwrap.wrap("; ".join(more), max(20, width - left))
        lines += [f"{name if not number else '':<{left}}{text}" for number, text in enumerate(texts)]
    return "\n".join(lines)


def completion(argv: Sequence[str]) -> int:
    """Print a script that lets a shell complete commands, ids and flags."""
    if argv and argv[0] == "words":
        print(*_words(argv[1:]), sep="\n")
        return 0
    parser = CommandParser("completion", completion.__doc__)
    parser.epilog = (
        'use it:  eval "$(agent-gym completion bash)" in ~/.bashrc; eval "$(agent-gym completion zsh)" in ~/.zshrc, '
        "behind compinit; agent-gym completion fish | source in ~/.config/fish/config.fish"
    )
    parser.flag("shell", "the shell", choices=_SHELLS)
    script = Path(__file__).with_name(f"completion-{parser.parse(argv).shell}.txt")
    print(script.read_text(), end="")
    return 0


def _words(before: Sequence[str]) -> list[str]:
    """Return the words that may follow these."""
    from agent_gym.cli.main import COMMANDS

    if not before:
        return list(COMMANDS)
    if before[0] not in COMMANDS:
        return []
    text = _help(before[0])
    kinds = re.findall(rf"^usage: agent-gym {before[0]} ([a-z]+) ", text, re.MULTILINE)
    if kinds and len(before) == 1:
        return kinds
    if kinds:  # each has its own flags
        text = _help(*before[:2])
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)))
    choices = [word for one in re.findall(r"{([\w,-]+)}", text) for word in one.split(",")]
    takes_env = re.search(r"\bENV\b", text) and len(before) == 1
    return [*((entry.id for entry in entries()) if takes_env else ()), *choices, *flags]


def _help(*words: str) -> str:
    from agent_gym.cli.main import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return shown.getvalue()


def speedrun(argv: Sequence[str]) -> int:
    """Model, warm start, reinforcement learning, evaluation: prints a table, writes curve.png, trajectories.html.

    agent-gym speedrun ppo trains by PPO, grpo (the default) by GRPO, rpp by REINFORCE++.
    """
    parser = CommandParser("speedrun", speedrun.__doc__)
    help_text = "grpo, ppo or rpp; and a preset, or an environment of your own with an expert (--preset, --env)"
    parser.flag("what NAME", help_text, nargs="*")
    parser.flag(
        "--preset",
        "with a tiny model made on the spot, minutes on two cores, controls: bisect, to search; bargain, to wait; "
        "support, to keep rules; webshop, to shop; maze, with a model that reads images; zero: sums, with "
        "SmolLM2-135M as it is published (agent-gym prepare smollm2); gpu: Qwen2.5-1.5B-Instruct on real GSM8K",
        choices=_PRESETS,
    )
    parser.flag("--env --env_id ID", "an environment of your own instead of a preset's, with an expert")
    parser.add_env_kwargs()
    help_text = "with --env: a model to begin with, or tiny: made on the spot; default: tiny, or smollm2 for long texts"
    parser.flag("--model --model_name_or_path PATH", help_text)
    help_text = "with --env: steps of imitation; default: 160 (40 with --model), repeated up to eight times"
    parser.flag("--imitation_steps N", help_text, type=positive)
    parser.flag("--seed", "seed of everything", type=int, default=0)
    parser.flag("--seeds LIST", "several runs, into output_dir/seed_N, and their means, for example 0,1,2")
    parser.flag("--output_dir DIR", "where models and results go; default: runs/speedrun, or runs/speedrun_ppo, _rpp")
    parser.flag("--dry_run", "only print the plan", action="store_true")
    add_engine(parser.flag)
    arguments = parser.parse(argv)
    algorithm, preset, env_id = _named(arguments)
    folder = arguments.output_dir or ("runs/speedrun" if algorithm == "grpo" else f"runs/speedrun_{algorithm}")
    seeds = seed_list(arguments.seeds) if arguments.seeds is not None else []
    announce("importing torch and TRL")
    from agent_gym.cli.launch import before_imports

    before_imports()
    require("trl", "train")
    from agent_gym.speedrun.presets import PRESETS, own_preset, plan_of, trained_by

    own = {"model": arguments.model, "imitation_steps": arguments.imitation_steps}
    for flag, value in {"env_kwargs": arguments.env_kwargs, **own}.items():
        if value and env_id is None:
            raise ConfigError(f"speedrun: --{flag} belongs to --env; a preset has its own arguments")
    found = PRESETS[preset] if env_id is None else own_preset(env_id, arguments.env_kwargs, **own)
    chosen = trained_by(found, algorithm)
    if arguments.dry_run:
        print(plan_of(chosen, seeds or [arguments.seed], folder), end="")
        return 0
    from agent_gym.speedrun.run import run_seeds, run_speedrun

    if seeds:
        run_seeds(chosen, seeds, folder, engine=arguments.engine)
    else:
        run_speedrun(chosen, arguments.seed, folder, engine=arguments.engine)
    return 0


def _named(arguments: argparse.Namespace) -> tuple[str, str, str | None]:
    """Return the algorithm, the preset, and the environment of one's own or None, that a command line names."""
    algorithms, words = [[one for one in arguments.what if (one in _ALGORITHMS) == known] for known in (True, False)]
    if len(algorithms) > 1:
        raise ConfigError(f"speedrun: {' and '.join(algorithms)} are two algorithms; name one of grpo, ppo, rpp")
    algorithm, preset, env = (*algorithms, "grpo")[0], arguments.preset, arguments.env
    if len(given := [*words, *(one for one in (preset, env) if one is not None)]) > 1:
        raise ConfigError(f"speedrun: {' and '.join(given)} are two; name one preset or one environment")
    word = words[0] if words else None
    if word in _PRESETS:
        return algorithm, word, None
    if (env := env or word) is None:
        return algorithm, preset or "bisect", None
    try:
        return algorithm, "", resolve_env_id(env)
    except ConfigError as error:
        if word is None:
            raise
        near = nearest(word, [*_PRESETS, *_ALGORITHMS])
        more = "" if near.startswith("did you") else f", and {error}"
        raise ConfigError(f"speedrun: {word!r} is no preset, algorithm or environment; {near}{more}") from error
