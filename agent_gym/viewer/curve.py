"""The learning curve as a PNG and as an HTML page: success on held-out tasks over training steps, with its uncertainty.

The band is the 95% interval of each evaluation. What the training rollouts measured (reward, tool calls, length) stands
below it, each on an axis of its own. The page is plain SVG without a script or a second file; while a run goes on it
loads itself anew every few seconds. Each point has its numbers as a tooltip.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, require
from agent_gym.viewer.page import fill

_POLICY, _START, _TRAINING = "#1f5fbf", "#7a7a7a", "#b5651d"
_SMOOTHING_WINDOWS = 20  # the smoothed reward averages over a twentieth of the run
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 76, 28
_RELOAD_SECONDS = 10


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation: the share of solved tasks at a training step, and the ends of its 95% interval."""

    step: float
    success: float
    low: float
    high: float


def plot_curve(
    points: Sequence[CurvePoint],
    path: str | Path,
    *,
    baseline: CurvePoint | None = None,
    below: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str = "",
) -> Path:
    """Draw the curve as a PNG, at once or not at all, and return where it is.

    Args:
        points: the evaluations of the policy; there may be none if there is something below.
        path: the PNG; its folder is made if needed.
        baseline: the evaluation to beat; its `step` is not looked at.
        below: what to draw under it: label to (training step, value) points.
        title: heading.

    Raises:
        ConfigError: if there is nothing to draw, or matplotlib is not installed.
    """
    series = {label: sorted(values) for label, values in (below or {}).items() if values}
    if not points and not series:
        raise ConfigError("there is no evaluation to draw; evaluate at least once")
    require("matplotlib", "train")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    # A figure of its own and not pyplot: no global state, and no window system is looked for.
    tops = 1 if points else 0
    figure = Figure(figsize=(7.2, (4.2 if points else 0.6) + 1.3 * len(series)), dpi=140, layout="constrained")
    ratios = {"height_ratios": [*[5] * tops, *[2] * len(series)]}
    axes = figure.subplots(tops + len(series), 1, sharex=True, squeeze=False, gridspec_kw=ratios)[:, 0]
    axes[0].set(title=title)
    if points:
        _draw_success(axes[0], sorted(points, key=lambda point: point.step), baseline)
        axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    for axis, (label, points_below) in zip(axes[tops:], series.items(), strict=True):
        at, values = zip(*points_below, strict=True)
        axis.plot(at, values, color=_TRAINING, alpha=0.35, linewidth=1)
        axis.plot(at, _smooth(values), color=_TRAINING, linewidth=1.6)
        axis.set(ylabel=label)
    axes[-1].set(xlabel="training step")
    steps = {point.step for point in points} | {step for values in series.values() for step, _ in values}
    if len(steps) == 1:
        axes[-1].set_xlim(min(steps) - 1, min(steps) + 1)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="png")
    unfinished.replace(path)
    return path


def _draw_success(top: Any, points: Sequence[CurvePoint], baseline: CurvePoint | None) -> None:
    at, lows, highs = ([getattr(point, name) for point in points] for name in ("step", "low", "high"))
    if baseline is not None:
        top.axhspan(baseline.low, baseline.high, color=_START, alpha=0.15, linewidth=0)
        label = f"start: {baseline.success:.1%}"
        top.axhline(baseline.success, color=_START, linestyle="--", linewidth=1.3, label=label)
    top.fill_between(at, lows, highs, color=_POLICY, alpha=0.18, linewidth=0, label="95% interval")
    # Seen alone only where there is a single point, and then it is all there is to see of the interval.
    top.vlines(at, lows, highs, color=_POLICY, alpha=0.3, linewidth=1)
    last = f"policy: {points[-1].success:.1%} at step {at[-1]:g}"
    top.plot(at, [point.success for point in points], color=_POLICY, marker="o", markersize=4, label=last)
    top.set(ylabel="success on held-out tasks", ylim=(0, 1))
    top.legend(loc="best", frameon=False, fontsize=9)


def _smooth(values: Sequence[float]) -> list[float]:
    """Centred moving average; the window shrinks at both ends, so that no value is invented."""
    half = max(1, len(values) // _SMOOTHING_WINDOWS)
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def render_curve(
    points: Sequence[CurvePoint],
    *,
    below: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    baseline: CurvePoint | None = None,
    title: str = "",
    running: bool = False,
) -> str:
    """Return the page; the arguments are those of `plot_curve`. It loads itself anew while the run is `running`."""
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
        drawn += "".join(
            scale.dot(p.step, p.success, f"step {p.step:g}: {p.success:.1%} [{p.low:.1%}, {p.high:.1%}]")
            for p in points
        )
        panels.append(scale.panel(head, drawn, percent=True))
    for label, values in series.items():
        numbers = [value for _, value in values]
        scale = _Scale(min(steps), last, min(numbers), max(numbers))
        head = f"{html.escape(label)} <small>{numbers[-1]:.4g} at step {values[-1][0]:g}</small>"
        # A line of one point is not to be seen.
        drawn = scale.dot(*values[0], f"{numbers[0]:.4g}", "training") if len(values) == 1 else ""
        panels.append(scale.panel(head, drawn or scale.shape("polyline", values, "training line")))
    ending = f"The run goes on; this page is loaded again every {_RELOAD_SECONDS} seconds."
    ending = ending if running else "The run is over."
    reload = f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}">' if running else ""
    heading = html.escape(title)
    marks = {"reload": reload, "title": heading, "heading": heading, "panels": "\n".join(panels), "ending": ending}
    return fill("curve.html", marks)


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

    def dot(self, step: float, value: float, tooltip: str, style: str = "policy") -> str:
        title = f"<title>{html.escape(tooltip)}</title>"
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
