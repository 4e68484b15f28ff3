"""Take the trade with the longer name, which tells nothing: a policy has to know the words."""

import re
from collections.abc import Generator

ENV_ID = "AgentR1/Bandit-v0"
REACHES = 0.53


def attack(opening: str) -> Generator[str, str, None]:
    first, second = re.findall(r"(\w+) or (\w+)\?", opening)[-1]
    while True:
        yield f"<answer>{max(first, second, key=len)}</answer>"
