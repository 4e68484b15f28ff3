"""The display of a run: its progress, its use of time, and its learning.

    with watch(trainer):
        trainer.train()

On a terminal a display takes the place of transformers' progress bar; into a file or a pipe goes one line per log.
Everywhere the learning curve of the run is kept up to date: curve.html in its folder.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from agent_gym.errors import write_whole
from agent_gym.viewer.curve import curve_of, render_curve

_BLOCKS = "▁▂▃▄▅▆▇█"
_TREND = 24  # logs that a trend shows
# Of time/..., with names and colours. With servers episodes are played during updates, too: only the wait counts.
_STAGES = {
    "waited": ("rollout", "cyan"),
    "update": ("train", "magenta"),
    "score": ("score", "yellow"),
    "sync": ("sync", "green"),
}
_ROWS = {
    "success": "episode/success",
    "reward": "reward",
    "failed": "rollout/failed",
    "turns": "episode/turns",
    "sampled tokens": "episode/tokens",
    "tokens/s": "rollout/tokens_per_s",
    "staleness": "rollout/staleness",
    "engine busy": "perf/engine_busy",
    "trainer busy": "perf/trainer_busy",
    "MFU": "perf/mfu",
    "KV cache": "perf/kv_cache",
    "preemptions": "perf/preemptions",
    "entropy": "entropy",
    "gradient norm": "grad_norm",
    "loss": "loss",
    "token accuracy": "mean_token_accuracy",
}


@contextmanager
def watch(
    trainer: Any, *, folder: str | Path | None = None, title: str | None = None, show: bool = False
) -> Iterator[None]:
    """Draw the curve of a run and show it on the terminal, and leave the terminal as it was.

    Args:
        trainer: a trainer that is about to train.
        folder: where the curve goes; by default the run's `output_dir`.
        title: heading of the curve; by default the name of that folder.
        show: whether to show the display where stdout is a terminal, and nothing else; by default as `reporters` does.
    """
    trainer.add_callback(LiveCurve(folder, title))
    for others in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(others)
    with display(Console()) if show else reporters(trainer.args) as callbacks:
        for callback in callbacks:
            trainer.add_callback(callback)
        yield


@contextmanager
def display(console: Console) -> Iterator[list[TrainerCallback]]:
    """Yield the display where the console is a terminal, and leave that as it was."""
    if not console.is_terminal:
        yield []
        return
    dashboard = Dashboard(console)
    try:
        yield [dashboard]
    finally:
        dashboard.live.stop()


@contextmanager
def reporters(args: Any) -> Iterator[list[TrainerCallback]]:
    """Yield the callbacks that show a run: the display on a terminal, else a line per log on stderr.

    `args` are the settings of any trainer of transformers. With `disable_tqdm` nothing is displayed.
    """
    console = Console(stderr=True)
    if args.process_index or args.disable_tqdm or not console.is_terminal:
        begin = time.perf_counter()

        def line(text: str) -> None:
            print(f"[{time.perf_counter() - begin:7.1f}s] {text}", file=sys.stderr, flush=True)

        yield [StepLines(line)]
        return
    with display(console) as shown:
        yield shown


class StepLines(TrainerCallback):
    """One line per logged step instead of TRL's table."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        logs, step = logs or {}, f"step {state.global_step:3d}  "
        if not state.is_world_process_zero:
            return
        if "eval_success" in logs:
            low, high = logs["eval_success_low"], logs["eval_success_high"]
            failed = f", {logs['eval_failed']:.0f} failed" if logs["eval_failed"] else ""
            self._log(f"{step}dev success {logs['eval_success']:.1%} [{low:.1%}, {high:.1%}]{failed}")
        elif "reward" in logs:
            times = f"rollout {logs['time/rollout']:.1f} s  update {logs['time/update']:.1f} s"
            failed = f" ({logs['rollout/failed']:.1%} failed)" if logs["rollout/failed"] else ""
            self._log(f"{step}reward {logs['reward']:.3f}{failed}  turns {logs['episode/turns']:.2f}  {times}")
        elif "loss" in logs and "mean_token_accuracy" in logs:  # of SFT: not its last log, nor GRPO without a rollout
            self._log(f"{step}loss {float(logs['loss']):.3f}")


class Dashboard(TrainerCallback):
    """The display on a terminal, fed by a trainer's logs."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TimeElapsedColumn(), TextColumn("left"))
        # A step is slow and its length varies: the estimate looks back over the last hour.
        self._progress = Progress(
            *columns, TimeRemainingColumn(), speed_estimate_period=3600, console=console, expand=True
        )
        self._task = self._progress.add_task("train", total=None, start=False)
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._evaluated = Text()
        self.live = Live(self, console=console, refresh_per_second=2)

    def __rich__(self) -> Group:
        """Draw the progress, where the time of the last step went, each number with its trend, and the evaluation."""
        latest = {key: values[-1] for key, values in list(self._seen.items())}
        seconds = {stage: latest[f"time/{stage}"] for stage in _STAGES if f"time/{stage}" in latest}
        total, times = sum(seconds.values()), Text()
        for stage, spent in seconds.items() if total else ():
            times.append("█" * round(30 * spent / total), _STAGES[stage][1])
        for stage, spent in seconds.items():
            name, colour = _STAGES[stage]
            times.append(f"  {name} {spent:.1f} s", colour)
        terms = {f"  {name.removeprefix('reward/')}": name for name in sorted(latest) if name.startswith("reward/")}
        table = Table.grid(padding=(0, 2))
        for label, key in _ROWS.items():
            for name, of in {label: key, **(terms if label == "reward" else {})}.items():
                if of in latest:
                    shown = Text(trend(self._seen[of][-_TREND:]), "blue")
                    table.add_row(Text(name, "dim"), Text(f"{latest[of]:.4g}"), shown)
        return Group(self._progress, times, table, self._evaluated)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
        self._progress.start_task(self._task)
        self.live.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        for name, value in logs.items():
            if isinstance(value, int | float):
                self._seen[name].append(value)
        if "eval_success" in logs:
            low, high = logs["eval_success_low"], logs["eval_success_high"]
            success = f"success {logs['eval_success']:.1%} [{low:.1%}, {high:.1%}]"
            self._evaluated = Text(f"evaluation at step {state.global_step}: {success}", "bold")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.live.stop()


def trend(values: Sequence[float]) -> str:
    """Draw values as a row of blocks, from their lowest to their highest.

    Numbers that are not finite are left blank.
    """
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((v - low) * scale)] if math.isfinite(v) else " " for v in values)


class LiveCurve(TrainerCallback):
    """Writes curve.html at each log of a trainer."""

    def __init__(self, folder: str | Path | None = None, title: str | None = None) -> None:
        self._folder, self._title = folder, title

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._write(args, state, running=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write(args, state, running=False)

    def _write(self, args: Any, state: Any, *, running: bool) -> None:
        points, below = curve_of(state.log_history)
        if not state.is_world_process_zero or not (points or below):
            return
        folder = Path(self._folder or args.output_dir)
        # The policy that the run began with, if it was evaluated.
        baseline = points[0] if points and points[0].step == 0 else None
        title = self._title or folder.resolve().name
        page = render_curve(points, below=below, baseline=baseline, title=title, running=running)
        write_whole(folder / "curve.html", page)


def evaluations(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return a record per evaluated step of a log history: success with its interval, and the content of an episode."""
    logs = {log["step"]: log for log in history if "eval_success" in log}
    per_episode = {name: f"eval_episode/{name}" for name in ("turns", "tool_calls", "tokens")}
    return [
        {"step": step, "success": log["eval_success"], "low": log["eval_success_low"], "high": log["eval_success_high"]}
        | {name: log[key] for name, key in per_episode.items()}
        for step, log in sorted(logs.items())
    ]
