"""The learning curve as an HTML page: success on held-out tasks over training steps, with its uncertainty.

The band is the 95% interval of each evaluation. What the training rollouts measured (reward, tool calls, length) stands
below it, each on an axis of its own. The page is plain SVG without a script or a second file; while a run goes on it
loads itself anew every few seconds. Each point has its numbers as a tooltip.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_gym.viewer.page import plain_page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 76, 28

_SERIES = {
    "training success": "episode/success",
    "training reward": "reward",
    "sampled tokens": "episode/tokens",
    "entropy": "entropy",
}
"""What is drawn of training, by its name in the logs."""
_CALLS = re.compile("tool/.*/calls")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation: the share of solved tasks at a training step, and the ends of its 95% interval."""

    step: float
    success: float
    low: float
    high: float


Link = Callable[[float], str | None]
"""The address of the episodes behind a step, if there are any."""


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
        below: what to draw under it: label to (training step, value) points.
        baseline: the evaluation to beat; its `step` is not looked at.
        title: heading.
        running: whether the run goes on, so that the page loads itself anew.
    """
    panels = curve_panels(points, below=below, baseline=baseline)
    return plain_page(title, panels, "The run is over.", running=running)


def curve_of(history: Sequence[Mapping[str, Any]]) -> tuple[list[CurvePoint], dict[str, list[tuple[float, float]]]]:
    """Return a point per evaluated step of a log history, and the series to draw below: (step, value) by label."""
    points = {
        log["step"]: CurvePoint(log["step"], log["eval_success"], log["eval_success_low"], log["eval_success_high"])
        for log in history
        if "eval_success" in log
    }
    training = [log for log in history if log.get("reward") is not None]
    series = {label: [(log["step"], log[key]) for log in training if key in log] for label, key in _SERIES.items()}
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
        head = f"success on held-out tasks <small>{now_at}</small>"
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
        dots = [scale.dot(step, value, f"step {step:g}: {value:.4g}", style, trained) for step, value in values]
        panels.append(scale.panel(head, scale.shape("polyline", values, "training line") + "".join(dots)))
    return panels


class _Scale:
    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        if last == first:
            first, last = first - 1, last + 1
        if high == low:
            low, high = low - 0.5, high + 0.5
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
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            value = self.low + share * (self.high - self.low)
            step = self.first + share * (self.last - self.first)
            name, y = f"{value:.0%}" if percent else f"{value:.3g}", self.y(value)
            marks.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
                f'<text x="{self.x(step):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{step:g}</text>'
            )
        label = head.split(" <small>")[0]
        role = "group" if "<a " in drawn else "img"  # an image has no links in it
        box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="{role}" aria-label="{label} over training steps"'
        return f"<h2>{head}</h2>\n<svg {box}>{''.join(marks)}{drawn}</svg>"
