"""What `accelerate launch` runs in each process: a training command, without launching anything further."""

from __future__ import annotations

import sys
from importlib import import_module

from agent_gym.cli.main import guarded


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


if __name__ == "__main__":
    raise SystemExit(main())
