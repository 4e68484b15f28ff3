"""A run that is killed, or loses a process or its disk, and is resumed ends with the weights of a run left alone.

Processes are really killed (SIGKILL), after a checkpoint and in the middle of a later step. Data order, sampling,
optimizer state and row order must all continue; most tests therefore stop in the second epoch, where a loader that
starts its order anew would be found out. Where things break is drawn from the seed in a test's name.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from peft import LoraConfig  # noqa: E402
from trainer_tools import (  # noqa: E402
    ENV,
    _ranks,
    _wait,
    distance,
    in_ranks,
    kill_ranks,
    make_trainer,
    ready_to_die,
    weights,
)
from transformers import TrainerCallback, TrainerState  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.saving import aside_name  # noqa: E402

# Six tasks and two per step: an epoch has three steps, the checkpoint is made after the first step of the second.
EPOCHS: dict[str, Any] = {
    "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine", "micro_batch_size": 3, "env_kwargs": {"fail": 11},
}  # fmt: skip
FAULTS: dict[str, Any] = {
    "max_steps": 6, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3, "trajectories_per_step": 99,
    "micro_batch_tokens": 300,
}  # fmt: skip
PAIR = {**EPOCHS, "per_device_train_batch_size": 4, "save_steps": 2, "trajectories_per_step": 99}
SEEDS = [0, 1, 2]


class AtStep(TrainerCallback):
    """Calls something when an optimizer step begins, counted from 1."""

    def __init__(self, step: int, call: Any) -> None:
        self.step, self.call = step, call

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.call()


def build(folder: str, options: dict[str, Any], callbacks: Any = ()) -> Any:
    options = {**options, "callbacks": list(callbacks)}
    if kwargs := options.pop("env_kwargs", None):
        options["train_dataset"] = task_dataset(ENV, kwargs, tasks=6)
    return make_trainer(folder, **options)


def go_on(folder: str, options: dict[str, Any], resume: bool) -> Any:
    """Train to the end and return the weights."""
    trainer = build(folder, options)
    trainer.train(resume_from_checkpoint=resume or None)
    assert trainer.state.global_step == options["max_steps"]
    return weights(trainer.model)


def played(folder: Path | str) -> Counter[tuple[Any, ...]]:
    """How often each episode of training stands in the trajectory files of a run."""
    records = [json.loads(line) for path in Path(folder, "trajectories").glob("*") for line in path.open()]
    return Counter((r["step"], r["spec"]["index"], r["spec"]["group"], r["spec"]["member"]) for r in records)


def check_resumed(broken: Path, straight: Path, options: dict[str, Any], processes: int = 1) -> None:
    """Resume one run, train another from the start, and compare weights and episodes."""

    def ended(folder: Path, resume: bool) -> Any:
        arguments = str(folder), options, resume
        return go_on(*arguments) if processes == 1 else in_ranks(go_on, processes, *arguments)[0]

    assert distance(ended(broken, True), ended(straight, False)) <= 1e-7
    assert played(broken) == played(straight) and set(played(broken).values()) <= {1}


# A run that is killed.


def die(folder: str, options: dict[str, Any]) -> None:
    build(folder, options, [AtStep(6, ready_to_die)]).train()


def check_killed(folder: Path, options: dict[str, Any]) -> None:
    kill_ranks(die, 1, str(folder / "killed"), options)
    saved = {path.name for path in (folder / "killed").glob("checkpoint-*")}
    assert saved == {f"checkpoint-{options['save_steps']}"}
    check_resumed(folder / "killed", folder / "straight", options)


@pytest.mark.slow
def test_killed_in_the_second_epoch(tmp_path: Path) -> None:
    check_killed(tmp_path, EPOCHS)
    # The comparison can fail: another order of the same tasks is a difference that the tolerance does not forgive.
    short = {**EPOCHS, "max_steps": 2, "save_strategy": "no"}
    one, other = (go_on(str(tmp_path / f"{seed}"), {**short, "seed": seed}, False) for seed in (42, 1))
    assert distance(one, other) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"save_steps": 3},
        {"policy": None},
        {"num_iterations": 2},
        {"steps_per_generation": 2, "per_device_train_batch_size": 4},
        {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4},
        {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")},
        {"beta": 0.1},
        {"ppo": True, "num_generations": 4, "num_iterations": 2, "critic_warmup_steps": 5},
    ],
    ids=["end of an epoch", "transformers", "two passes", "off policy", "uneven epochs", "lora", "kl", "critic"],
)
def test_killed_under_other_settings(tmp_path: Path, options: dict[str, Any]) -> None:
    check_killed(tmp_path, {**EPOCHS, **options})


def run_rank(folder: str, step: int) -> None:
    ready = Path(os.environ["AGENT_GYM_TEST_RANK"] + ".ready")
    build(folder, PAIR, [AtStep(step, ready.touch)]).train()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_one_rank_of_two_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    step, victim, delay = rng.randint(3, 6), rng.randrange(2), rng.uniform(0.0, 0.5)
    results = tmp_path / "results"
    results.mkdir()
    with _ranks(str(results), 2, run_rank, (str(tmp_path / "killed"), step)) as ranks:
        _wait(lambda: len(list(results.glob("*.ready"))) == 2, 300)
        time.sleep(delay)
        pid = ranks[victim].pid
        assert pid is not None and ranks[victim].is_alive()
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: not ranks[1 - victim].is_alive(), 120)
        assert ranks[1 - victim].exitcode == 1, "the other rank waits for the dead one, or never noticed"
    message = (results / f"{1 - victim}.failed").read_text()
    assert "another process of this run is gone" in message and "--resume_from_checkpoint" in message, message
    check_resumed(tmp_path / "killed", tmp_path / "straight", PAIR, 2)


# Checkpoints.


def test_a_checkpoint_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, save = make_trainer(tmp_path, **FAULTS), TrainerState.save_to_json
    seen = []

    def save_last(state: TrainerState, path: str) -> None:
        if state.global_step:  # and not the state that is tried at the start
            seen.append((Path(path).relative_to(tmp_path).as_posix(), get_last_checkpoint(str(tmp_path))))
        if state.global_step == 4:
            raise OSError(28, "No space left on device")
        save(state, path)

    monkeypatch.setattr(TrainerState, "save_to_json", save_last)
    with pytest.raises(RolloutError, match=r"-4 could not be written: .*No space.* MiB .* Resume from .*-2 with"):
        trainer.train()
    assert seen == [
        (f"{aside_name()}/checkpoint-2/trainer_state.json", None),
        (f"{aside_name()}/checkpoint-4/trainer_state.json", str(tmp_path / "checkpoint-2")),
    ]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"checkpoint-2", "trajectories"}


def test_a_model_that_is_written_again_has_nothing_of_a_killed_write(tmp_path: Path) -> None:
    host = aside_name().rpartition("-")[0]
    gone, other = (tmp_path / "model" / name / "model" for name in (f"{host}-4194305", "unfinished/another-host-1"))
    for left in (gone, other):
        left.mkdir(parents=True)
        (left / "config.json").write_text("{")
    make_trainer(tmp_path, max_steps=1).save_model(str(tmp_path / "model"))
    assert not gone.exists()
    assert other.exists()  # its process may live
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_old_checkpoints_go_and_the_best_one_stays(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        **{**FAULTS, "save_steps": 1, "max_steps": 4, "save_total_limit": 2, "learning_rate": 0.0},
        eval_dataset=task_dataset(ENV, tasks=2),
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


def ends_with_full_disk(make: Callable[[Callable[[], None]], Any], room: int) -> str:
    """Train what is made with a function by which no file of process 0 grows beyond `room` bytes; return the error."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def fill() -> None:
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))

    try:
        make(fill).train()
    except RolloutError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return ""


def run_until_full(folder: str, step: int, room: int) -> str:
    return ends_with_full_disk(lambda fill: build(folder, FAULTS, [AtStep(step, fill)]), room)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_that_fills_up(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    largest = 2 * 100_000  # bytes; the optimizer's file is larger
    step, room = rng.randint(3, 5), int(largest ** rng.uniform(0.3, 1.0))
    [message] = in_ranks(run_until_full, 1, str(tmp_path / "full"), step, room)
    assert "could not be written" in message and "esume" in message, (step, room, message)
    assert get_last_checkpoint(str(tmp_path / "full")) and not (tmp_path / "full" / "unfinished").exists()
    check_resumed(tmp_path / "full", tmp_path / "straight", FAULTS)


@pytest.mark.slow
def test_a_checkpoint_that_one_process_cannot_write_stops_all_with_its_message(tmp_path: Path) -> None:
    messages = in_ranks(run_until_full, 2, str(tmp_path), 3, 150_000)
    assert all("checkpoint-4 could not be written" in message for message in messages), messages
    assert "process 0 failed" in messages[1] and "checkpoint-2 with" in messages[1]
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-2")


# A file beside the weights that cannot be written.


class Fails:
    """Writes a file of a checkpoint until it is its turn to fail."""

    def __init__(self, write: Any, error: Exception, at: int) -> None:
        self.write, self.error, self.left = write, error, at

    def __call__(self, folder: Path) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.write(folder)


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EROFS"])
def test_a_checkpoint_whose_configuration_the_disk_refuses_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
    fails = Fails(trainer._files()["config.json"], OSError(getattr(errno, code), code), 3)  # the rehearsal is the first
    files = trainer._files
    monkeypatch.setattr(trainer, "_files", lambda: {**files(), "config.json": fails})
    with pytest.raises(RolloutError, match=code):
        trainer.train()
    (left,) = tmp_path.glob("checkpoint-*")
    assert left.name == "checkpoint-1" and (left / "config.json").is_file()


def test_a_checkpoint_without_a_file_that_cannot_be_saved_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    fails = Fails(trainer._files()["generation_config.json"], ValueError("no JSON for it"), 3)
    files = trainer._files
    monkeypatch.setattr(trainer, "_files", lambda: {**files(), "generation_config.json": fails})
    with pytest.warns(UserWarning, match=r"generation_config.json could not be written .*no JSON for it"):
        trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
