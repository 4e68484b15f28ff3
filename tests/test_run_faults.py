"""A run that loses a process or its disk stops with a message, keeps its last checkpoint, and can be taken up again.

The points at which things break are drawn from the seed in a test's name.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import _ranks, _wait, distance, in_ranks, make_trainer, weights  # noqa: E402
from transformers import TrainerCallback, TrainerState  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402

OPTIONS: dict[str, Any] = {
    "max_steps": 6, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3, "trajectories_per_step": 99,
    "micro_batch_tokens": 300,
}  # fmt: skip
SEEDS = [0, 1, 2]


class AtStep(TrainerCallback):
    """Calls something when an optimizer step begins, counted from 1."""

    def __init__(self, step: int, call: Any) -> None:
        self.step, self.call = step, call

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.call()


def played(folder: Path | str) -> Counter[tuple[Any, ...]]:
    """How often each episode of training stands in the trajectory files of a run."""
    records = [json.loads(line) for path in Path(folder, "trajectories").glob("*") for line in path.open()]
    return Counter((r["step"], r["spec"]["index"], r["spec"]["group"], r["spec"]["member"]) for r in records)


def go_on(folder: str, resume: bool) -> Any:
    trainer = make_trainer(folder, **OPTIONS)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == OPTIONS["max_steps"]
    return weights(trainer.model)


# Checkpoints.


def test_a_checkpoint_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, save = make_trainer(tmp_path, **OPTIONS), TrainerState.save_to_json
    seen = []

    def save_last(state: TrainerState, path: str) -> None:
        seen.append((Path(path).relative_to(tmp_path).as_posix(), get_last_checkpoint(str(tmp_path))))
        if state.global_step == 4:
            raise OSError(28, "No space left on device")
        save(state, path)

    monkeypatch.setattr(TrainerState, "save_to_json", save_last)
    with pytest.raises(RolloutError, match=r"-4 could not be written: .*No space.* MiB .* Resume from .*-2 with"):
        trainer.train()
    assert seen == [
        ("unfinished/checkpoint-2/trainer_state.json", None),
        ("unfinished/checkpoint-4/trainer_state.json", str(tmp_path / "checkpoint-2")),
    ]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"checkpoint-2", "trajectories"}


def test_old_checkpoints_go_and_the_best_one_stays(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        **{**OPTIONS, "save_steps": 1, "max_steps": 4, "save_total_limit": 2, "learning_rate": 0.0},
        eval_dataset=make_trainer(tmp_path).train_dataset.select(range(2)),
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        greater_is_better=True,
        eval_temperature=1.0,
    )
    trainer.train()
    # Nothing is learned, so the first evaluation stays the best.
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-4"}
    state = json.loads(Path(tmp_path, "checkpoint-1", "trainer_state.json").read_text())
    assert trainer.state.best_model_checkpoint == state["best_model_checkpoint"] == str(tmp_path / "checkpoint-1")


# A full disk.


def run_until_full(folder: str, step: int, room: int) -> str:
    """Let no file of process 0 grow beyond `room` bytes from a step on, and return what the run ended with here."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def fill() -> None:
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))

    full = AtStep(step, fill)
    try:
        make_trainer(folder, **OPTIONS, callbacks=[full]).train()
    except RolloutError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_that_fills_up(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    largest = 2 * 100_000  # bytes; the optimizer's file is larger
    step, room = rng.randint(3, 5), int(largest ** rng.uniform(0.3, 1.0))
    [message] = in_ranks(run_until_full, 1, str(tmp_path / "full"), step, room)
    assert "could not be written" in message and "esume" in message, (step, room, message)
    last = get_last_checkpoint(str(tmp_path / "full"))
    assert last is not None and not (tmp_path / "full" / "unfinished").exists()
    resumed, straight = go_on(str(tmp_path / "full"), True), go_on(str(tmp_path / "straight"), False)
    assert distance(resumed, straight) <= 1e-7
    assert played(tmp_path / "full") == played(tmp_path / "straight")


@pytest.mark.slow
def test_a_checkpoint_that_one_process_cannot_write_stops_all_with_its_message(tmp_path: Path) -> None:
    messages = in_ranks(run_until_full, 2, str(tmp_path), 3, 150_000)
    assert all("checkpoint-4 could not be written" in message for message in messages), messages
    assert "process 0 failed" in messages[1] and "checkpoint-2 with" in messages[1]
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-2")


TMPFS = """
import subprocess, sys
from pathlib import Path
from trainer_tools import make_trainer
from agent_gym.errors import RolloutError
from test_run_faults import OPTIONS, go_on, played
from transformers.trainer_utils import get_last_checkpoint
from trainer_tools import distance
disk, room = Path(sys.argv[1]), sys.argv[2]
resize = lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
resize(room)
try:
    make_trainer(disk / "run", **OPTIONS).train()
    raise SystemExit("the disk did not fill up")
except RolloutError as error:
    print(error)
    assert "could not be written" in str(error)
    assert "No space left" in str(error) or " 0 MiB were free" in str(error)
last = get_last_checkpoint(str(disk / "run"))
resize("100m")
resumed, straight = go_on(str(disk / "run"), last is not None), go_on(str(disk / "straight"), False)
assert distance(resumed, straight) <= 1e-7
assert played(disk / "run") == played(disk / "straight")
print("resumed from", last)
"""


def can_mount() -> bool:
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="a small disk needs the right to mount one")
def test_a_small_disk_that_is_really_full(tmp_path: Path) -> None:
    disk, script = tmp_path / "disk", tmp_path / "script.py"
    disk.mkdir()
    script.write_text(TMPFS)
    room = random.Random(0).randint(800, 1_500)  # KiB: more than one checkpoint takes, less than all three
    mount = f"mount -t tmpfs -o size=100m tmpfs {disk}"
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, str(script), str(disk)]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([*command, f"{room}k"], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]


# A process that dies.


def run_rank(folder: str, step: int) -> None:
    ready = Path(os.environ["AGENT_GYM_TEST_RANK"] + ".ready")
    make_trainer(folder, **OPTIONS, per_device_train_batch_size=4, callbacks=[AtStep(step, ready.touch)]).train()


def go_on_in_ranks(folder: str, resume: bool) -> Any:
    OPTIONS["per_device_train_batch_size"] = 4
    return go_on(folder, resume)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    step, victim, delay = rng.randint(3, 6), rng.randrange(2), rng.uniform(0.0, 0.5)
    killed, straight = str(tmp_path / "killed"), str(tmp_path / "straight")
    results = tmp_path / "results"
    results.mkdir()
    with _ranks(str(results), 2, run_rank, (killed, step)) as ranks:
        _wait(lambda: len(list(results.glob("*.ready"))) == 2, 300)
        time.sleep(delay)
        pid = ranks[victim].pid
        assert pid is not None and ranks[victim].is_alive()
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: not ranks[1 - victim].is_alive(), 120)
        assert ranks[1 - victim].exitcode == 1, "the other rank waits for the dead one, or never noticed"
    said = (results / f"{1 - victim}.pkl").read_bytes().decode(errors="replace")
    assert "another process of this run is gone" in said and "--resume_from_checkpoint" in said, said
    resumed, _ = in_ranks(go_on_in_ranks, 2, killed, True)
    one, _ = in_ranks(go_on_in_ranks, 2, straight, False)
    assert distance(resumed, one) <= 1e-7
    assert played(killed) == played(straight) and set(played(killed).values()) == {1}
