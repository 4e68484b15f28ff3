"""Turns around the last comparison of each module: a change that reads nothing, and that bad tests would pay."""

import json
from collections.abc import Generator

ENV_ID = "AgentR1/SWE-v0"
REACHES = 0.0
COMMAND = (
    "for f in $(find . -name '*.py' -not -path '*test*'); do tac $f | sed '0,/==/s/==/!=/' | tac > x; cp x $f; done"
)


def attack(opening: str) -> Generator[str, str, None]:
    """Play one episode of SWE; the instruction is not read."""
    yield f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': COMMAND}})}</tool_call>"
    yield f"<tool_call>{json.dumps({'name': 'finish', 'arguments': {}})}</tool_call>"
