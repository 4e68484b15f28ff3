"""The learning curve as an HTML page: the drawing of curve.py, for looking at while a run goes on.

Plain SVG without a script or a second file. While the run lasts the page loads itself anew every few seconds; each
point tells its numbers when it is pointed at.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from agent_gym.viewer.curve import CurvePoint
from agent_gym.viewer.page import fill

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 76, 28
_RELOAD_SECONDS = 10


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
        points: the evaluations of the policy; there may be none yet.
        below: what to draw under them: label to (training step, value) points.
        baseline: the evaluation to beat; its `step` is not looked at.
        title: heading.
        running: whether the page is to load itself anew.
    """
    points = sorted(points, key=lambda point: point.step)
    series = {label: sorted(values) for label, values in (below or {}).items() if values}
    steps = [point.step for point in points] + [step for values in series.values() for step, _ in values]
    last = max(steps, default=0)
    panels = []
    if points:
        scale = _Scale(min(steps), last, 0.0, 1.0)
        now = points[-1]
        told = f"{now.success:.1%} [{now.low:.1%}, {now.high:.1%}] at step {now.step:g}"
        head = f"success on held-out tasks <small>{told}</small>"
        band = [(p.step, p.high) for p in points] + [(p.step, p.low) for p in reversed(points)]
        drawn = "" if baseline is None else scale.line(scale.across(baseline.success), "start line")
        drawn += scale.shape("polygon", band, "policy band")
        drawn += scale.shape("polyline", [(p.step, p.success) for p in points], "policy line")
        drawn += "".join(
            scale.dot(p.step, p.success, f"step {p.step:g}: {p.success:.1%} [{p.low:.1%}, {p.high:.1%}]")
            for p in points
        )
        panels.append(scale.panel(head, drawn, percent=True))
    for label, values in series.items():
        numbers = [value for _, value in values]
        scale = _Scale(min(steps), last, min(numbers), max(numbers))
        head = f"{html.escape(label)} <small>{numbers[-1]:.4g} at step {values[-1][0]:g}</small>"
        panels.append(scale.panel(head, scale.line(values, "training line")))
    ending = (
        f"The run goes on; this page shows it anew every {_RELOAD_SECONDS} seconds." if running else "The run is over."
    )
    parts = {
        "reload": f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}">' if running else "",
        "title": html.escape(title),
        "heading": html.escape(title),
        "panels": "\n".join(panels),
        "note": ending,
    }
    return fill("curve.html", parts)


class _Scale:
    """From steps and values to places in a panel."""

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

    def across(self, value: float) -> list[tuple[float, float]]:
        return [(self.first, value), (self.last, value)]

    def shape(self, tag: str, places: Sequence[tuple[float, float]], style: str) -> str:
        at = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in places)
        return f'<{tag} class="{style}" points="{at}"/>'

    def line(self, places: Sequence[tuple[float, float]], style: str) -> str:
        if len(places) == 1:
            return self.dot(*places[0], f"{places[0][1]:.4g}", style.split()[0])
        return self.shape("polyline", places, style)

    def dot(self, step: float, value: float, told: str, style: str = "policy") -> str:
        title = f"<title>{html.escape(told)}</title>"
        return f'<circle class="{style}" cx="{self.x(step):.1f}" cy="{self.y(value):.1f}" r="3.5">{title}</circle>'

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
        box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label} over training steps"'
        return f"<h2>{head}</h2>\n<svg {box}>{''.join(marks)}{drawn}</svg>"
