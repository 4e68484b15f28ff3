"""The kinds of generated problems: divisors, remainders, digits and sums; counting, equations and searching.

Each answer comes from a formula or another algorithm than its program, which mostly tries everything. A test
runs the programs, so that a slip in either shows.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

LEVELS = (1, 2, 3)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


class ProblemDraft(NamedTuple):
    """The numbers of one problem."""

    values: Mapping[str, Any]  # the values of a wording's slots
    gold: int | Fraction  # the answer, found in another way than the program finds it
    program: str  # a person's program for it, in Python; it prints the answer and nothing else


Draw = Callable[[random.Random, int], ProblemDraft]  # from a generator of random numbers and a level of `LEVELS`


def pick(rng: random.Random, level: int, *ranges: tuple[int, int]) -> int:
    """Draw a whole number from the range of a level, both ends included."""
    return rng.randint(*ranges[level - 1])


def divisor_sum(rng: random.Random, level: int) -> ProblemDraft:
    """Sum of the divisors: the product of (p^(e+1) - 1) / (p - 1) over the prime powers p^e."""
    n, gold = 1, 1
    for prime in sorted(rng.sample(_PRIMES[: 3 + level], level + 1)):
        exponent = rng.randint(1, 3 if prime < 5 else 2 if prime == 5 else 1)  # so that trying all numbers is fast
        n *= prime**exponent
        gold *= (prime ** (exponent + 1) - 1) // (prime - 1)
    return ProblemDraft({"n": n}, gold, f"n = {n}\nprint(sum(d for d in range(1, n + 1) if n % d == 0))")


def multiples(rng: random.Random, level: int) -> ProblemDraft:
    """Multiples of exactly one of two numbers: inclusion and exclusion."""
    n = pick(rng, level, (60, 300), (500, 5_000), (5_000, 100_000))
    a, b = rng.sample(range(3, 6 + 6 * level), 2)
    gold = n // a + n // b - 2 * (n // math.lcm(a, b))
    program = f"print(sum((k % {a} == 0) != (k % {b} == 0) for k in range(1, {n} + 1)))"
    return ProblemDraft({"n": n, "a": a, "b": b}, gold, program)


def modular_power(rng: random.Random, level: int) -> ProblemDraft:
    """Remainder of a power: squares and products, bit by bit."""
    base = pick(rng, level, (2, 20), (20, 200), (200, 5_000))
    exponent = pick(rng, level, (8, 30), (40, 400), (1_000, 90_000))
    modulus = pick(rng, level, (15, 99), (100, 999), (1_000, 99_999))
    gold = 1
    for bit in f"{exponent:b}":
        gold = gold * gold * (base if bit == "1" else 1) % modulus
    values = {"a": base, "b": exponent, "m": modulus}
    return ProblemDraft(values, gold, f"print(pow({base}, {exponent}, {modulus}))")


def coprime_count(rng: random.Random, level: int) -> ProblemDraft:
    """Numbers that share no prime with another: inclusion and exclusion over its primes."""
    n = pick(rng, level, (40, 200), (200, 3_000), (3_000, 60_000))
    primes = rng.sample(_PRIMES[: 2 + level], min(level + 1, 3))
    m = math.prod(prime ** rng.randint(1, 2) for prime in primes)
    subsets = itertools.chain.from_iterable(itertools.combinations(primes, k) for k in range(len(primes) + 1))
    gold = sum((-1) ** len(subset) * (n // math.prod(subset)) for subset in subsets)
    program = f"from math import gcd\nprint(sum(gcd(k, {m}) == 1 for k in range(1, {n} + 1)))"
    return ProblemDraft({"n": n, "m": m}, gold, program)


def coprime_pairs(rng: random.Random, level: int) -> ProblemDraft:
    """Pairs without a common divisor: the sum of Euler's totients."""
    n = pick(rng, level, (8, 20), (25, 80), (90, 300))
    totients = list(range(n + 1))
    for k in range(2, n + 1):
        if totients[k] == k:  # a prime: no smaller one has divided it
            for multiple in range(k, n + 1, k):
                totients[multiple] -= totients[multiple] // k
    loops = f"for b in range(1, {n} + 1) for a in range(1, b)"
    return ProblemDraft({"n": n}, sum(totients[2:]), f"from math import gcd\nprint(sum(gcd(a, b) == 1 {loops}))")


def digit_count(rng: random.Random, level: int) -> ProblemDraft:
    """How often a digit is written: place by place, from the digits before and after it."""
    n = pick(rng, level, (50, 400), (400, 9_000), (9_000, 99_999))
    digit = rng.randint(1, 9)
    gold, place = 0, 1
    while place <= n:
        before, here, behind = n // (place * 10), n // place % 10, n % place
        gold += before * place + (place if here > digit else behind + 1 if here == digit else 0)
        place *= 10
    program = f'print(sum(str(k).count("{digit}") for k in range(1, {n} + 1)))'
    return ProblemDraft({"n": n, "d": digit}, gold, program)


def digit_sum(rng: random.Random, level: int) -> ProblemDraft:
    """Numbers with a given sum of digits: stars and bars, without the ones that have a digit above 9."""
    places = level + 2
    total = rng.randint(6, 9 * places - 8)
    gold = 0
    for large in range(total // 10 + 1):
        rest = total - 10 * large
        gold += (-1) ** large * math.comb(places, large) * math.comb(rest + places - 1, places - 1)
    program = f"print(sum(sum(map(int, str(k))) == {total} for k in range(1, {10**places})))"
    return ProblemDraft({"n": 10**places, "s": total}, gold, program)


def power_sum(rng: random.Random, level: int) -> ProblemDraft:
    """Powers of the numbers that another does not divide: closed forms for the sum with and without them."""
    n = pick(rng, level, (10, 40), (40, 300), (300, 3_000))
    # Without squares in it, so that dividing a power is the same as dividing the number.
    power, q = rng.randint(1, level), rng.choice((2, 3, 5, 6, 7, 10))
    gold = _faulhaber(n, power) - q**power * _faulhaber(n // q, power)
    program = f"print(sum(k**{power} for k in range(1, {n} + 1) if k % {q} != 0))"
    what = ("numbers", "squares of the numbers", "cubes of the numbers")[power - 1]
    return ProblemDraft({"n": n, "q": q, "what": what}, gold, program)


def reciprocal_sum(rng: random.Random, level: int) -> ProblemDraft:
    """Sum of 1/(k(k+d)): it telescopes, and 1/k - 1/(k+d) leaves d terms at either end."""
    n = pick(rng, level, (4, 9), (10, 20), (21, 60))
    d = rng.randint(1, level)
    ends = sum(Fraction(1, k) - Fraction(1, n + k) for k in range(1, d + 1))
    program = f"from fractions import Fraction\nprint(sum(Fraction(1, k * (k + {d})) for k in range(1, {n} + 1)))"
    return ProblemDraft({"n": n, "d": d}, Fraction(ends) / d, program)


def _faulhaber(n: int, power: int) -> int:
    if power == 1:
        return n * (n + 1) // 2
    return n * (n + 1) * (2 * n + 1) // 6 if power == 2 else (n * (n + 1) // 2) ** 2


def lattice_paths(rng: random.Random, level: int) -> ProblemDraft:
    """Paths around a point: all paths but the ones through it."""
    width, height = (pick(rng, level, (3, 5), (5, 8), (8, 12)) for _ in range(2))
    x, y = rng.randint(1, width - 1), rng.randint(1, height - 1)
    through = math.comb(x + y, x) * math.comb(width + height - x - y, width - x)
    program = (
        f"ways = {{(0, 0): 1}}\nfor x in range({width} + 1):\n    for y in range({height} + 1):\n"
        f"        if (x, y) == ({x}, {y}):\n            ways[x, y] = 0\n        elif (x, y) != (0, 0):\n"
        f"            ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)\nprint(ways[{width}, {height}])"
    )
    gold = math.comb(width + height, width) - through
    return ProblemDraft({"w": width, "h": height, "x": x, "y": y}, gold, program)


def no_runs(rng: random.Random, level: int) -> ProblemDraft:
    """Strings of 0 and 1 without a run of ones: by the number of ones at the end after the last zero."""
    n = pick(rng, level, (5, 9), (9, 13), (13, 17))
    run = rng.randint(2, 5)
    counts = [2**k for k in range(run)]
    while len(counts) <= n:
        counts.append(sum(counts[-run:]))
    program = (
        f'from itertools import product\nprint(sum("{"1" * run}" not in "".join(s) for s in product("01", repeat={n})))'
    )
    return ProblemDraft({"n": n, "k": run}, counts[n], program)


def coins(rng: random.Random, level: int) -> ProblemDraft:
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
    return ProblemDraft({"n": amount, "a": a, "b": b, "c": c}, ways[amount], program)


def apart(rng: random.Random, level: int) -> ProblemDraft:
    """Rows in which no two of some are neighbours: each goes into another gap between the rest."""
    some = pick(rng, level, (2, 4), (3, 6), (4, 7))
    rest = some + pick(rng, level, (1, 8), (4, 12), (6, 11))
    program = (
        f"from itertools import combinations\nprint(sum(all(q - p > 1 for p, q in zip(c, c[1:])) "
        f"for c in combinations(range({some + rest}), {some})))"
    )
    return ProblemDraft({"a": some, "b": rest}, math.comb(rest + 1, some), program)


def linear_system(rng: random.Random, level: int) -> ProblemDraft:
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
    return ProblemDraft(values, Fraction(total, whole) if whole else 0, program)


def remainders(rng: random.Random, level: int) -> ProblemDraft:
    """The smallest number with given remainders: the Chinese remainder theorem."""
    moduli = rng.sample((3, 4, 5, 7, 11, 13, 17), 2 if level == 1 else 3)
    left = [rng.randint(1, modulus - 1) for modulus in moduli]
    product = math.prod(moduli)
    gold = sum(r * (product // m) * pow(product // m, -1, m) for r, m in zip(left, moduli, strict=True)) % product
    tests = " and ".join(f"n % {m} == {r}" for r, m in zip(left, moduli, strict=True))
    program = f"n = 1\nwhile not ({tests}):\n    n += 1\nprint(n)"
    clauses = [f"{r} when divided by {m}" for r, m in zip(left, moduli, strict=True)]
    return ProblemDraft({"clauses": f"{', '.join(clauses[:-1])} and {clauses[-1]}"}, gold, program)


def unpayable(rng: random.Random, level: int) -> ProblemDraft:
    """The largest amount that two coins cannot pay: a b - a - b (Sylvester)."""
    a, b = 1, 1
    while math.gcd(a, b) != 1 or a == b or min(a, b) < 3:
        a, b = (pick(rng, level, (4, 15), (12, 40), (30, 99)) for _ in range(2))
    program = (
        f"a, b = {a}, {b}\npaid = {{i * a + j * b for i in range(b + 1) for j in range(a + 1)}}\n"
        "print(max(n for n in range(a * b) if n not in paid))"
    )
    return ProblemDraft({"a": a, "b": b}, a * b - a - b, program)


def best_bundle(rng: random.Random, level: int) -> ProblemDraft:
    """The most valuable choice of two goods: the best for each budget, from the choices for smaller ones."""
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
    return ProblemDraft(values, best[budget], program)


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


_ALL: tuple[Draw, ...] = (
    divisor_sum,
    multiples,
    modular_power,
    coprime_count,
    coprime_pairs,
    digit_count,
    digit_sum,
    power_sum,
    reciprocal_sum,
    lattice_paths,
    no_runs,
    coins,
    apart,
    linear_system,
    remainders,
    unpayable,
    best_bundle,
)
KINDS = {draw.__name__.replace("_", "-"): draw for draw in _ALL}
