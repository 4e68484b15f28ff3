"""What `agent-gym COMMAND --help` costs.

    python benchmarks/cli_help.py
    python benchmarks/cli_help.py --quick

Each round runs `--help` of every command in a fresh process, one after the other, and `python -c pass` beside them. CPU
time counts, since a wait for the disk or for another program says nothing about the command; noise only adds to it.

Columns: `best` and `median` CPU seconds of the process; `above python` the best less that of `python -c pass`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _common

from agent_gym.cli.main import COMMANDS

NOTHING = "python -c pass"


def main() -> None:
    """Measure and print."""
    arguments = _common.parser(__doc__).parse_args()
    facts = _common.provenance(["gymnasium", "numpy", "transformers", "trl"])
    _common.print_provenance(facts)
    commands = {NOTHING: ["-c", "pass"], "(none)": ["-m", "agent_gym", "--help"]}
    commands |= {name: ["-m", "agent_gym", name, "--help"] for name in COMMANDS}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(1 if arguments.quick else 10):
        for name, words in commands.items():
            seconds[name].append(cpu_seconds(words))
    floor = min(seconds[NOTHING])
    rows = [(name, min(found), _common.median(found), min(found) - floor) for name, found in seconds.items()]
    _common.print_table(["command", "best", "median", "above python"], rows)
    _common.write_json(arguments.json, **facts, cpu_seconds=seconds)


def cpu_seconds(words: list[str]) -> float:
    """Run python and return its user and system time."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
