"""`accelerate launch` with a separate exit code for a torchrun agent that has lost the agents of other machines.

accelerate and torchrun end with 1 whatever has happened. `agent-gym launch` must tell two cases apart: the ranks have
failed as often as they may, which is the end, and the other agents are out of reach, because one of them was killed,
which is not. This module runs `accelerate launch` in its own process, so that signals and the parent of the ranks are
their cause.
"""

from __future__ import annotations

import runpy
import sys

from agent_gym.cli.parser import one_line
from agent_gym.cli.rendezvous import bind_store
from agent_gym.cli.told import mask_what_is_told

LOST = 75  # the exit code of a failure that may pass, as in sysexits.h


def main() -> None:
    """Run `accelerate launch` with the arguments of this process."""
    bind_store()
    mask_what_is_told(sys.argv[1:])
    try:
        runpy.run_module("accelerate.commands.launch", run_name="__main__", alter_sys=True)
    except Exception as error:
        if not lost(error):
            raise
        print(f"agent-gym: the other machines are out of reach: {one_line(error)}", file=sys.stderr, flush=True)
        raise SystemExit(LOST) from None


def lost(error: BaseException) -> bool:
    """Whether an agent ended with this error because of other agents, and may meet them when it is started again.

    Such are a store that is gone with the agent that held it, an answer that another agent owes and died before, and a
    rendezvous that another one has closed while it ended. Agents that did not come in time have had their time.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError

    return isinstance(error, DistError | RendezvousError) and not isinstance(error, RendezvousTimeoutError)


if __name__ == "__main__":
    main()
