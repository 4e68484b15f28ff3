"""What `accelerate launch` runs in each process: a training command, without launching anything further."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from agent_gym.cli.main import guarded

LAUNCHER = "AGENT_GYM_LAUNCHER"
"""The environment variable in which the launcher tells its processes its own number."""

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Train as the command line says."""
    command, *arguments = sys.argv[1:]
    module = import_module(f"agent_gym.cli.{command}")

    def work() -> int:
        # The yaml file still holds the launcher's keys; the parent has used them.
        parsed, _, _ = module.make_parser().read(arguments)
        module.train(*parsed)
        return 0

    return guarded(work)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, however that ends; elsewhere than on Linux do nothing.

    Args:
        parent: the process that started this one. If it is gone already, this process ends at once: the kernel tells of
            deaths to come only.
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
    launcher = os.environ.get(LAUNCHER) if "TORCHELASTIC_RUN_ID" in os.environ else None
    end_with(int(launcher) if launcher else os.getppid())
    raise SystemExit(main())
