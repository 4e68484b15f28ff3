"""Mutations of JSON: values of other types, missing and doubled fields, deep nesting, huge numbers, half a text."""

from __future__ import annotations

import json
import random
from typing import Any

ESCAPES = "\x1b]0;title\x07\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x9b2J\u202e"
ODD = [
    *(
        "null",
        "true",
        "-1",
        "0",
        "3.5",
        "1" + "0" * 400,
        "NaN",
        "Infinity",
        "-1" + "0" * 30,
        '""',
        '"high"',
        "[]",
        "{}",
    ),
    *('"\\ud800"', '"\\u0000"', json.dumps(ESCAPES), '["\\u001b[2J"]', '{"\\u001b": 1}', "[[]]", '{"a": {}}'),
    *("[" * 900 + "]" * 900, '"' + "x" * 100_000 + '"'),
]
"""Texts of JSON."""


def mutated(value: Any, rng: random.Random) -> str:
    """Return the JSON of a value with one to three mutations, or a broken text of it."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(value))
        holder, key = rng.choice(places)
        change = rng.randrange(5)
        if change == 0 and isinstance(holder, dict):
            del holder[key]
        elif change == 1 and isinstance(holder, dict):
            holder[rng.choice(["\x1b[2J", "extra", ""])] = json.loads(rng.choice(ODD))
        elif change == 2:
            holder[key] = [holder[key], holder[key]]
        else:
            holder[key] = json.loads(rng.choice(ODD))
        if not list(_places(value)):
            break
    text = json.dumps(value)
    if rng.random() < 0.1:
        cut = rng.randrange(len(text))
        text = text[:cut] if rng.random() < 0.5 else text[:cut] + rng.choice('{}[]",:\\\x00') + text[cut:]
    return text


def _places(value: Any, depth: int = 0) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys if depth < 12 else ():
        yield value, key
        yield from _places(value[key], depth + 1)
