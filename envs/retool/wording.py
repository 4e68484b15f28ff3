"""The sentences of the generated problems: every wording belongs to one split only.

A block begins with the name of a kind (arithmetic.py, counting.py). Its wordings follow, each behind the split that may
use it; a line that begins with spaces goes on with the one before. The slots are the `values` of the kind's drafts. So
a policy that solves test problems has understood sentences that it never saw; kinds and numbers are those of training.
"""

from __future__ import annotations

SPLITS = ("train", "validation", "test")

_TABLE = """
divisor-sum
train       What is the sum of all positive divisors of {n}?
train       Find the sum of the positive integers that divide {n}.
train       Add up all divisors of {n}, 1 and {n} included. What do you get?
validation  Compute the sum of the divisors of {n}.
test        What do all positive divisors of {n} add up to?
test        Let S be the set of positive integers that divide {n}. Find the sum of its elements.

multiples
train       How many integers from 1 to {n} are divisible by exactly one of {a} and {b}?
train       Count the positive integers up to {n} that are multiples of {a} or of {b}, but not of both.
train       How many of the numbers 1, 2, ..., {n} does either {a} or {b} divide, but not both?
validation  Find how many positive integers not above {n} are divisible by just one of {a} and {b}.
test        Among the integers from 1 to {n}, how many are multiples of exactly one of the numbers {a} and {b}?
test        A number is lucky if {a} divides it or {b} divides it, but not both. How many lucky numbers are there up to
            {n}?

modular-power
train       What is the remainder when {a}^{b} is divided by {m}?
train       Find {a}^{b} modulo {m}.
train       The number {a} is multiplied by itself so that {b} factors stand there. What remainder does the product
            leave by {m}?
validation  Compute the remainder of {a}^{b} after division by {m}.
test        Divide {a}^{b} by {m}. What is left over?
test        Find the smallest nonnegative integer that is congruent to {a}^{b} modulo {m}.

coprime-count
train       How many integers from 1 to {n} are coprime to {m}?
train       Count the positive integers up to {n} that have no common divisor with {m} except 1.
train       For how many k among 1, 2, ..., {n} is gcd(k, {m}) = 1?
validation  How many of the numbers from 1 to {n} share no prime factor with {m}?
test        Find the number of positive integers k with k at most {n} whose greatest common divisor with {m} is 1.
test        How many fractions k/{m} with k from 1 to {n} cannot be reduced?

coprime-pairs
train       How many pairs (a, b) of integers with 1 <= a < b <= {n} are coprime?
train       Count the pairs of different numbers from 1 to {n} whose greatest common divisor is 1.
train       In how many ways can two different numbers among 1, 2, ..., {n} be chosen so that no integer above 1 divides
            both?
validation  How many two-element subsets of the integers from 1 to {n} consist of coprime numbers?
test        How many different reduced fractions a/b with 0 < a < b and b at most {n} are there?
test        Two different integers from 1 to {n} are friends if their gcd is 1. How many pairs of friends are there?

digit-count
train       How often is the digit {d} written when all integers from 1 to {n} are written down?
train       All numbers from 1 to {n} are written in a row. How many times does the digit {d} appear?
train       Count the digits {d} in the numbers 1, 2, ..., {n} together.
validation  Somebody writes every integer from 1 to {n}. How many digits {d} are written?
test        The pages of a book are numbered from 1 to {n}. How many times is the digit {d} printed?
test        In the list of the integers from 1 to {n}, how many digits are equal to {d}?

digit-sum
train       How many positive integers less than {n} have digits that add up to {s}?
train       Count the positive integers below {n} whose digit sum is {s}.
train       For how many integers k with 0 < k < {n} is the sum of the digits equal to {s}?
validation  How many numbers between 0 and {n} have the digit sum {s}?
validation  Of the positive integers below {n}, how many have digits whose sum is {s}?
test        Find the number of positive integers smaller than {n} with digits of sum {s}.
test        The digits of a positive integer below {n} have the sum {s}. How many such integers are there?

power-sum
train       Find the sum of the {what} from 1 to {n}, without those that {q} divides.
train       Take the integers from 1 to {n}, leave out the multiples of {q}, and add up the {what} that remain.
train       What is the total of the {what} from 1 to {n}, if multiples of {q} are skipped?
validation  Leave out every multiple of {q} from 1, 2, ..., {n}. What is the sum of the {what} left?
test        Add the {what} from 1 to {n}, but none for a multiple of {q}. What is the result?
test        Let A be the set of integers from 1 to {n} that {q} does not divide. Find the sum of the {what} in A.

reciprocal-sum
train       Find the exact value of the sum of 1/(k(k+{d})) for k from 1 to {n}, as a fraction.
train       Add up 1/(k*(k+{d})) over k = 1, 2, ..., {n}. Give the sum as a fraction.
train       What fraction is the sum of the terms 1/(k(k+{d})), where k runs from 1 to {n}?
validation  As a fraction, what is the sum of 1/(k(k+{d})) over all integers k with 1 <= k <= {n}?
test        Let a_k = 1/(k(k+{d})). Find a_1 + a_2 + ... + a_{n} exactly.
test        Write the sum of all 1/(k(k+{d})), k being an integer from 1 to {n}, as one fraction.

lattice-paths
train       How many paths lead from (0, 0) to ({w}, {h}) in steps of one to the right or one up without touching ({x},
            {y})?
train       A path goes from (0, 0) to ({w}, {h}), each step one right or one up. It must not go through ({x}, {y}). How
            many such paths are there?
train       Count the shortest grid paths from (0, 0) to ({w}, {h}) that avoid the point ({x}, {y}).
validation  A robot moves right or up by one unit at a time, from (0, 0) to ({w}, {h}). The point ({x}, {y}) is blocked.
            How many ways does it have?
test        In a city of streets in a grid, somebody walks from corner (0, 0) to corner ({w}, {h}), always right or up.
            Corner ({x}, {y}) is closed. In how many ways is that possible?
test        Find the number of sequences of unit steps right and up from (0, 0) to ({w}, {h}) that never reach ({x},
            {y}).

no-runs
train       How many strings of length {n} over the digits 0 and 1 do not contain {k} ones in a row?
train       Count the binary strings of length {n} without {k} consecutive ones.
train       A coin is tossed {n} times. In how many of the possible sequences are there never {k} heads in a row?
validation  How many binary words with {n} letters have no block of {k} ones side by side?
validation  A row has {n} squares, each black or white. How many rows do not have {k} black squares next to each other?
test        {n} lamps stand in a row, each on or off. In how many ways can they be set so that no {k} neighbours are all
            on?
test        Find the number of sequences of {n} bits in which {k} ones never follow each other directly.

coins
train       In how many ways can {n} cents be paid with coins of {a}, {b} and {c} cents, if order does not matter?
train       Count the ways to pay {n} cents with coins worth {a}, {b} and {c} cents. Coins of a kind are alike.
train       There are coins of {a}, {b} and {c} cents, as many as needed. How many different sets of coins are worth {n}
            cents?
validation  How many ways are there to make {n} cents out of coins of {a}, {b} and {c} cents?
test        Find the number of triples (x, y, z) of nonnegative integers with {a}x + {b}y + {c}z = {n}.
test        A machine takes coins of {a}, {b} and {c} cents. A ticket costs {n} cents. How many collections of coins pay
            for it exactly?

apart
train       In how many ways can {a} letters A and {b} letters B stand in a row if no two letters A are neighbours?
train       Count the words made of {a} letters A and {b} letters B in which no A stands directly beside another A.
train       A row has {a} red and {b} blue balls; balls of a colour are alike. How many rows have no two red balls side
            by side?
validation  How many arrangements of {a} letters A and {b} letters B in a row keep all letters A apart?
validation  {a} girls and {b} boys stand in a line, and no two girls side by side. How many patterns of girls and boys
            are possible?
test        {a} black and {b} white stones are laid in a line, and black stones must not touch. How many lines are
            possible?
test        Find the number of strings with {a} times A and {b} times B that do not contain AA.

linear-system
train       Solve {system} and find {sum}.
train       The numbers satisfy {system}. What is {sum}?
train       Find the exact value of {sum}, if {system}.
validation  Let {system}. Determine {sum}.
test        What is the value of {sum} for the solution of the system {system}?
test        Given that {system}, compute {sum} exactly.

remainders
train       What is the smallest positive integer that leaves the remainders {clauses}?
train       Find the smallest positive integer with remainder {clauses}.
train       A positive integer leaves remainder {clauses}. What is the least it can be?
validation  Find the least positive integer whose remainders are {clauses}.
test        Some eggs are counted: there remain {clauses}. What is the smallest possible number of eggs?
test        Which is the first positive integer that gives remainder {clauses}?

unpayable
train       What is the largest amount that cannot be paid with coins of {a} and {b}, without change?
train       There are only coins worth {a} and {b}. Find the largest amount that they cannot pay exactly.
train       Find the largest integer that is not of the form {a}x + {b}y with nonnegative integers x and y.
validation  Stamps cost {a} or {b} cents. What is the largest postage that cannot be made of them?
test        A shop sells eggs in boxes of {a} and {b}. What is the largest number of eggs that cannot be bought?
test        Which integer is the greatest that is no sum of copies of {a} and {b}?

best-bundle
train       Items of type A cost {a} and are worth {p}, items of type B cost {b} and are worth {q}. What is the largest
            worth that can be bought for at most {n}?
train       Find the maximum of {p}x + {q}y over nonnegative integers x and y with {a}x + {b}y <= {n}.
train       A bag carries {n} kg. A box of {a} kg brings {p} dollars, one of {b} kg brings {q} dollars. How many dollars
            can the bag bring at most?
validation  A machine has {n} hours. Product A takes {a} hours and earns {p}, product B takes {b} hours and earns {q}.
            What are the highest earnings?
test        For nonnegative integers x and y, {a}x + {b}y must not exceed {n}. How large can {p}x + {q}y be?
test        A ship holds {n} tons. Crates of {a} tons pay {p} each and crates of {b} tons pay {q} each. What is the most
            it can earn?
"""


def _read(table: str) -> dict[str, dict[str, tuple[str, ...]]]:
    wordings = {}
    for block in table.strip().split("\n\n"):
        kind, *lines = block.replace("\n" + " " * 12, " ").splitlines()
        said = [line.split(maxsplit=1) for line in lines]
        wordings[kind] = {split: tuple(text for at, text in said if at == split) for split in SPLITS}
    return wordings


WORDINGS = _read(_TABLE)
"""Kind to split to wordings."""
