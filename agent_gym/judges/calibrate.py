"""The quality of a judge against known labels: agreement, position bias, length bias, cost.

A label is a number: higher is better, 0 and 1 for wrong and right. Labels of stored episodes are whether the
environment says success, unless a line has its own `label`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError, quoted
from agent_gym.evaluate.statistics import Measure, kappa, resampled, share, spearman
from agent_gym.judges.judge import Judge, Judgement
from agent_gym.judges.kinds import Ranking
from agent_gym.judges.questions import Case
from agent_gym.judges.sources import JudgeFailure
from agent_gym.rollout import from_record
from agent_gym.rollout.trajectories import misfit
from agent_gym.untrusted import parse_json


class Labelled(NamedTuple):
    """A case and its value; cases of one group are attempts at one task."""

    case: Case
    label: float
    group: Hashable


class Rated(NamedTuple):
    """A case that the judge has scored."""

    score: float
    label: float
    length: int  # characters that the policy wrote


@dataclass(frozen=True)
class Calibration:
    """How a judge agrees with labels; None where a measure cannot be taken."""

    judge: dict[str, Any]
    labelled: int
    failed: int  # without a verdict, and left out below
    failures: list[str]  # reasons, the first few
    # Of a kind that compares: of the pairs of a group with different labels, a tie is half. Else: a score of 0.5 or
    # more is a label of 1.
    accuracy: Measure | None
    kappa: Measure | None  # chance is 0
    spearman: Measure | None  # of scores and labels
    position_bias: Measure | None  # share of the pairs whose order changes when they are shown the other way round
    length_bias: Measure | None  # rank correlation of score and length, given the label
    spent: dict[str, float]

    def rows(self) -> list[list[str]]:
        """Return the measures as lines of a table."""
        names = ("accuracy", "kappa", "spearman", "position_bias", "length_bias")
        found = [["measure", "estimate", "95% interval"]]
        for name in names:
            measure: Measure | None = getattr(self, name)
            if measure is None:
                found.append([name, "-", "-"])
            else:
                ends = "-" if measure.low is None else f"{measure.low:.3f} to {measure.high:.3f}"
                found.append([name, f"{measure.value:.3f}", ends])
        return found

    def to_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_labels(lines: Iterable[str], name: str) -> list[Labelled]:
    """Read lines of JSON: episodes as `rollout` and `eval` write them, or `{"messages": [...], "label": 1}`.

    `group` names the attempts at one task; an episode brings it along. Failed episodes are left out. Raises
    `ConfigError`, which names the file and line, for anything else.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            if "rows" in record:
                if wrong := misfit(record):
                    raise ValueError(wrong)
                if record["failure"] is not None:
                    continue
                spec, case = record["spec"], Case.of(from_record(record))
                group: Hashable = (spec["env_id"], spec["split"], spec["index"], spec["seed"])
                label = record.get("label", record["success"])
            else:
                case, label = Case.of_messages(record["messages"], record.get("tools", ())), record["label"]
                group = record.get("group", number)
            if not math.isfinite(label := float(label)):
                raise ValueError(f"label is {label}")
            found.append(Labelled(case, label, group))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ConfigError(f"{name}, line {number}: no labelled episode: {quoted(error, 200)}") from error
    if not found:
        raise ConfigError(f"{name} holds no labelled episodes")
    return found


def calibrate(judge: Judge, labelled: Sequence[Labelled]) -> Calibration:
    """Let the judge score the cases, and compare. `ConfigError` if it compares, and no group has two cases."""
    before = judge.spent()
    groups = defaultdict[Hashable, list[Labelled]](list)
    for one in labelled:
        groups[one.group].append(one)
    compares = judge.kind.compares
    tasks = [group for group in groups.values() if len(group) > 1 or not compares]
    if not tasks:
        raise ConfigError("the judge compares attempts at one task, and no group has two: give records a group")
    parts = tasks if compares else [[one] for group in tasks for one in group]
    found = judge.judge([[one.case for one in part] for part in parts])
    rated = defaultdict[Hashable, list[Rated]](list)
    flips = []
    for part, judged in zip(parts, found, strict=True):
        if isinstance(judged, Judgement):
            flips.append(judged.flips)
            for one, scores in zip(part, judged.scores, strict=True):
                rated[one.group].append(Rated(fmean(scores), one.label, one.case.length))
    if isinstance(judge.kind, Ranking):
        backwards = dataclasses.replace(judge, kind=dataclasses.replace(judge.kind, backwards=True))
        backwards.ledger = judge.ledger
        turned = backwards.judge([[one.case for one in part] for part in parts])
        backwards.close()
        flips = [_flips(part, a, b) for part, a, b in zip(parts, found, turned, strict=True)]
    asked, seen = sum(map(len, parts)), [*rated.values()]
    failures = [str(error) for error in found if not isinstance(error, Judgement)]
    return Calibration(
        judge=judge.describe(),
        labelled=asked,
        failed=asked - sum(map(len, seen)),
        failures=list(dict.fromkeys(failures))[:5],
        **(_agreement(seen, compares) if seen else dict.fromkeys(("accuracy", "kappa", "spearman", "length_bias"))),
        position_bias=_share(flips),
        spent=dict(judge.spent() - before),
    )


def _agreement(tasks: Sequence[Sequence[Rated]], compares: bool) -> dict[str, Measure | None]:
    if compares:
        pairs = [
            [
                (_sign(a.score - b.score), _sign(a.label - b.label))
                for a, b in combinations(task, 2)
                if a.label != b.label
            ]
            for task in tasks
        ]
    else:
        binary = all(one.label in (0.0, 1.0) for task in tasks for one in task)
        pairs = [[(int(one.score >= 0.5), int(one.label)) for one in task] for task in tasks] if binary else []
    pairs = [some for some in pairs if some]
    right = [[1.0 if given == true else 0.5 * (compares and given == 0) for given, true in some] for some in pairs]
    return {
        "accuracy": _share(right),
        "kappa": resampled(pairs, kappa) if pairs else None,
        "spearman": resampled(tasks, partial(_correlation, ("score", "label"))),
        "length_bias": resampled(tasks, partial(_correlation, ("score", "length", "label"))),
    }


def _correlation(names: Sequence[str], rated: Sequence[Rated]) -> float:
    return spearman(*([getattr(one, name) for one in rated] for name in names))


def _flips(part: Sequence[Labelled], first: Judgement | JudgeFailure, second: Judgement | JudgeFailure) -> list[bool]:
    """Return for each pair of different cases of a group whether its order differs; a judge sees equal ones once."""
    if not (isinstance(first, Judgement) and isinstance(second, Judgement)):
        return []
    scores = {one.case: both for one, *both in zip(part, first.scores, second.scores, strict=True)}
    return [_sign(a[0] - b[0]) != _sign(c[0] - d[0]) for (a, c), (b, d) in combinations(scores.values(), 2)]


def _share(parts: Sequence[Sequence[float]]) -> Measure | None:
    parts = [part for part in parts if part]
    return share([*map(sum, parts)], [*map(len, parts)], sum(map(len, parts))) if parts else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
