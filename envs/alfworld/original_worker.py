"""Plays games with TextWorld: a line of JSON in, a line of JSON out. It runs as a script, see original.py."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    # The planner's translator prints, and answers must not be mixed with that.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    env: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if env is None:
                import textworld
                from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
                from textworld.envs import PddlEnv

                # One for all games: each copies the planner's library to the disk and never gives it back.
                env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
            if "game" in request:
                env.load(request["game"])
                state = env.reset()
            else:
                state, _, _ = env.step(request["command"])
            answer = {"text": state["feedback"], "admissible": state["admissible_commands"], "won": state["won"]}
        except Exception:  # the other side reports it
            answer = {"error": traceback.format_exc(limit=-3)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
