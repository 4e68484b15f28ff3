"""How a training command starts: here, or as several processes of `accelerate launch`.

What none of the settings knows belongs to the launcher, from the command line and from the yaml file alike, as with the
command `trl`. Unlike there, training without any launcher argument runs in this process, and an argument that
`accelerate launch` does not know either is an error before any process starts. Each of its processes runs this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from agent_gym.cli.flags import short_help
from agent_gym.cli.main import guarded
from agent_gym.cli.parser import announce
from agent_gym.errors import require

LAUNCHER = "AGENT_GYM_LAUNCHER"  # the environment variable with the process id of the launcher, for its processes
_PR_SET_PDEATHSIG = 1


def train(name: str, argv: Sequence[str], *, launched: bool = False) -> int:
    """Train by a command line, or show the help; a process of the launcher trains without checking again."""
    if {"-h", "--help"}.intersection(argv):
        print(short_help(name), end="")
        return 0
    if not launched:
        announce("importing torch and TRL")
    if name != "sft":
        from agent_gym.policies.vllm import set_environment

        set_environment()
    require("trl", "train")
    from agent_gym.cli.train import COMMANDS, TrainingParser

    check, run_training = COMMANDS[name]
    parsed, launch = TrainingParser(name).read(argv)
    if not launched:
        check(*parsed)
        if launch:  # its processes read the same arguments, and leave out the launcher's
            return run([*launch, "--module", "agent_gym.cli.launch", name, *argv])
    run_training(*parsed)
    return 0


grpo, ppo, sft = (partial(train, name) for name in ("grpo", "ppo", "sft"))


def run(arguments: Sequence[str]) -> int:
    """Run `accelerate launch` with these arguments and return its exit code."""
    here = os.getpid()

    def begin() -> None:
        end_with(here)
        os.environ[LAUNCHER] = str(os.getpid())

    # A group of its own: Ctrl-C reaches it once, from here, and it has the time to end its processes.
    command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
    launcher = subprocess.Popen(command, preexec_fn=begin, process_group=0)
    try:
        return launcher.wait()
    except KeyboardInterrupt:
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.wait()
        raise


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, however that ends; elsewhere than on Linux do nothing.

    If the parent is gone already, this process ends at once: the kernel reports later deaths only.
    """
    if sys.platform != "linux":
        return
    from agent_gym.sandbox.inside.kernel import prctl

    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # torchrun starts its processes in sessions of their own: killed outright, it would leave them training. With other
    # launchers the parent may be another process than the one that this variable names.
    launcher_id = os.environ.get(LAUNCHER) if "TORCHELASTIC_RUN_ID" in os.environ else None
    end_with(int(launcher_id) if launcher_id else os.getppid())
    raise SystemExit(guarded(lambda: train(sys.argv[1], sys.argv[2:], launched=True)))
