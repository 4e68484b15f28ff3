"""Trades that name the arms of the bandit, and their pairs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

from agent_gym.data import Row

TRADES: Mapping[str, tuple[str, str]] = {
    "train": (
        "Accountant Baker Bookbinder Caretaker Carpenter Dentist Electrician Florist Groundskeeper "
        "Joiner Judge Lecturer Midwife Notary Optician Pharmacist Plumber Schoolteacher Tailor "
        "Veterinarian",
        "Acrobat Actor Angler Broker Busker Composer Founder Gambler Inventor Magician Mountaineer "
        "Novelist Painter Prospector Racer Rapper Sculptor Smuggler Speculator Stuntman",
    ),
    "validation": (
        "Beekeeper Cobbler Cook Glazier Locksmith Nurse Stationmaster Weaver",
        "Buccaneer Comedian Daredevil Diver Illusionist Juggler Poet Trapper",
    ),
    "test": (
        "Archivist Barber Brewer Clerk Gardener Librarian Receptionist Roofer",
        "Adventurer Astronaut Bookmaker Dancer Diviner Filmmaker Pirate Surfer",
    ),
}
"""By split, trades with a steady income and risky ones."""


@lru_cache(maxsize=1)
def pairs() -> dict[str, Sequence[Row]]:
    """Return the tasks of each split, shuffled."""
    tasks: dict[str, Sequence[Row]] = {}
    for split, (steady, risky) in TRADES.items():
        both = [(a, b) for a in steady.split() for b in risky.split()]
        rows = [{"arms": [*arms], "risky": b} for a, b in both for arms in ((a, b), (b, a))]
        random.Random(f"bandit/{split}").shuffle(rows)
        tasks[split] = rows
    return tasks
