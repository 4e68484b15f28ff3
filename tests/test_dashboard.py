"""What is seen of a run: the display on a terminal, the curve in its folder, and the terminal given back."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")
from rich.console import Console  # noqa: E402
from trainer_tools import ENV, logged, make_trainer  # noqa: E402
from transformers import PrinterCallback, ProgressCallback, TrainerCallback  # noqa: E402

from agent_gym.speedrun import dashboard  # noqa: E402
from agent_gym.speedrun.dashboard import Dashboard, LiveCurve, curve_of, trend, watch  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

LOG = {
    "reward": 0.5, "reward/answer": 0.4, "reward/format": 0.1, "episode/success": 0.25, "time/waited": 3.0,
    "time/update": 1.0, "time/sync": 0.5, "rollout/tokens_per_s": 1234.0, "rollout/staleness": 1.0,
    "rollout/failed": 0.125, "step": 3,
}  # fmt: skip
EVALUATION = {"eval_success": 0.5, "eval_success_low": 0.3, "eval_success_high": 0.7, "step": 3}


def screen() -> Any:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=40, color_system=None)


def test_the_display_shows_how_far_where_the_time_goes_and_whether_it_learns() -> None:
    console = screen()
    state = SimpleNamespace(max_steps=10, global_step=0, is_world_process_zero=True)
    shown = Dashboard(console)
    shown.on_train_begin(None, state, None)
    for state.global_step in (1, 2, 3):
        shown.on_step_end(None, state, None)
        shown.on_log(None, state, None, logs=LOG | {"reward": 0.1 * state.global_step, "text": "no number"})
    shown.on_log(None, state, None, logs=EVALUATION)
    shown.on_train_end(None, state, None)
    console.file.truncate(0)
    console.print(shown)
    text = console.file.getvalue()
    assert "3/10" in text and "evaluation at step 3: success 50.0% [30.0%, 70.0%]" in text
    assert re.search(r"█{20}█{7}█{3}  rollout 3\.0 s  train 1\.0 s  sync 0\.5 s", text)
    numbers = dict(re.findall(r"^ *([a-z/ ]+?) {2,}(\S+)", text, re.MULTILINE))
    expected = {"success": "0.25", "reward": "0.3", "answer": "0.4", "failed": "0.125", "tokens/s": "1234"}
    assert {**expected, "format": "0.1", "staleness": "1"}.items() <= numbers.items()
    assert "▁▄█" in text or "▁▅█" in text
    assert trend([float("nan"), 1.0, 2.0, 8.0, float("inf")]) == " ▁▂█ " and trend([]) == ""


def test_a_terminal_shows_the_display_and_gets_itself_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupt(TrainerCallback):
        def on_step_end(self, *given: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    console = screen()
    monkeypatch.setattr(dashboard, "Console", lambda stderr: console)
    trainer = make_trainer(tmp_path, max_steps=2, disable_tqdm=False, callbacks=[Interrupt()])
    with pytest.raises(KeyboardInterrupt), watch(trainer):
        assert not any(isinstance(callback, ProgressCallback) for callback in trainer.callback_handler.callbacks)
        trainer.train()
    assert "0/2" in console.file.getvalue()
    assert console.file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is shown again


def test_a_pipe_gets_a_line_for_each_log_and_the_folder_a_curve(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(
        tmp_path, max_steps=2, disable_tqdm=False, eval_strategy="steps", eval_steps=2, eval_on_start=True,
        eval_dataset=task_dataset(ENV, split="test", tasks=2),
    )  # fmt: skip
    trainer.add_callback(PrinterCallback)  # which the helper takes away
    with watch(trainer):
        trainer.train()
    assert not any(isinstance(callback, Dashboard) for callback in trainer.callback_handler.callbacks)
    out, err = capfd.readouterr()
    assert "'reward': " not in out and "\x1b[?25l" not in err
    lines = [line for line in err.splitlines() if re.match(r"\[ +[0-9.]+s\] step ", line)]
    assert re.search(r"step   0  dev success [0-9.]+% \[", lines[0]) and len(lines) == 4
    assert re.search(r"step   1  reward -?[0-9.]+  turns [0-9.]+  rollout [0-9.]+ s  update [0-9.]+ s$", lines[1])
    page = (tmp_path / "curve.html").read_text()
    assert "The run is over." in page and 'http-equiv="refresh"' not in page
    assert page.count("<svg") >= 4 and "success on held-out tasks" in page and "step 2: " in page
    assert not list(tmp_path.glob("*.unfinished"))
    points, below = curve_of(trainer.state.log_history)
    assert [point.step for point in points] == [0, 2]
    assert [step for step, _ in below["training reward"]] == [1, 2] and "tool calls" not in below


def test_failed_episodes_are_named_beside_the_reward_which_is_a_mean_over_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluation = {"eval_dataset": task_dataset(ENV, {"fail": 2}, split="test", tasks=8), "eval_strategy": "steps"}
    trainer = make_trainer(
        tmp_path, max_steps=1, disable_tqdm=False, env_kwargs={"fail": 5}, eval_steps=1, **evaluation
    )
    with watch(trainer):
        trainer.train()
    (share,) = logged(trainer, "rollout/failed")
    (lost,) = logged(trainer, "eval_failed")
    assert 0 < share < 1 and 0 < lost < 8
    err = capfd.readouterr().err
    assert re.search(rf"step   1  reward -?[0-9.]+ \({share:.1%} failed\)  turns", err)
    assert re.search(rf"step   1  dev success [0-9.]+% \[.*\], {lost:.0f} failed$", err, re.MULTILINE)
    count = round(share * 8)
    assert (
        f"warning: {count} of 8 episodes failed and are not in the reward\n  {count} x EnvFailure, the first: " in err
    )


def test_the_page_is_written_at_each_log(tmp_path: Path) -> None:
    curve = LiveCurve(tmp_path, "<b>run</b>")
    args = SimpleNamespace(output_dir=tmp_path)
    state = SimpleNamespace(is_world_process_zero=True, global_step=1, log_history=[LOG | {"step": 1}])
    curve.on_log(args, state, None, logs=LOG)
    assert "nan" not in (tmp_path / "curve.html").read_text(), "one point has no range"
    state.log_history.append(LOG | {"step": 2})
    curve.on_log(args, state, None, logs=LOG)
    page = (tmp_path / "curve.html").read_text()
    assert 'http-equiv="refresh"' in page and "at step 2" in page and "&lt;b&gt;run" in page and "<b>" not in page
    state.is_world_process_zero = False
    LiveCurve(tmp_path / "other").on_log(args, state, None, logs=LOG)
    assert not (tmp_path / "other").exists()
