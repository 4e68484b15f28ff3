"""An agent of a few lines, to be trained through the gateway: the policy looks for a number (docs/gateway.md).

It knows nothing of this package but its client, which is the one of OpenAI.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TRIES = 4
NUMBERS = [{"number": number} for number in range(1, 10)]
"""Tasks for it."""


class Game(NamedTuple):
    """How a game went."""

    found: bool
    readable: float  # share of the guesses that were numbers


async def guess(client: Any, task: dict[str, Any]) -> Game:
    """Let the policy guess a number from 1 to 9 until it is found, and tell it "higher" or "lower"."""
    talk = [{"role": "user", "content": "Guess a number from 1 to 9."}]
    readable = 0
    for _ in range(TRIES):
        answer = await client.chat.completions.create(model="policy", messages=talk, max_tokens=1)
        text = answer.choices[0].message.content
        talk.append({"role": "assistant", "content": text})
        if text.strip() not in list("123456789"):
            talk.append({"role": "user", "content": "a number"})
            continue
        readable += 1
        if int(text) == task["number"]:
            return Game(True, 1.0)
        talk.append({"role": "user", "content": "higher" if int(text) < task["number"] else "lower"})
    return Game(False, readable / TRIES)


def score(task: dict[str, Any], game: Game, transcript: Any) -> float:
    """1 for the number; else up to 0.2 for guesses that are numbers."""
    return 1.0 if game.found else 0.2 * game.readable
