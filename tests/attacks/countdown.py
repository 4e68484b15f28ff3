"""Search all ways to join two numbers, again and again."""

import itertools
import re
from collections.abc import Generator
from fractions import Fraction

ENV_ID = "AgentR1/Countdown-v0"
REACHES = 1.0


def search(parts, target):
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    for a, b in itertools.permutations(parts, 2):
        rest = [part for part in parts if part is not a and part is not b]
        for sign in "+-*/":
            if sign == "/" and not b[0]:
                continue
            values = {"+": a[0] + b[0], "-": a[0] - b[0], "*": a[0] * b[0], "/": a[0] / b[0] if b[0] else None}
            found = search([(values[sign], f"({a[1]} {sign} {b[1]})"), *rest], target)
            if found:
                return found
    return None


def attack(opening: str) -> Generator[str, str, None]:
    target, *numbers = map(int, re.findall(r"\d+", opening.rpartition("Target")[2]))
    while True:
        yield f"<answer>{search([(Fraction(one), str(one)) for one in numbers], target)}</answer>"
