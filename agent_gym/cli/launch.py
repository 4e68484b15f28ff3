"""How a training command starts: here, or as several processes of `accelerate launch`.

Flags that are not settings belong to the launcher, from the command line and from the yaml file alike, as with the
command `trl`. Unlike there, training without any launcher argument runs in this process, and an argument that
`accelerate launch` does not know either is an error before any process starts. Each of its processes runs this module.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_gym.cli import agent
from agent_gym.cli.early import check_early
from agent_gym.cli.flags import help_text
from agent_gym.cli.main import guarded
from agent_gym.cli.parser import announce, read_yaml, seed_list, take_option, with_underscores
from agent_gym.cli.runs import over_seeds
from agent_gym.cli.told import mask_what_is_told
from agent_gym.errors import ConfigError, require
from agent_gym.policies.vllm import set_environment
from agent_gym.public import public_text
from agent_gym.trainers.run_file import recorded
from agent_gym.untrusted import harmless

LAUNCHER = "AGENT_GYM_LAUNCHER"  # the environment variable with the process id of the launcher, for its processes
_PACKAGE = Path(__file__).resolve().parents[1]


def train(name: str, argv: Sequence[str], *, launched: bool = False) -> int:
    """Train by a command line, or show the help; a process of the launcher trains without checking again."""
    if {"-h", "--help"}.intersection(argv):
        print(help_text(name, argv), end="")
        return 0
    if find_spec("trl") is None:
        require("trl", "train")
    words = with_underscores(argv)
    shown = [flag for flag in ("--print_config", "--dry_run") if flag in words]
    seeds, argv = take_option([word for word in words if word not in shown], "--seeds")
    given: dict[str, Any] = {}
    if not launched and "--help_all" not in argv:
        given = check_early(name, argv)
        if seeds is not None and not shown:
            folder = given.get("output_dir")
            if not folder:
                raise ConfigError("--seeds puts each run into its own folder: name the outer one by --output_dir")
            return over_seeds(name, argv, seed_list(seeds), str(folder), run_to_its_end)
        announce("importing torch and TRL")
    before_imports()
    from agent_gym.cli.train import COMMANDS, TrainingParser

    check, run_training = COMMANDS[name]
    parsed, launch = TrainingParser(name).read(argv)
    if launched:
        run_training(*parsed)
        return 0
    tasks = check(*parsed)
    if shown:
        from agent_gym.cli.dry import config_text, plan_text

        print(config_text(name, parsed, given, launch), end="")
        if "--dry_run" in shown:
            print(plan_text(name, parsed, tasks, launch), end="")
        return 0
    with recorded(name, argv, parsed[1].output_dir, _meeting(launch)) as outcome:
        if launch:  # its processes read the same arguments, and leave out the launcher's
            outcome["code"] = run([*launch, "--module", "agent_gym.cli.launch", name, *argv])
        else:
            run_training(*parsed)
    return outcome.get("code", 0)


def _meeting(launch: Sequence[str]) -> str:
    """Return where the machines of a run meet, from arguments of `accelerate launch`; "" for a single machine."""
    words = [part for word in launch for part in (word.split("=", 1) if word.startswith("--") else [word])]
    found = dict(zip(words, words[1:], strict=False))
    file = found.get("--config_file")
    known = read_yaml(file) if file and Path(file).is_file() and file.endswith((".yaml", ".yml")) else {}
    names = ("num_machines", "main_process_ip", "main_process_port")
    machines, *place = (str(found.get(f"--{name}", known.get(name, ""))) for name in names)
    return ":".join(["machines", machines, *place]) if machines not in ("", "1") else ""


def before_imports() -> None:
    """Set vLLM's variables; leave only errors to others, also in started processes; our warnings become a line each."""
    set_environment()
    for variable in ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY", "ACCELERATE_LOG_LEVEL"):
        os.environ.setdefault(variable, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for library in ("torch", "trl", "torchao", "peft"):
        logging.getLogger(library).setLevel(logging.ERROR)

    def show(message: Warning | str, category: type[Warning], filename: str, *where: Any, **more: Any) -> None:
        place = Path(filename)
        if _PACKAGE in place.parents or "site-packages" not in place.parts:  # ours, or the user's
            print(f"agent-gym: {harmless(public_text(' '.join(str(message).split())))}", file=sys.stderr)

    warnings.showwarning = show


grpo, ppo, sft = (partial(train, name) for name in ("grpo", "ppo", "sft"))


def run(arguments: Sequence[str]) -> int:
    """Run `accelerate launch` with these arguments and return its exit code."""
    return run_to_its_end([sys.executable, "-m", agent.__name__, *arguments])


def run_to_its_end(command: Sequence[str]) -> int:
    """Run a command that ends with this process, and return its exit code.

    It has a separate process group: Ctrl-C reaches it once, from here, and it has the time to end its processes.
    """
    here = os.getpid()

    def prepare() -> None:
        end_with(here)
        os.environ[LAUNCHER] = str(os.getpid())

    # In a separate group it could not read the terminal: a question fails at once, where it would stop for ever.
    process = subprocess.Popen(command, preexec_fn=prepare, process_group=0, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise


def end_with(parent: int) -> None:
    """Have this process end with its parent, which may be gone already; elsewhere than on Linux do nothing."""
    if sys.platform == "linux":
        from agent_gym.sandbox.inside.kernel import die_with

        die_with(parent)


if __name__ == "__main__":
    # torchrun starts its processes in separate sessions: killed outright, it would leave them training. With other
    # launchers the parent may be another process than the one that this variable names.
    launcher_id = os.environ.get(LAUNCHER) if "TORCHELASTIC_RUN_ID" in os.environ else None
    end_with(int(launcher_id) if launcher_id else os.getppid())
    mask_what_is_told(sys.argv[1:])
    raise SystemExit(guarded(lambda: train(sys.argv[1], sys.argv[2:], launched=True)))
