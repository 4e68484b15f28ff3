"""The learning curve of a run as an HTML page: success on held-out tasks over steps; and the page of the run with it.

The band is the 95% interval of each evaluation. Measurements of training rollouts (reward, tool calls, length) are
below it, each on a separate axis. Each point has its numbers as a tooltip. Around the curve, the page of a run that
`agent-gym view RUN` writes or serves has status, costs and settings, and leads to pages of episodes (page.py), whose
addresses the caller knows. Both are plain HTML and SVG without a script; while a run continues they load themselves
anew.
"""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.public import public
from agent_gym.viewer.page import plain_page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 76, 28

_SERIES = {
    "training success": "episode/success",
    "training reward": "reward",
    "sampled tokens": "episode/tokens",
    "entropy": "entropy",
}
_IMITATION = {"loss": "loss", "accuracy of the next token": "mean_token_accuracy"}
"""The curves of training, by their names in the logs."""
_POINT = {"eval_success", "eval_success_low", "eval_success_high"}
_CALLS = re.compile("tool/.*/calls")
_HELD_OUT = "success on held-out tasks"
_OF_SEVERAL = re.compile("eval_([^/]+)_success")
_LATEST = ("perf/", "time/", "sampling/", "rollout/", "episode/", "reward/", "tool/", "judge/", "teacher/")

Files = Mapping[tuple[str, int], Sequence[Path]]
"""Trajectory files by their use ("eval" or "train") and the step before which it was, one file a process."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation: the share of solved tasks at a training step, and the ends of its 95% interval."""

    step: float
    success: float
    low: float
    high: float


Link = Callable[[float], str | None]
"""The address of the episodes of a step, if there are any."""


def render_curve(
    points: Sequence[CurvePoint],
    *,
    below: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    baseline: CurvePoint | None = None,
    title: str = "",
    running: bool = False,
) -> str:
    """Return the page.

    Args:
        points: the evaluations of the policy; there may be none.
        below: further curves under it: label to (training step, value) points.
        baseline: the evaluation to beat; its `step` is not looked at.
        title: heading.
        running: whether the run continues, so that the page loads itself anew.
    """
    panels = curve_panels(points, below=below, baseline=baseline)
    return plain_page(title, panels, "The run is over.", running=running)


def curve_of(history: Sequence[Mapping[str, Any]]) -> tuple[list[CurvePoint], dict[str, list[tuple[float, float]]]]:
    """Return a point per evaluated step of a log history, and the series to draw below: (step, value) by label.

    Evaluations of several sets are series, each with its name.
    """
    points = {
        log["step"]: CurvePoint(log["step"], log["eval_success"], log["eval_success_low"], log["eval_success_high"])
        for log in history
        if _POINT <= log.keys()
    }
    training = [log for log in history if log.get("reward") is not None]
    sets = {name: found[1] for log in history for name in log if (found := _OF_SEVERAL.fullmatch(name))}
    series = {
        f"{_HELD_OUT}, {tasks}": [(log["step"], log[name]) for log in history if name in log]
        for name, tasks in sets.items()
    }
    series |= {label: [(log["step"], log[key]) for log in training if key in log] for label, key in _SERIES.items()}
    if series["training reward"] == series["training success"]:
        del series["training reward"]  # the reward is the success, and one curve shows both
    if not training and not points:
        series |= {
            label: [(log["step"], log[key]) for log in history if key in log] for label, key in _IMITATION.items()
        }
    used = {log["step"]: [value for name, value in log.items() if _CALLS.fullmatch(name)] for log in training}
    series["tool calls"] = [(step, sum(calls)) for step, calls in used.items() if calls]
    return [points[step] for step in sorted(points)], {label: values for label, values in series.items() if values}


def curve_panels(
    points: Sequence[CurvePoint],
    *,
    below: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    baseline: CurvePoint | None = None,
    evaluated: Link = lambda step: None,
    trained: Link = lambda step: None,
) -> list[str]:
    """Return the drawings alone; arguments as `render_curve`'s, and where the points of both kinds lead to."""
    points = sorted(points, key=lambda point: point.step)
    series = {label: sorted(values) for label, values in (below or {}).items() if values}
    steps = [point.step for point in points] + [step for values in series.values() for step, _ in values]
    last = max(steps, default=0)
    panels = []
    if points:
        scale = _Scale(min(steps), last, 0.0, 1.0)
        now = points[-1]
        now_at = f"{now.success:.1%} [{now.low:.1%}, {now.high:.1%}] at step {now.step:g}"
        head = f"{_HELD_OUT} <small>{now_at}</small>"
        band = [(p.step, p.high) for p in points] + [(p.step, p.low) for p in reversed(points)]
        drawn = ""
        if baseline:
            ends = [(step, baseline.success) for step in (scale.first, scale.last)]
            drawn += scale.shape("polyline", ends, "start line")
        drawn += scale.shape("polygon", band, "policy band")
        drawn += scale.shape("polyline", [(p.step, p.success) for p in points], "policy line")
        for p in points:
            tooltip = f"step {p.step:g}: {p.success:.1%} [{p.low:.1%}, {p.high:.1%}]"
            drawn += scale.dot(p.step, p.success, tooltip, link=evaluated)
        panels.append(scale.panel(head, drawn, percent=True))
    for label, values in series.items():
        numbers = [value for _, value in values]
        scale = _Scale(min(steps), last, min(numbers), max(numbers))
        head = f"{html.escape(label)} <small>{numbers[-1]:.4g} at step {values[-1][0]:g}</small>"
        # A line of one point is not to be seen; the dots of a longer one appear under the pointer.
        style = "training" if len(values) == 1 else "training hidden"
        link = evaluated if label.startswith(_HELD_OUT) else trained
        dots = [scale.dot(step, value, f"step {step:g}: {value:.4g}", style, link) for step, value in values]
        panels.append(scale.panel(head, scale.shape("polyline", values, "training line") + "".join(dots)))
    return panels


def _spacing(low: float, high: float) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten, of which up to five fit between two numbers."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough * (1 - 1e-9))


def round_ends(low: float, high: float) -> tuple[float, float]:
    """Return the round numbers around two numbers."""
    spacing = _spacing(low, high)
    return math.floor(low / spacing + 1e-9) * spacing, math.ceil(high / spacing - 1e-9) * spacing


def ticks(low: float, high: float) -> list[float]:
    """Return the round numbers from one number to another."""
    spacing = _spacing(low, high)
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [number * spacing for number in range(first, last + 1)]


class _Scale:
    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        if last == first:
            half = max(1.0, abs(first) / 1e6)
            first, last = first - half, last + half
        if high == low:
            half = max(0.5, abs(low) / 1e6)
            low, high = low - half, high + half
        low, high = round_ends(low, high)
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, step: float) -> float:
        return _LEFT + (step - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - 10)

    def y(self, value: float) -> float:
        return 8 + (self.high - value) / (self.high - self.low) * (_HEIGHT - _BOTTOM - 8)

    def shape(self, tag: str, places: Sequence[tuple[float, float]], style: str) -> str:
        at = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in places)
        return f'<{tag} class="{style}" points="{at}"/>'

    def dot(self, step: float, value: float, tooltip: str, style: str = "policy", link: Link | None = None) -> str:
        title = f"<title>{html.escape(tooltip)}</title>"
        drawn = f'<circle class="{style}" cx="{self.x(step):.1f}" cy="{self.y(value):.1f}" r="4">{title}</circle>'
        address = link(step) if link else None
        if address is None:
            return drawn
        return f'<a href="{html.escape(address)}" aria-label="episodes of {html.escape(tooltip)}">{drawn}</a>'

    def panel(self, head: str, drawn: str, percent: bool = False) -> str:
        marks = []
        for value in ticks(self.low, self.high):
            name, y = f"{value:.0%}" if percent else f"{value:.4g}", self.y(value)
            marks.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
            )
        for step in ticks(self.first, self.last):
            anchor = "end" if self.x(step) > _WIDTH - 30 else "middle"
            marks.append(f'<text x="{self.x(step):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{step:g}</text>')
        label = head.split(" <small>")[0]
        role = "group" if "<a " in drawn else "img"  # an image has no links in it
        box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="{role}" aria-label="{label} over training steps"'
        return f"<h2>{head}</h2>\n<svg {box}>{''.join(marks)}{drawn}</svg>"


def trajectory_files(folder: Path) -> dict[tuple[str, int], list[Path]]:
    """Return the trajectory files of a run, in the order of their steps."""
    found: dict[tuple[str, int], list[Path]] = {}
    for path in sorted(folder.glob("trajectories/*.jsonl")):
        name = re.match(r"(eval|train)_(\d+)_", path.name)
        if name and holds_something(path):
            found.setdefault((name[1], int(name[2])), []).append(path)
    return found


def holds_something(path: Path) -> bool:
    """Return whether a file is not empty; a link to nothing and a pipe hold something, which their reader refuses."""
    return not path.is_file() or path.stat().st_size > 0


def render_run(
    name: str,
    about: Mapping[str, Any],
    card: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    files: Files,
    address: Callable[[str], str],
) -> str:
    """Return the page.

    Args:
        name: heading.
        about: the content of run.json; may be empty, as for a run of an older version. Its `status` is the true one.
        card: the entry `training` of card.json; may be empty.
        history: the logs, by step.
        files: see `trajectory_files`.
        address: the address of episodes: of "eval_3", "train_0", or of "change", which is the first and the last
            evaluation side by side.
    """
    points, below = curve_of(history)
    trained = [step for mode, step in files if mode == "train"]

    def of_evaluation(step: float) -> str | None:
        return address(f"eval_{step:.0f}") if ("eval", step) in files else None

    def of_training(step: float) -> str | None:
        # Episodes logged at a step were played at an earlier one.
        played = max((one for one in trained if one < step), default=None)
        return None if played is None else address(f"train_{played}")

    baseline = points[0] if points and points[0].step == 0 else None
    panels = [_headline(points), _facts(about, history), _episodes(files, address)]
    panels += curve_panels(points, below=below, baseline=baseline, evaluated=of_evaluation, trained=of_training)
    numbers = [(key, value) for log in history for key, value in log.items() if isinstance(value, int | float)]
    latest = {key: value for key, value in numbers if key.startswith(_LATEST)}
    panels += _section("Last numbers", latest)
    panels += _section("Costs", card.get("spent", {}))
    panels += _section("Settings", card.get("settings", {}))
    panels += _section("Versions", card.get("versions", {}))
    return plain_page(name, panels, running=about.get("status") == "running")


def _headline(points: Sequence[CurvePoint]) -> str:
    """Say from where to where the success on held-out tasks went, and in how many steps."""
    if len(points) < 2:
        return ""
    first, last = points[0], points[-1]
    text = f"{_HELD_OUT}: {first.success:.0%} to {last.success:.0%} in {last.step - first.step:g} steps"
    return f'<p class="headline">{text}</p>'


def _facts(about: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    step = about.get("step", max((log["step"] for log in history), default=0))
    of = f" of {about['max_steps']}" if "max_steps" in about else ""
    words = [f"{about['status']}, " if "status" in about else "", f"step {step}{of}"]
    command = ""
    if {"command", "argv"} <= about.keys():
        by = ["python"] if about["command"] == "python" else ["agent-gym", about["command"]]
        command = shlex.join([*by, *public(about["argv"])])
    return f"<p>{html.escape(''.join(words))}</p>" + (f"<pre>{html.escape(command)}</pre>" if command else "")


def _episodes(files: Files, address: Callable[[str], str]) -> str:
    steps = {mode: [step for one, step in files if one == mode] for mode in ("eval", "train")}
    parts = []
    if len(played := steps["eval"]) > 1:
        text = f"What has changed: steps {played[0]} and {played[-1]} side by side"
        parts.append(f'<p><a href="{html.escape(address("change"))}">{text}</a></p>')
    for mode, title in (("eval", "Episodes of evaluations"), ("train", "Episodes of training")):
        links = [f'<a href="{html.escape(address(f"{mode}_{step}"))}">{step}</a>' for step in steps[mode]]
        if links:
            parts.append(f"<details><summary>{title}</summary><p>By step: {', '.join(links)}</p></details>")
    return "".join(parts)


def _section(title: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    rows = "".join(f"<tr><td>{html.escape(key)}</td><td>{_shown(value)}</td></tr>" for key, value in values.items())
    return [f"<details><summary>{title}</summary><table>{rows}</table></details>"]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(value if isinstance(value, str) else json.dumps(value))
