"""The meanings a generated word problem is made of: families of sentences, and the words that fill their slots.

A problem is one opening, some following sentences and one question. A `Family` is one meaning (an expression, and
what is counted before and after it) with its wordings from the table in `sentences.py`. Every wording belongs to
one split only, so a policy that solves validation or test problems has understood sentences it never saw. The
vocabulary below is shared by all splits.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.envs.gsm8k.sentences import TABLE

SPLITS = ("train", "validation", "test")

NAMES = (
    "Anna Ben Carl Dora Emil Eva Finn Gina Hugo Ivan Jane Kofi Lena Lily Max Mia Nina Noah Omar Paul Ruth Sara Tom Zoe"
).split()
ITEMS = "apples beads books cards coins cups eggs hats keys nuts pears pens plums rocks shells stamps toys".split()
WHEN = ("", "Then", "Later", "After that", "The next day", "In the evening", "On Friday", "A week later")
BOXES = "bags baskets boxes crates jars trays".split()


@dataclass(frozen=True, slots=True)
class Family:
    """One meaning and its wordings.

    Attributes:
        name: what it is called in pattern ids.
        before: what is counted before it; `nothing` marks an opening.
        after: what is counted after it; `end` marks a question.
        expression: the calculation, or "" where the wording only states `{a}` or asks.
        worked: its line of the worked answer, or "" without a calculation.
        wordings: split -> the wordings of that split, in the order of their numbers.
        ids: split -> the ids (`family/split/number`) of these wordings.
        operation: the signs of the calculation, "" without one.
    """

    name: str
    before: str
    after: str
    expression: str
    worked: str
    wordings: dict[str, tuple[str, ...]]
    ids: dict[str, tuple[str, ...]]
    operation: str


def _read_table(table: str) -> tuple[Family, ...]:
    families = []
    for block in table.strip().split("\n\n"):
        head, *lines = block.splitlines()
        name, states, expression, worked = (part.strip() for part in head.removeprefix("=").split(":", 3))
        before, after = states.split(" -> ")
        said = [line.split(maxsplit=1) for line in lines]
        wordings = {split: tuple(text for at, text in said if at == split) for split in SPLITS}
        ids = {split: tuple(f"{name}/{split}/{k}" for k in range(len(wordings[split]))) for split in SPLITS}
        operation = "".join(sign for sign in expression if sign in "+-*/")
        families.append(Family(name, before, after, expression, worked, wordings, ids, operation))
    return tuple(families)


FAMILIES = _read_table(TABLE)
