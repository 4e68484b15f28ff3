"""The page of a run: status, learning curve, episodes, costs, settings. `agent-gym view RUN` writes or serves it.

It is plain HTML in the frame of the curve (curve.html), and leads to pages of episodes (page.py), whose addresses the
caller knows.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.viewer.curve import curve_of, curve_panels
from agent_gym.viewer.page import plain_page

_LATEST = ("perf/", "time/", "sampling/", "rollout/", "episode/", "reward/", "tool/", "judge/", "teacher/")

Files = Mapping[tuple[str, int], Sequence[Path]]
"""Trajectory files by what was played ("eval" or "train") and the step before which it was, one file a process."""


def trajectory_files(folder: Path) -> dict[tuple[str, int], list[Path]]:
    """Return the trajectory files of a run, in the order of their steps."""
    found: dict[tuple[str, int], list[Path]] = {}
    for path in sorted(folder.glob("trajectories/*.jsonl")):
        name = re.match(r"(eval|train)_(\d+)_", path.name)
        if name and path.stat().st_size:
            found.setdefault((name[1], int(name[2])), []).append(path)
    return found


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
        about: what run.json holds; may be empty, as that of a run that a Python program started. Its `status` is the
            true one.
        card: what card.json holds of `training`; may be empty.
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
        # What is logged at a step was played at one before.
        played = max((one for one in trained if one < step), default=None)
        return None if played is None else address(f"train_{played}")

    baseline = points[0] if points and points[0].step == 0 else None
    panels = [_facts(about, history), _episodes(files, address)]
    panels += curve_panels(points, below=below, baseline=baseline, evaluated=of_evaluation, trained=of_training)
    numbers = [(key, value) for log in history for key, value in log.items() if isinstance(value, int | float)]
    latest = {key: value for key, value in numbers if key.startswith(_LATEST)}
    panels += _section("Last numbers", latest)
    panels += _section("Costs", card.get("spent", {}))
    panels += _section("Settings", card.get("settings", {}))
    panels += _section("Versions", card.get("versions", {}))
    return plain_page(name, panels, running=about.get("status") == "running")


def _facts(about: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    step = about.get("step", max((log["step"] for log in history), default=0))
    of = f" of {about['max_steps']}" if "max_steps" in about else ""
    words = [f"{about['status']}, " if "status" in about else "", f"step {step}{of}"]
    command = shlex.join(["agent-gym", about["command"], *about["argv"]]) if "argv" in about else ""
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
