"""Results as text: policies in rows and environments in columns, as papers print them, and everything about each."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence

from agent_gym.evaluate import SHARES, EvalResult
from agent_gym.evaluate.cards import differences
from agent_gym.evaluate.compare import Comparison, Run
from agent_gym.evaluate.prompts import count_of, few_prompts
from agent_gym.evaluate.statistics import Difference, Measure
from agent_gym.rollout import failure_summary

Results = Mapping[tuple[str, str], EvalResult]  # by policy and environment
ANSWERS = {"env/em": "EM", "env/f1": "F1"}  # the number that papers report for answers in words, and its name there
_PASS = ("pass@", "pass^")
_ORDER = ("episode/success", *_PASS, "reward", "env/", "episode/", "tool/")  # of measures, by how their names begin


def table(results: Results, metrics: Sequence[str] = ()) -> str:
    """Return a row per policy with its success in each environment, EM and F1 of its answers, and further `metrics`.

    The shape is that of the tables of Agent-R1. Only environments that have a measure get a column for it.
    """
    measures = {played: result.measures for played, result in results.items()}
    attempts = max((result.attempts for result in results.values()), default=0)
    labels = {"episode/success": f" avg@{attempts}" if attempts > 1 else "", **{k: f" {v}" for k, v in ANSWERS.items()}}
    columns = [
        (env_id, name)
        for env_id in dict.fromkeys(env_id for _, env_id in results)
        for name in dict.fromkeys((*labels, *metrics))
        if name == "episode/success" or any(name in found for (_, e), found in measures.items() if e == env_id)
    ]
    rows = [["policy", *(_short(env_id) + labels.get(name, f" {name}") for env_id, name in columns)]]
    for policy in dict.fromkeys(policy for policy, _ in results):
        cells = [with_interval(name, measures.get((policy, env_id), {}).get(name)) for env_id, name in columns]
        rows.append([policy, *cells])
    warnings = dict.fromkeys(few_prompts(found.prompts, found.tasks, _short(e)) for (_, e), found in results.items())
    return "\n".join([align(rows), *filter(None, warnings)])


def details(policy: str, env_id: str, result: EvalResult) -> str:
    """Return every measure of one result, and its success by kind of task."""
    attempts = f", {result.attempts} attempts each" if result.attempts > 1 else ""
    failed = f", {result.failed} failed episodes left out" if result.failed else ""
    played = f"{result.tasks} tasks, {count_of(result.prompts)}{attempts}{failed}"
    lines = [f"{env_id}, {policy}: {played}", *(f"  {line}" for line in result.failures)]
    rows = [["measure", "estimate", "95% interval"]]
    for name in sorted(result.measures, key=_rank):
        measure = result.measures[name]
        rows.append([name, number(name, measure.value), interval(name, measure)])
    lines.append(align(rows))
    for field, parts in result.categories.items():
        rows = [[field, "tasks", "success", "95% interval", "reward"]]
        for value, part in parts.items():
            if part.episodes:
                success = part.measures["episode/success"]
                shown = number("episode/success", success.value), interval("episode/success", success)
                rows.append([value, str(part.tasks), *shown, number("reward", part.reward)])
        lines += ["", align(rows)]
    return "\n".join(lines)


def align(rows: Iterable[Sequence[str]], numbers: Container[int] = ()) -> str:
    """Set rows of equal length in columns, the columns of `numbers` to the right."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if i in numbers else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def number(name: str, value: float) -> str:
    """Write a value: shares in per cent, others with four digits."""
    return f"{value:.1%}" if name in SHARES or name.startswith(_PASS) else f"{value:.4g}"


def interval(name: str, measure: Measure) -> str:
    """Write an interval; a dash where there is none."""
    if measure.low is None or measure.high is None:
        return "-"
    return f"{number(name, measure.low)} to {number(name, measure.high)}"


def with_interval(name: str, measure: Measure | None) -> str:
    """Write a value with its interval in brackets; a dash where nothing was measured."""
    if measure is None:
        return "-"
    ends = "" if measure.low is None else f" [{interval(name, measure).replace(' to ', ', ')}]"
    return number(name, measure.value) + ends


def _short(env_id: str) -> str:
    name = env_id.rpartition("/")[2]
    base, _, version = name.rpartition("-")
    return base if base and version[:1] == "v" else name


def _rank(name: str) -> tuple[int, str]:
    place = next(i for i, first in enumerate(_ORDER) if name.startswith(first))
    return place, name.rjust(20) if name.startswith(_PASS) else name


def comparison_text(a: Run, b: Run, found: Comparison) -> str:
    """Return two runs with their differences, interval and p-value of each, and by kind of task."""

    def signed(name: str, value: float) -> str:
        text = number(name, value)
        return text if text.startswith("-") else f"+{text}"

    def cells(name: str, d: Difference) -> list[str]:
        ends = "-" if d.low is None or d.high is None else f"{signed(name, d.low)} to {signed(name, d.high)}"
        p = "< 0.0001" if d.p < 1e-4 else f"{d.p:.4f}"
        return [number(name, d.a), number(name, d.b), signed(name, d.difference), ends, p, d.test]

    where = a.env_id if a.env_id == b.env_id else f"{a.env_id} and {b.env_id}"
    alone = f"{found.only_a} of a alone, {found.only_b} of b alone"
    paired = f"{found.paired} tasks paired, {count_of(found.prompts)}"
    lines = [f"a: {a.policy}", f"b: {b.policy}", f"{where}: {paired}, {alone}"]
    lines[:0] = [f"NOT COMPARABLE: {reason}" for reason in differences(a.card, b.card)]
    lines += [f"no card vouches for {name}" for name, run in (("a", a), ("b", b)) if run.card is None]
    for name, run in (("a", a), ("b", b)):
        lines += [f"{len(run.failed)} episodes of {name} failed and are left out"] if run.failed else []
        lines += [f"  {line}" for line in failure_summary(run.failed)]
    if a.env_kwargs != b.env_kwargs:
        lines.append(f"env_kwargs differ: {json.dumps(a.env_kwargs)}, {json.dumps(b.env_kwargs)}")
    rows = [["measure", "a", "b", "b - a", "95% interval", "p", "test"]]
    rows += [[name, *cells(name, difference)] for name, difference in found.measures.items()]
    lines += [align(rows), *filter(None, [few_prompts(found.prompts, found.paired, where)])]
    for field, parts in found.categories.items():
        rows = [[field, "tasks", "success of a", "of b", "b - a", "95% interval", "p", "test"]]
        rows += [[value, str(n), *cells("episode/success", d)] for value, (n, d) in parts.items()]
        lines += ["", align(rows)]
    return "\n".join(lines)
