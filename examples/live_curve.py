"""The learning curve of a run that goes on: curve.png and curve.html in its folder.

The page is written at each log; it is text. A picture costs about a second of work, so it is drawn anew at each
evaluation, at the end, and otherwise as often as it takes no more than a hundredth of the run. Both are replaced as a
whole: who looks at them never sees half a file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from agent_gym.viewer import CurvePoint, plot_curve
from agent_gym.viewer.curve_page import render_curve

_SHARE = 0.01  # of the time, for pictures

Series = dict[str, list[tuple[float, float]]]

_BELOW = {
    "training success": "episode/success",
    "training reward": "reward",
    "sampled tokens": "episode/tokens",
    "entropy": "entropy",
}


def curve_of(history: Sequence[Mapping[str, Any]]) -> tuple[list[CurvePoint], Series]:
    """Read the curve from a trainer's `state.log_history`.

    Returns:
        One point per evaluated step, and what to draw below: label to (step, value) points.
    """
    points = {
        log["step"]: CurvePoint(log["step"], log["eval_success"], log["eval_success_low"], log["eval_success_high"])
        for log in history
        if "eval_success" in log
    }
    training = [log for log in history if log.get("reward") is not None]
    series = {label: [(log["step"], log[key]) for log in training if key in log] for label, key in _BELOW.items()}
    series["tool calls"] = [(log["step"], tool_calls(log)) for log in training if _has_tools(log)]
    return [points[step] for step in sorted(points)], {label: values for label, values in series.items() if values}


def tool_calls(metrics: Mapping[str, float]) -> float:
    """Tool calls per episode, whatever the tools."""
    return sum(value for name, value in metrics.items() if name.startswith("tool/") and name.endswith("/calls"))


def _has_tools(metrics: Mapping[str, float]) -> bool:
    return any(name.startswith("tool/") for name in metrics)


class LiveCurve(TrainerCallback):
    """Writes curve.png and curve.html while a trainer trains.

    Args:
        folder: where; by default the run's `output_dir`.
        title: heading; by default the name of that folder.
    """

    def __init__(self, folder: str | Path | None = None, title: str | None = None) -> None:
        """Draw nothing yet."""
        self._folder, self._title = folder, title
        self._rest_until = 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Write what there is by now."""
        self._write(args, state, now="eval_success" in (logs or {}))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the whole curve."""
        self._write(args, state, now=True, running=False)

    def _write(self, args: Any, state: Any, *, now: bool, running: bool = True) -> None:
        points, below = curve_of(state.log_history)
        if not state.is_world_process_zero or not (points or below):
            return
        folder = Path(self._folder or args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        title = self._title or folder.resolve().name
        # The policy that the run began with, if it was evaluated.
        drawn: dict[str, Any] = {"below": below, "title": title}
        drawn["baseline"] = points[0] if points and points[0].step == 0 else None
        unfinished = folder / "curve.html.unfinished"
        unfinished.write_text(render_curve(points, running=running, **drawn), encoding="utf-8")
        unfinished.replace(folder / "curve.html")
        started = time.perf_counter()
        if now or started >= self._rest_until:
            plot_curve(points, folder / "curve.png", baseline_name="start", **drawn)
            ended = time.perf_counter()
            self._rest_until = ended + (ended - started) / _SHARE
