"""How much memory, disk and GPU an index takes, before anything is encoded.

The formulas are the layouts of FAISS 1.15; the tests compare them with real indexes.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.search.index import EXACT, HNSW_LINKS, KINDS, choose_kind, lists, training_vectors

_BLOCK = 65_536  # vectors that are in memory as float32 while they are added


@dataclass(frozen=True)
class Plan:
    """What an index takes, in bytes.

    Attributes:
        kind: of index.
        count: vectors.
        dimension: numbers per vector.
        index: the file, and as much memory once all of it has been looked at (it is mapped, so processes share it).
        vectors: the folder with the vectors it is built from, which may be deleted afterwards.
        building: memory that training and adding take at most, the index included.
        gpu: memory on a GPU for a search there; None for kinds that are searched on the CPU only.
    """

    kind: str
    count: int
    dimension: int
    index: int
    vectors: int
    building: int
    gpu: int | None


def plan(count: int, dimension: int, kind: str = "auto") -> Plan:
    """Compute what an index takes.

    Raises:
        ConfigError: for a kind that cannot be made of this many vectors.
    """
    kind = choose_kind(kind, count, dimension)
    per_vector, fixed = _layout(kind, count, dimension)
    index = round(count * per_vector) + fixed
    growth = 2 if kind.startswith("ivf") else 1  # each list doubles its array when it is full
    in_float32 = 4 * dimension * max(min(_BLOCK, count), training_vectors(kind, count))
    return Plan(
        kind=kind,
        count=count,
        dimension=dimension,
        index=index,
        vectors=2 * dimension * count,
        building=growth * index + in_float32,
        gpu=2 * dimension * count if kind in EXACT else None,
    )


def plans(count: int, dimension: int) -> list[Plan]:
    """Return the plan of every kind that can be made of this many vectors of this dimension."""
    possible = [kind for kind in KINDS if count >= KINDS[kind].minimum and not (kind == "pq" and dimension % 4)]
    return [plan(count, dimension, kind) for kind in possible]


def plan_table(count: int, dimension: int) -> str:
    """Return the plans of all kinds as a table, with a star at what "auto" chooses."""
    auto = choose_kind("auto", count, dimension)
    lines = [f"{count:,} vectors of {dimension} numbers", "  kind       index (disk, RAM)   building     GPU"]
    for each in plans(count, dimension):
        star = "*" if each.kind == auto else " "
        gpu = "-" if each.gpu is None else _gib(each.gpu)
        lines.append(f"{star} {each.kind:<9}{_gib(each.index):>19}{_gib(each.building):>11}{gpu:>12}")
    return "\n".join([*lines, f"and {_gib(2 * dimension * count)} on disk for the vectors; * is kind='auto'"])


def _layout(kind: str, count: int, d: int) -> tuple[float, int]:
    """Bytes per vector, and bytes that do not depend on their number."""
    ranges = 2 * 4 * d  # smallest and largest value of each of the numbers that become a byte
    if kind == "flat":
        return 4 * d, 0
    if kind == "sqfp16":
        return 2 * d, 0
    if kind == "sq8":
        return d, ranges
    if kind == "hnsw_sq8":
        # Twice the links on the lowest level, of four bytes each. One vector in 32 is also on the level above, one
        # in 32 squared on the next and so on; and each has an offset into the links and a number of levels.
        return d + 4 * (2 * HNSW_LINKS + HNSW_LINKS / (HNSW_LINKS - 1)) + 8 + 4, ranges
    if kind in ("ivf_flat", "ivf_sq8"):
        # A code and a position per vector; a centroid and a length per list.
        code, fixed = (4 * d, 0) if kind == "ivf_flat" else (d, ranges)
        return code + 8, fixed + lists(count) * (4 * d + 8)
    if kind == "pq":
        return d // 4, 4 * 256 * d
    if kind == "rabitq4":
        return d / 2 + 20, 4 * d
    raise AssertionError(kind)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.2f} MiB"
