"""Generated problems about numbers: divisors, remainders, digits, sums.

Each answer comes from a formula or another algorithm than the program beside it, which mostly tries everything. A test
runs the programs, so that a slip in either shows.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

from agent_gym.envs.retool.kind import Draft, Draw, pick

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


def divisor_sum(rng: random.Random, level: int) -> Draft:
    """Sum of the divisors: the product of (p^(e+1) - 1) / (p - 1) over the prime powers p^e."""
    n, gold = 1, 1
    for prime in sorted(rng.sample(_PRIMES[: 3 + level], level + 1)):
        exponent = rng.randint(1, 3 if prime < 5 else 2 if prime == 5 else 1)  # so that trying all numbers is fast
        n *= prime**exponent
        gold *= (prime ** (exponent + 1) - 1) // (prime - 1)
    return Draft({"n": n}, gold, f"n = {n}\nprint(sum(d for d in range(1, n + 1) if n % d == 0))")


def multiples(rng: random.Random, level: int) -> Draft:
    """Multiples of exactly one of two numbers: inclusion and exclusion."""
    n = pick(rng, level, (60, 300), (500, 5_000), (5_000, 100_000))
    a, b = rng.sample(range(3, 6 + 6 * level), 2)
    gold = n // a + n // b - 2 * (n // math.lcm(a, b))
    program = f"print(sum((k % {a} == 0) != (k % {b} == 0) for k in range(1, {n} + 1)))"
    return Draft({"n": n, "a": a, "b": b}, gold, program)


def modular_power(rng: random.Random, level: int) -> Draft:
    """Remainder of a power: squares and products, bit by bit."""
    base = pick(rng, level, (2, 20), (20, 200), (200, 5_000))
    exponent = pick(rng, level, (8, 30), (40, 400), (1_000, 90_000))
    modulus = pick(rng, level, (15, 99), (100, 999), (1_000, 99_999))
    gold = 1
    for bit in f"{exponent:b}":
        gold = gold * gold * (base if bit == "1" else 1) % modulus
    values = {"a": base, "b": exponent, "m": modulus}
    return Draft(values, gold, f"print(pow({base}, {exponent}, {modulus}))")


def coprime_count(rng: random.Random, level: int) -> Draft:
    """Numbers that share no prime with another: inclusion and exclusion over its primes."""
    n = pick(rng, level, (40, 200), (200, 3_000), (3_000, 60_000))
    primes = rng.sample(_PRIMES[: 2 + level], min(level + 1, 3))
    m = math.prod(prime ** rng.randint(1, 2) for prime in primes)
    subsets = itertools.chain.from_iterable(itertools.combinations(primes, k) for k in range(len(primes) + 1))
    gold = sum((-1) ** len(subset) * (n // math.prod(subset)) for subset in subsets)
    program = f"from math import gcd\nprint(sum(gcd(k, {m}) == 1 for k in range(1, {n} + 1)))"
    return Draft({"n": n, "m": m}, gold, program)


def coprime_pairs(rng: random.Random, level: int) -> Draft:
    """Pairs without a common divisor: the sum of Euler's totients."""
    n = pick(rng, level, (8, 20), (25, 80), (90, 300))
    totients = list(range(n + 1))
    for k in range(2, n + 1):
        if totients[k] == k:  # a prime: no smaller one has divided it
            for multiple in range(k, n + 1, k):
                totients[multiple] -= totients[multiple] // k
    loops = f"for b in range(1, {n} + 1) for a in range(1, b)"
    return Draft({"n": n}, sum(totients[2:]), f"from math import gcd\nprint(sum(gcd(a, b) == 1 {loops}))")


def digit_count(rng: random.Random, level: int) -> Draft:
    """How often a digit is written: place by place, from what stands before and behind it."""
    n = pick(rng, level, (50, 400), (400, 9_000), (9_000, 99_999))
    digit = rng.randint(1, 9)
    gold, place = 0, 1
    while place <= n:
        before, here, behind = n // (place * 10), n // place % 10, n % place
        gold += before * place + (place if here > digit else behind + 1 if here == digit else 0)
        place *= 10
    program = f'print(sum(str(k).count("{digit}") for k in range(1, {n} + 1)))'
    return Draft({"n": n, "d": digit}, gold, program)


def digit_sum(rng: random.Random, level: int) -> Draft:
    """Numbers with a given sum of digits: stars and bars, without those that have a digit above 9."""
    places = level + 2
    total = rng.randint(6, 9 * places - 8)
    gold = 0
    for large in range(total // 10 + 1):
        rest = total - 10 * large
        gold += (-1) ** large * math.comb(places, large) * math.comb(rest + places - 1, places - 1)
    program = f"print(sum(sum(map(int, str(k))) == {total} for k in range(1, {10**places})))"
    return Draft({"n": 10**places, "s": total}, gold, program)


def power_sum(rng: random.Random, level: int) -> Draft:
    """Powers of the numbers that another does not divide: closed forms for the sum with and without them."""
    n = pick(rng, level, (10, 40), (40, 300), (300, 3_000))
    # Without squares in it, so that dividing a power is the same as dividing the number.
    power, q = rng.randint(1, level), rng.choice((2, 3, 5, 6, 7, 10))
    gold = _faulhaber(n, power) - q**power * _faulhaber(n // q, power)
    program = f"print(sum(k**{power} for k in range(1, {n} + 1) if k % {q} != 0))"
    what = ("numbers", "squares of the numbers", "cubes of the numbers")[power - 1]
    return Draft({"n": n, "q": q, "what": what}, gold, program)


def reciprocal_sum(rng: random.Random, level: int) -> Draft:
    """Sum of 1/(k(k+d)): it telescopes, and 1/k - 1/(k+d) leaves d terms at either end."""
    n = pick(rng, level, (4, 9), (10, 20), (21, 60))
    d = rng.randint(1, level)
    ends = sum(Fraction(1, k) - Fraction(1, n + k) for k in range(1, d + 1))
    program = f"from fractions import Fraction\nprint(sum(Fraction(1, k * (k + {d})) for k in range(1, {n} + 1)))"
    return Draft({"n": n, "d": d}, Fraction(ends) / d, program)


def _faulhaber(n: int, power: int) -> int:
    if power == 1:
        return n * (n + 1) // 2
    return n * (n + 1) * (2 * n + 1) // 6 if power == 2 else (n * (n + 1) // 2) ** 2


KINDS: dict[str, Draw] = {
    "divisor-sum": divisor_sum,
    "multiples": multiples,
    "modular-power": modular_power,
    "coprime-count": coprime_count,
    "coprime-pairs": coprime_pairs,
    "digit-count": digit_count,
    "digit-sum": digit_sum,
    "power-sum": power_sum,
    "reciprocal-sum": reciprocal_sum,
}
