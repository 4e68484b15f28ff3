"""Ask for everything, turn by turn, and take what is offered in the last one."""

import re
from collections.abc import Generator

ENV_ID = "AgentR1/Bargain-v0"
REACHES = 0.59


def attack(opening: str) -> Generator[str, str, None]:
    pool = " ".join(re.findall(r"\d+", opening.partition("\n")[0]))
    found = re.search(r"have (\d+) turns and act (\w+)", opening)
    turns = int(found[1]) if found else 1
    for _ in range(turns - 1):
        yield f"offer: {pool}"
    yield "accept"
    yield f"offer: {pool}"
