"""Word problems in the format of GSM8K, made on the spot: the data an environment has before anything is downloaded.

A row has the shape of `openai/gsm8k` (Cobbe et al., arXiv:2110.14168): a `question`, and an `answer` of worked lines
with calculator annotations (`48/2 = <<48/2=24>>24`) that ends in `#### 24`. Problem i of a split depends on the split
and on i alone, whatever the process, the platform or the hash seed, so nothing is stored and any row is made in
microseconds. The sentences, and which split may use which, are in `patterns.py`.

Left out on purpose: fractions, percentages, units and idle numbers. These problems are for learning to use a tool
within minutes; how well a policy does on GSM8K itself only GSM8K can tell.
"""

from __future__ import annotations

import functools
import random

from agent_gym.data import GeneratedRows, Row
from agent_gym.envs.gsm8k.patterns import BOXES, FAMILIES, ITEMS, NAMES, SPLITS, WHEN, Family
from agent_gym.errors import ConfigError

SIZES = {"train": 7473, "validation": 500, "test": 1319}  # train and test have the sizes of GSM8K's own splits
STEPS = (1, 1, 2, 2, 2, 3, 3, 4)  # calculations per problem, drawn uniformly from this list
LARGEST = 2000  # no multiplication goes beyond it

_QUESTIONS = {family.before: family for family in FAMILIES if family.after == "end"}
_FOLLOWING = {
    state: [family for family in FAMILIES if family.before == state and family.after != "end"]
    for state in {family.before for family in FAMILIES}
}


class GeneratedProblems(GeneratedRows):
    """The generated problems of one split, as a sequence of `{"question": ..., "answer": ...}`.

    Args:
        split: `train`, `validation` or `test`. No sentence pattern occurs in two of them.
        size: how many problems the sequence has; the default is `SIZES[split]`. Problem i is the same at any size.

    Raises:
        ConfigError: on an unknown split or a size below one.
    """

    def __init__(self, split: str, size: int | None = None) -> None:
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r}: generated problems have {', '.join(SPLITS)}")
        self.split = split
        super().__init__(SIZES[split] if size is None else size)

    def make(self, index: int) -> Row:
        """Make one problem."""
        return dict(_problem(self.split, index)[0])

    def patterns(self, index: int) -> tuple[str, ...]:
        """The ids (`family/split/number`) of the sentence patterns of one problem, in reading order."""
        return _problem(self.split, range(self.size)[index])[1]


# An episode's group and the epochs after it ask for the same problems, and writing one takes most of a reset.
@functools.lru_cache(maxsize=8192)
def _problem(split: str, index: int) -> tuple[dict[str, str], tuple[str, ...]]:
    # A string seed goes through SHA-512, so neighbouring problems share nothing and PYTHONHASHSEED is no matter.
    return _write(split, random.Random(f"{split}/{index}"))


def _write(split: str, rng: random.Random) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write one problem and tell which patterns it used."""
    name, other = rng.sample(NAMES, 2)
    words = {"name": name, "other": other, "item": rng.choice(ITEMS), "box": rng.choice(BOXES)}
    steps = rng.choice(STEPS)
    whens = iter(rng.sample(WHEN, len(WHEN)))  # no two sentences of a problem happen on the same Friday
    sentences: list[str] = []
    worked: list[str] = []
    used: list[str] = []
    quantity, state = 0, "nothing"

    while state == "nothing" or len(worked) < steps:
        family, numbers = _choose(split, rng, state, quantity, used, last=len(worked) == steps - 1)
        wording = _say(split, rng, family, used)
        sentence = wording.format(**words, **numbers, when=next(whens)).lstrip()
        sentences.append(sentence[0].upper() + sentence[1:])
        if family.expression:
            expression = family.expression.format(x=quantity, **numbers)
            quantity = _value(expression)
            work = f"{expression} = <<{expression}={quantity}>>{quantity}"
            worked.append(family.worked.format(work=work, **words))
        else:
            quantity = numbers["a"]
        state = family.after

    sentences.append(_say(split, rng, _QUESTIONS[state], used).format(**words))
    row = {"question": " ".join(sentences), "answer": "\n".join([*worked, f"#### {quantity}"])}
    return row, tuple(used)


def _choose(
    split: str, rng: random.Random, state: str, quantity: int, used: list[str], last: bool
) -> tuple[Family, dict[str, int]]:
    """Choose what happens next, and with which numbers, among all that can."""
    possible: dict[str, list[tuple[Family, dict[str, int]]]] = {}
    for family in _FOLLOWING[state]:
        if family.after in ("shares", "payouts") and not last:
            continue
        if set(family.ids[split]) <= set(used):
            continue
        numbers = _draw(rng, family.expression, quantity)
        if numbers is not None:
            possible.setdefault(family.operation, []).append((family, numbers))
    # First the operation, then the family: otherwise the operation with most families would be the most frequent.
    return rng.choice(possible[rng.choice(sorted(possible))])


def _draw(rng: random.Random, expression: str, quantity: int) -> dict[str, int] | None:
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


def _say(split: str, rng: random.Random, family: Family, used: list[str]) -> str:
    """Pick a wording that this problem has not used yet, and note its id."""
    ids = family.ids[split]
    number = rng.choice([number for number, pattern in enumerate(ids) if pattern not in used])
    used.append(ids[number])
    return family.wordings[split][number]


def _value(expression: str) -> int:
    left, sign, right = expression.partition(next(sign for sign in "+-*/" if sign in expression))
    a, b = int(left), int(right)
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
