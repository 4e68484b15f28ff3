"""What a person at a terminal sees of a run: how far it is, where the time goes, and whether it learns.

    with watch(trainer):
        trainer.train()

On a terminal this shows a display in place of transformers' progress bar; what is printed meanwhile goes above it. Into
a file or a pipe go transformers' own lines, as without it. `disable_tqdm` turns the display off, as it does the bar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import ProgressCallback, TrainerCallback

from agent_gym.examples.live_curve import LiveCurve

_TREND = 24  # logs that a trend shows
_BLOCKS = "▁▂▃▄▅▆▇█"
_PARTS = {"rollout": ("time/rollout", "cyan"), "train": ("time/update", "magenta"), "score": ("time/score", "yellow")}
_PARTS["sync"] = ("time/sync", "green")

_ROWS = {
    "success": "episode/success",
    "reward": "reward",
    "turns": "episode/turns",
    "sampled tokens": "episode/tokens",
    "tokens/s": "rollout/tokens_per_s",
    "staleness": "rollout/staleness",
    "entropy": "entropy",
    "gradient norm": "grad_norm",
    "loss": "loss",
}


@contextmanager
def watch(
    trainer: Any, *, folder: str | Path | None = None, title: str | None = None, show: bool | None = None
) -> Iterator[None]:
    """Draw the curve of a run and show it on the terminal, and leave the terminal as it was.

    Args:
        trainer: a trainer that is about to train.
        folder: where the curve goes; by default the run's `output_dir`.
        title: heading of the curve.
        show: whether to show the display where there is a terminal; by default unless `disable_tqdm` is set.
    """
    trainer.add_callback(LiveCurve(folder, title))
    console = Console()
    wanted = not trainer.args.disable_tqdm if show is None else show
    if not (wanted and console.is_terminal and trainer.accelerator.is_main_process):
        yield
        return
    dashboard = Dashboard(console)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(dashboard)
    try:
        yield
    finally:
        dashboard.close()


class Dashboard(TrainerCallback):
    """The display, fed by a trainer's logs.

    Args:
        console: where it is shown.
    """

    def __init__(self, console: Console) -> None:
        """Show nothing yet."""
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TimeElapsedColumn(), TextColumn("left"))
        # A step is slow and its length varies: the estimate looks back over the last hour.
        self._progress = Progress(
            *columns, TimeRemainingColumn(), speed_estimate_period=3600, console=console, expand=True
        )
        self._task = self._progress.add_task("train", total=None, start=False)
        self._live = Live(self, console=console, refresh_per_second=2)
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._evaluated = Text()

    def __rich__(self) -> Group:
        """Return what is to be seen at present."""
        return Group(self._progress, self._times(), self._table(), self._evaluated)

    def close(self) -> None:
        """Give the terminal back; what was last shown stays."""
        self._live.stop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Appear."""
        self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
        self._progress.start_task(self._task)
        self._live.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Take in new numbers."""
        logs = logs or {}
        for name, value in logs.items():
            if isinstance(value, int | float):
                self._seen[name].append(value)
        if "eval_success" in logs:
            low, high = logs["eval_success_low"], logs["eval_success_high"]
            told = f"evaluation at step {state.global_step}: success {logs['eval_success']:.1%} [{low:.1%}, {high:.1%}]"
            self._evaluated = Text(told, "bold")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Disappear."""
        self.close()

    def _times(self) -> Text:
        """Share out the time of the last step."""
        seconds = {name: self._seen[key][-1] for name, (key, _) in _PARTS.items() if self._seen.get(key)}
        total = sum(seconds.values())
        line = Text()
        for name, spent in seconds.items() if total else ():
            line.append("█" * round(30 * spent / total), _PARTS[name][1])
        for name, spent in seconds.items():
            line.append(f"  {name} {spent:.1f} s", _PARTS[name][1])
        return line

    def _table(self) -> Table:
        """List the numbers that tell whether it learns, each with its trend."""
        terms = {f"  {name.removeprefix('reward/')}": name for name in sorted(self._seen) if name.startswith("reward/")}
        rows: dict[str, str] = {}
        for label, key in _ROWS.items():
            rows |= {label: key} | (terms if label == "reward" else {})
        table = Table.grid(padding=(0, 2))
        for label, key in rows.items():
            if values := self._seen.get(key):
                table.add_row(Text(label, "dim"), Text(f"{values[-1]:.4g}"), Text(trend(values[-_TREND:]), "blue"))
        return table


def trend(values: Sequence[float]) -> str:
    """Draw values as a row of blocks, from their lowest to their highest; those that are not finite are left blank."""
    known = [value for value in values if abs(value) < float("inf")]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((v - low) * scale)] if abs(v) < float("inf") else " " for v in values)
