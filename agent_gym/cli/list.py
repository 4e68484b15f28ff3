"""`agent-gym list`: the registered environments as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from agent_gym.cli.parser import Parser
from agent_gym.registry import entries


def main(argv: Sequence[str]) -> int:
    """Print the environments."""
    parser = Parser("list", "Show the environments: id, what it is, tools, data.", config=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse(argv)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries()], indent=2, default=dict))
        return 0
    rows = [("ID", "TASK", "TOOLS", "DATA")]
    for entry in entries():
        needs = [f"pip install 'agent-gym[{entry.extra}]'"] if entry.extra else []
        needs += [entry.needs] if entry.needs else []
        summary = f"{entry.summary} ({'; '.join(needs)})" if needs else entry.summary
        rows.append((entry.id, summary, ", ".join(entry.tools) or "-", entry.data))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
    return 0
