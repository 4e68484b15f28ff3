"""Generated problems about counting, equations and searching. As in arithmetic.py, each answer is found in two ways."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from agent_gym.envs.retool.kind import Draft, Draw, pick


def lattice_paths(rng: random.Random, level: int) -> Draft:
    """Paths around a point: all paths but those through it."""
    width, height = (pick(rng, level, (3, 5), (5, 8), (8, 12)) for _ in range(2))
    x, y = rng.randint(1, width - 1), rng.randint(1, height - 1)
    through = math.comb(x + y, x) * math.comb(width + height - x - y, width - x)
    program = (
        f"ways = {{(0, 0): 1}}\nfor x in range({width} + 1):\n    for y in range({height} + 1):\n"
        f"        if (x, y) == ({x}, {y}):\n            ways[x, y] = 0\n        elif (x, y) != (0, 0):\n"
        f"            ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)\nprint(ways[{width}, {height}])"
    )
    gold = math.comb(width + height, width) - through
    return Draft({"w": width, "h": height, "x": x, "y": y}, gold, program)


def no_runs(rng: random.Random, level: int) -> Draft:
    """Strings of 0 and 1 without a run of ones: by how many ones stand at the end before the last zero."""
    n = pick(rng, level, (5, 9), (9, 13), (13, 17))
    run = rng.randint(2, 5)
    counts = [2**k for k in range(run)]
    while len(counts) <= n:
        counts.append(sum(counts[-run:]))
    program = (
        f'from itertools import product\nprint(sum("{"1" * run}" not in "".join(s) for s in product("01", repeat={n})))'
    )
    return Draft({"n": n, "k": run}, counts[n], program)


def coins(rng: random.Random, level: int) -> Draft:
    """Ways to pay: coin by coin, amount by amount."""
    amount = pick(rng, level, (20, 50), (60, 150), (200, 500))
    a, b, c = sorted(rng.sample((1, 2, 3, 5, 7, 10, 20, 25), 3))
    ways = [1] + [0] * amount
    for coin in (a, b, c):
        for paid in range(coin, amount + 1):
            ways[paid] += ways[paid - coin]
    program = (
        f"n = {amount}\nprint(sum((n - x - y) % {a} == 0 for x in range(0, n + 1, {c}) "
        f"for y in range(0, n - x + 1, {b})))"
    )
    return Draft({"n": amount, "a": a, "b": b, "c": c}, ways[amount], program)


def apart(rng: random.Random, level: int) -> Draft:
    """Rows in which no two of some stand side by side: each goes into another gap between the rest."""
    some = pick(rng, level, (2, 4), (3, 6), (4, 7))
    rest = some + pick(rng, level, (1, 8), (4, 12), (6, 11))
    program = (
        f"from itertools import combinations\nprint(sum(all(q - p > 1 for p, q in zip(c, c[1:])) "
        f"for c in combinations(range({some + rest}), {some})))"
    )
    return Draft({"a": some, "b": rest}, math.comb(rest + 1, some), program)


def linear_system(rng: random.Random, level: int) -> Draft:
    """Linear equations: Cramer's rule."""
    size = 2 if level == 1 else 3
    limit = 5 * level
    rows = [[rng.choice([k for k in range(-limit, limit + 1) if k]) for _ in range(size)] for _ in range(size)]
    right = [rng.randint(-20 * level, 20 * level) for _ in range(size)]
    whole = _determinant(rows)
    total = 0
    for column in range(size):
        total += _determinant([[*row[:column], r, *row[column + 1 :]] for row, r in zip(rows, right, strict=True)])
    equations = [f"{_side(row)} = {r}" for row, r in zip(rows, right, strict=True)]
    program = f"from sympy import Matrix\nprint(sum(Matrix({rows}).LUsolve(Matrix({right}))))"
    values = {"system": ", ".join(equations), "sum": " + ".join("xyz"[:size])}
    # A system without a solution gets the answer 0, which no problem may have.
    return Draft(values, Fraction(total, whole) if whole else 0, program)


def remainders(rng: random.Random, level: int) -> Draft:
    """The smallest number with given remainders: the Chinese remainder theorem."""
    moduli = rng.sample((3, 4, 5, 7, 11, 13, 17), 2 if level == 1 else 3)
    left = [rng.randint(1, modulus - 1) for modulus in moduli]
    product = math.prod(moduli)
    gold = sum(r * (product // m) * pow(product // m, -1, m) for r, m in zip(left, moduli, strict=True)) % product
    tests = " and ".join(f"n % {m} == {r}" for r, m in zip(left, moduli, strict=True))
    program = f"n = 1\nwhile not ({tests}):\n    n += 1\nprint(n)"
    clauses = [f"{r} when divided by {m}" for r, m in zip(left, moduli, strict=True)]
    return Draft({"clauses": f"{', '.join(clauses[:-1])} and {clauses[-1]}"}, gold, program)


def unpayable(rng: random.Random, level: int) -> Draft:
    """The largest amount that two coins cannot pay: a b - a - b (Sylvester)."""
    a, b = 1, 1
    while math.gcd(a, b) != 1 or a == b or min(a, b) < 3:
        a, b = (pick(rng, level, (4, 15), (12, 40), (30, 99)) for _ in range(2))
    program = (
        f"a, b = {a}, {b}\npaid = {{i * a + j * b for i in range(b + 1) for j in range(a + 1)}}\n"
        "print(max(n for n in range(a * b) if n not in paid))"
    )
    return Draft({"a": a, "b": b}, a * b - a - b, program)


def best_bundle(rng: random.Random, level: int) -> Draft:
    """The most valuable choice of two goods: the best for each budget, from those for smaller ones."""
    budget = pick(rng, level, (20, 50), (50, 200), (200, 900))
    (cost_a, cost_b), (worth_a, worth_b) = rng.sample(range(3, 20), 2), rng.sample(range(4, 40), 2)
    best = [0] * (budget + 1)
    for money in range(budget + 1):
        for cost, worth in ((cost_a, worth_a), (cost_b, worth_b)):
            if cost <= money:
                best[money] = max(best[money], best[money - cost] + worth)
    program = (
        f"n = {budget}\nprint(max({worth_a} * x + {worth_b} * y for x in range(n // {cost_a} + 1) "
        f"for y in range((n - {cost_a} * x) // {cost_b} + 1)))"
    )
    values = {"n": budget, "a": cost_a, "b": cost_b, "p": worth_a, "q": worth_b}
    return Draft(values, best[budget], program)


def _determinant(rows: list[list[int]]) -> int:
    if len(rows) == 1:
        return rows[0][0]
    minors = ([row[:k] + row[k + 1 :] for row in rows[1:]] for k in range(len(rows)))
    return sum((-1) ** k * rows[0][k] * _determinant(minor) for k, minor in enumerate(minors))


def _side(row: list[int]) -> str:
    """Write one side of an equation: "2x - y + 3z"."""
    text = ""
    for factor, name in zip(row, "xyz", strict=False):
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {abs(factor) if abs(factor) > 1 else ''}{name}"
    return text.removeprefix(" + ").replace(" - ", "-", 1) if text.startswith(" - ") else text.removeprefix(" + ")


KINDS: dict[str, Draw] = {
    "lattice-paths": lattice_paths,
    "no-runs": no_runs,
    "coins": coins,
    "apart": apart,
    "linear-system": linear_system,
    "remainders": remainders,
    "unpayable": unpayable,
    "best-bundle": best_bundle,
}
