"""What the benchmarks share: the lines that say where a number comes from, tables, medians, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def plain_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of a benchmark that keeps its records in benchmarks/history, and has no smoke run."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that most benchmarks have."""
    made = plain_parser(description)
    made.add_argument("--quick", action="store_true", help="a smoke run: its numbers mean nothing")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to this file")
    return made


def provenance(packages: Iterable[str]) -> dict[str, str]:
    """Say where and when: date, machine, load, and the versions of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {platform.platform(terse=True)}",
        "load": load(),
        "versions": ", ".join([f"python {platform.python_version()}", *(f"{k} {v}" for k, v in found.items())]),
    }


def load() -> str:
    """The load averages of the last 1 and 5 minutes: more than the number of cores means a busy machine."""
    one, five, _ = os.getloadavg()
    return f"{one:.1f} (1 min), {five:.1f} (5 min)"


def print_provenance(facts: Mapping[str, str]) -> None:
    """Print the facts, one per line."""
    for name, fact in facts.items():
        print(f"{name:9} {fact}")
    print(flush=True)


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: texts to the left, numbers to the right; None is a dash."""
    cells = [[_show(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for row in [list(head), *cells]:
        first, *others = zip(row, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip())
    print(flush=True)


def median(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)


def write_json(path: Path | None, **content: Any) -> None:
    """Write the measurements, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def _show(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}" if abs(cell) < 0.1 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
