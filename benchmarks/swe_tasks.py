"""How many tasks the listed packages give, and a task's cost: `agent-gym prepare` of one package after the other.

    python benchmarks/swe_tasks.py swe-functions               # the listed packages, each in a folder of its own
    python benchmarks/swe_tasks.py swe --packages semver idna
    python benchmarks/swe_tasks.py --table                     # what benchmarks/history holds

CPU seconds are those of the command and of all processes that it waited for, so the runs of the tests too. A package
that is in the record is not built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _common

from agent_gym.prepare import sources

HISTORY = Path(__file__).parent / "history"
RECIPES = ("swe", "swe-functions")
PACKAGES = Path(sources.__file__).with_name("packages.json")
MIB = 2**20
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("recipe", nargs="?", choices=RECIPES)
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="default: the listed ones")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that the sandbox's processes can be waited for
    if options.recipe and not options.table:
        kept = HISTORY / f"tasks.{options.recipe}.json"
        record = _read(kept)
        for name in options.packages or json.loads(PACKAGES.read_text(encoding="utf-8")):
            if name not in record:
                record[name] = built(options.recipe, name)
                print(name, record[name], flush=True)
                rows = ",\n".join(f" {json.dumps(one)}: {json.dumps(record[one])}" for one in sorted(record))
                kept.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    table()


def built(recipe: str, package: str) -> dict[str, Any]:
    """Build the tasks of one package, and count them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "made"
        command = [sys.executable, "-m", "agent_gym", "prepare", recipe, "--packages", package, "--output", str(folder)]
        begun = time.perf_counter()
        with (Path(scratch) / "log").open("w+") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(child.pid, 0)
            log.seek(0)
            lines = log.read().strip().splitlines()
        child.returncode = os.waitstatus_to_exitcode(status)
        orphans = [0.0]
        with contextlib.suppress(ChildProcessError):
            while True:
                _, _, left = os.wait4(-1, 0)
                orphans.append(left.ru_utime + left.ru_stime)
        made = [path.parent for path in (folder / "tasks").glob("*/*/*/instruction.md")]
        size = sum(path.stat().st_size for path in (folder / "tasks").rglob("*") if path.is_file())
        return {
            "tasks": len(made),
            "mib": round(size / MIB, 2),
            "cpu_s": round(used.ru_utime + used.ru_stime + sum(orphans), 1),
            "wall_s": round(time.perf_counter() - begun, 1),
            **({"error": lines[-1]} if child.returncode else {}),
        }


def table() -> None:
    head = ("recipe", "packages", "with tasks", "tasks", "CPU s a task", "MiB a task")
    rows = []
    for recipe in RECIPES:
        found = list(_read(HISTORY / f"tasks.{recipe}.json").values())
        tasks = sum(one["tasks"] for one in found)
        sums = [sum(one[key] for one in found) / max(tasks, 1) for key in ("cpu_s", "mib")]
        rows += found and [(recipe, len(found), sum(one["tasks"] > 0 for one in found), tasks, *sums)]
    _common.print_table(head, rows)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    main()
