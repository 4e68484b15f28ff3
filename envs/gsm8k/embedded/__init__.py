"""Word problems in the format of GSM8K: the data an environment has before anything is downloaded.

A row has the columns of `openai/gsm8k` (Cobbe et al., arXiv:2110.14168): a `question`, and an `answer` of worked lines
with calculator annotations (`48/2 = <<48/2=24>>24`) that ends in `#### 24`. A problem is one opening, some following
sentences and one question. Every wording in `wording.txt` belongs to one split only, so a policy that solves
validation or test problems has understood sentences it never saw. The vocabulary is shared by all splits.

Left out on purpose: fractions, percentages, units and, below difficulty 3, idle numbers. These problems are for
learning to use a tool within minutes; how well a policy does on GSM8K itself only GSM8K can tell.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agent_gym.data import Row, SplitRows, read_wordings
from agent_gym.errors import whole_number

SPLITS = ("train", "validation", "test")
STEPS = (1, 1, 2, 2, 2, 3, 3, 4)  # calculations per problem, drawn uniformly from this list
LADDER = {1: ((1,), 0), 2: ((2,), 0), 3: ((3,), 1), 4: ((4,), 2), 5: ((5,), 3)}
"""Difficulty to calculations per problem, and sentences whose numbers are idle."""
LARGEST = 2000  # no multiplication goes beyond it

NAMES = (
    "Anna Ben Carl Dora Emil Eva Finn Gina Hugo Ivan Jane Kofi Lena Lily Max Mia Nina Noah Omar Paul Ruth Sara Tom Zoe"
).split()
ITEMS = "apples beads books cards coins cups eggs hats keys nuts pears pens plums rocks shells stamps toys".split()
WHEN = ("", "Then", "Later", "After that", "The next day", "In the evening", "On Friday", "A week later")
BOXES = "bags baskets boxes crates jars trays".split()


@dataclass(frozen=True, slots=True)
class ProblemFamily:
    """One meaning and its wordings."""

    before: str  # the noun counted before it; `nothing` marks an opening
    after: str  # the noun counted after it; `end` marks a question
    expression: str  # the calculation, or "" where the wording only states `{a}` or asks
    operation: str  # the sign of the calculation, or ""
    worked: str  # its line of the worked answer, or "" without a calculation
    wordings: dict[str, tuple[str, ...]]  # by split


def _family(head: str, wordings: dict[str, tuple[str, ...]]) -> ProblemFamily:
    _, states, expression, worked = (part.strip() for part in head.split(":", 3))
    before, after = states.split(" -> ")
    operation = "".join(sign for sign in expression if sign in "+-*/")
    return ProblemFamily(before, after, expression, operation, worked, wordings)


IDLE, *FAMILIES = (_family(head, wordings) for head, wordings in read_wordings(__package__).items())
_QUESTIONS = {family.before: family for family in FAMILIES if family.after == "end"}
_FOLLOWING = {
    state: [family for family in FAMILIES if family.before == state and family.after != "end"]
    for state in {family.before for family in FAMILIES}
}


class GeneratedProblems(SplitRows):
    """The problems of a split, rows of `question` and `answer`, none of which is looked for among the others.

    `difficulty` is a key of `LADDER`, or None for a mixture of short problems.
    """

    SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
    KEY = None

    def __init__(self, split: str, size: int | None = None, difficulty: int | None = None) -> None:
        super().__init__(split, size)
        self.difficulty = None if difficulty is None else whole_number("difficulty", difficulty, 1, len(LADDER))

    def draw(self, index: int, attempt: int) -> Row:
        return problem(self.split, index, self.difficulty)[0]


def problem(split: str, index: int, difficulty: int | None = None) -> tuple[Row, set[str]]:
    """Make one problem; return its row, and the wordings of its sentences."""
    rng = random.Random(f"{split}/{index}" + (f"/{difficulty}" if difficulty else ""))
    name, other = rng.sample(NAMES, 2)
    words = {"name": name, "other": other, "item": rng.choice(ITEMS), "box": rng.choice(BOXES)}
    lengths, idle = LADDER[difficulty] if difficulty else (STEPS, 0)
    steps = rng.choice(lengths)
    whens = iter(rng.sample(WHEN, len(WHEN)))  # no two sentences of a problem happen on the same Friday
    sentences: list[str] = []
    worked: list[str] = []
    used: set[str] = set()
    quantity, state = 0, "nothing"

    while state == "nothing" or len(worked) < steps:
        family, numbers = _draw_family(split, rng, state, quantity, used, last=len(worked) == steps - 1)
        sentence = _draw_wording(split, rng, family, used).format(**words, **numbers, when=next(whens)).lstrip()
        sentences.append(sentence[0].upper() + sentence[1:])
        if family.expression:
            expression = family.expression.format(x=quantity, **numbers)
            left, right = map(int, expression.split(family.operation))
            quantity = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[family.operation]
            work = f"{expression} = <<{expression}={quantity}>>{quantity}"
            worked.append(family.worked.format(work=work, **words))
        else:
            quantity = numbers["a"]
        state = family.after

    for _ in range(idle):
        person, thing = (rng.choice([one for one in some if one not in words.values()]) for some in (NAMES, ITEMS))
        numbers = {"n": rng.randint(5, 60)}
        # Not in between, where the next sentence may continue with "each one" or "more".
        place = rng.choice((0, len(sentences))) if state in ("items", "money") else 0
        sentences.insert(place, _draw_wording(split, rng, IDLE, used).format(third=person, thing=thing, **numbers))
    sentences.append(_draw_wording(split, rng, _QUESTIONS[state], used).format(**words))
    return {"question": " ".join(sentences), "answer": "\n".join([*worked, f"#### {quantity}"])}, used


def _draw_family(
    split: str, rng: random.Random, state: str, quantity: int, used: set[str], last: bool
) -> tuple[ProblemFamily, dict[str, int]]:
    possible: dict[str, list[tuple[ProblemFamily, dict[str, int]]]] = {}
    for family in _FOLLOWING[state]:
        if (family.after in ("shares", "payouts") and not last) or used.issuperset(family.wordings[split]):
            continue
        numbers = _draw_numbers(rng, family.expression, quantity)
        if numbers is not None:
            possible.setdefault(family.operation, []).append((family, numbers))
    # First the operation, then the family: otherwise the operation with most families would be the most frequent.
    return rng.choice(possible[rng.choice(sorted(possible))])


def _draw_numbers(rng: random.Random, expression: str, quantity: int) -> dict[str, int] | None:
    """Draw the numbers of an expression so that its value is a sensible count, or None if there are none."""
    if expression == "":
        return {"a": rng.randint(5, 99)}
    if expression == "{a}*{b}":
        return {"a": rng.randint(2, 12), "b": rng.randint(2, 20)}
    if expression == "{a}+{b}":
        return {"a": rng.randint(3, 80), "b": rng.randint(3, 80)}
    if expression == "{a}-{b}":
        a = rng.randint(12, 99)
        return {"a": a, "b": rng.randint(2, a - 2)}
    if expression == "{a}/{b}":
        b = rng.randint(2, 9)
        return {"a": b * rng.randint(2, 20), "b": b}
    if expression == "{x}+{n}":
        return {"n": rng.randint(2, 60)}
    if expression == "{x}-{n}":
        return {"n": rng.randint(2, min(quantity - 2, 60))} if quantity >= 4 else None
    if expression == "{x}*{n}":
        return {"n": rng.randint(2, 9 if quantity < 100 else 5)} if quantity * 5 <= LARGEST else None
    if expression == "{x}*2":
        return {} if quantity * 2 <= LARGEST else None
    if expression == "{x}/2":
        return {} if quantity % 2 == 0 and quantity >= 4 else None
    assert expression == "{x}/{n}", expression
    divisors = [n for n in range(2, 10) if quantity % n == 0 and quantity // n >= 2]
    return {"n": rng.choice(divisors)} if divisors else None


def _draw_wording(split: str, rng: random.Random, family: ProblemFamily, used: set[str]) -> str:
    """Draw a wording that this problem has not used yet, and add it to `used`."""
    wording = rng.choice([one for one in family.wordings[split] if one not in used])
    used.add(wording)
    return wording
