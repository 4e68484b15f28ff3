"""`agent-gym compare A.jsonl B.jsonl`: two runs, or more, on the same tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import Parser
from agent_gym.cli.reading import reading
from agent_gym.errors import ConfigError
from agent_gym.evaluate.compare import Comparison, Run, compare, read_runs, same_kind
from agent_gym.evaluate.report import align, number
from agent_gym.evaluate.statistics import Difference
from agent_gym.rollout import failure_summary


def main(argv: Sequence[str]) -> int:
    """Compare each further run with the first."""
    summary = "Compare runs on the tasks that they share: differences with 95% intervals and paired tests."
    parser = Parser("compare", summary, config=False)
    help_text = "trajectory files of `eval` or `rollout`; the first policy in the first file is what others are held to"
    parser.add_argument("files", metavar="FILE.jsonl", nargs="+", help=help_text)
    parser.add_argument("--json", action="store_true", help="print the comparisons as JSON")
    arguments = parser.parse(argv)
    runs = _read(arguments.files)
    pairs = _pairs(runs)
    if not pairs:
        raise ConfigError(
            f"{', '.join(arguments.files)}: nothing to compare; it takes two policies, or two files, that played the "
            "same environment"
        )
    found = [(a, b, compare(a, b)) for a, b in pairs]
    if arguments.json:
        rows = [
            {"a": a.policy, "b": b.policy, "env_a": a.env_id, "env_b": b.env_id, **dataclasses.asdict(comparison)}
            for a, b, comparison in found
        ]
        print(json.dumps(rows, indent=2))
    else:
        print("\n\n".join(_text(a, b, comparison) for a, b, comparison in found))
    return 0


def _read(files: Sequence[str]) -> list[Run]:
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(stems) else list(files)
    parts = [read_runs(reading([file]), name) for file, name in zip(files, names, strict=True)]
    policies = [policy for part in parts for policy in {run.policy for run in part}]
    # A policy that several files have is told apart by the file.
    return [
        dataclasses.replace(run, policy=f"{run.policy} in {name}") if policies.count(run.policy) > 1 else run
        for part, name in zip(parts, names, strict=True)
        for run in part
    ]


def _pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair each run with the first of its environment, or, alone in its own, of a variant of it."""
    pairs = []
    for i, run in enumerate(runs):
        before = [other for other in runs[:i] if same_kind(other, run)]
        first = next((other for other in before if other.env_id == run.env_id), before[0] if before else None)
        if first is not None:
            pairs.append((first, run))
    return pairs


def _text(a: Run, b: Run, found: Comparison) -> str:
    where = a.env_id if a.env_id == b.env_id else f"{a.env_id} and {b.env_id}"
    lines = [
        f"a: {a.policy}",
        f"b: {b.policy}",
        f"{where}: {found.paired} tasks paired, {found.only_a} of a alone, {found.only_b} of b alone",
    ]
    for name, run in (("a", a), ("b", b)):
        lines += [f"{len(run.failed)} episodes of {name} failed and are left out"] if run.failed else []
        lines += [f"  {line}" for line in failure_summary(run.failed)]
    if a.env_kwargs != b.env_kwargs:
        lines.append(f"env_kwargs differ: {json.dumps(a.env_kwargs)}, {json.dumps(b.env_kwargs)}")
    rows = [["measure", "a", "b", "b - a", "95% interval", "p", "test"]]
    rows += [[name, *_cells(name, difference)] for name, difference in found.measures.items()]
    lines.append(align(rows))
    for field, parts in found.categories.items():
        rows = [[field, "tasks", "success of a", "of b", "b - a", "95% interval", "p", "test"]]
        rows += [[value, str(n), *_cells("episode/success", d)] for value, (n, d) in parts.items()]
        lines += ["", align(rows)]
    return "\n".join(lines)


def _cells(name: str, d: Difference) -> list[str]:
    ends = "-" if d.low is None or d.high is None else f"{_signed(name, d.low)} to {_signed(name, d.high)}"
    p = "< 0.0001" if d.p < 1e-4 else f"{d.p:.4f}"
    return [number(name, d.a), number(name, d.b), _signed(name, d.difference), ends, p, d.test]


def _signed(name: str, value: float) -> str:
    text = number(name, value)
    return text if text.startswith("-") else f"+{text}"
