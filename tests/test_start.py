"""The start of a run tries its end: what a checkpoint holds beside weights, the disk, the folder, the schedule."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402
from trainer_tools import ENV, lora, make_trainer, model_folder, settings, train, weights  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    TrainerCallback,
)
from transformers.trainer_callback import ExportableState  # noqa: E402

from agent_gym.errors import AgentGymError, ConfigError, RolloutError  # noqa: E402
from agent_gym.policies.savable import savable  # noqa: E402
from agent_gym.trainers import rehearsal, run_lock, saving, task_dataset  # noqa: E402
from agent_gym.trainers.best_metric import check_best_metric  # noqa: E402
from agent_gym.trainers.common import with_metric  # noqa: E402
from agent_gym.trainers.hooks.run_card import RunCard  # noqa: E402
from agent_gym.trainers.resumed import best_here  # noqa: E402
from agent_gym.trainers.run_lock import held, refuse_running  # noqa: E402
from agent_gym.trainers.saving import rotate  # noqa: E402

SAVED: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)


def loads(folder: Path) -> Any:
    AutoTokenizer.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


# What cannot be saved.


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, ["temperature", "top_p"]),
        ({"top_k": 20, "min_p": 0.1, "typical_p": 0.5}, ["min_p", "top_k", "typical_p"]),
        ({"early_stopping": True, "length_penalty": 2.0}, ["early_stopping", "length_penalty"]),
        (
            {"num_return_sequences": 4, "cache_implementation": "cloud"},
            ["cache_implementation", "num_return_sequences"],
        ),
        ({"max_new_tokens": -1, "bad": {1, 2}}, ["bad", "max_new_tokens"]),
        ({"do_sample": True, "temperature": 0.9, "top_k": 20}, []),
        ({"num_beams": 4, "early_stopping": True}, []),
    ],
)
def test_a_generation_config_keeps_what_can_be_saved(tmp_path: Path, fields: dict[str, Any], lost: list[str]) -> None:
    config = GenerationConfig(eos_token_id=[3, 4], pad_token_id=0)
    vars(config).update(fields)
    kept, found = savable(config)
    kept.save_pretrained(tmp_path)
    read = GenerationConfig.from_pretrained(tmp_path)
    assert found == lost and (read.eos_token_id, read.pad_token_id) == ([3, 4], 0)
    assert {name: getattr(read, name) for name in fields if name not in lost} == {
        name: value for name, value in fields.items() if name not in lost
    }


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_model_that_transformers_refuses_to_write_is_trained_and_kept(tmp_path: Path, strategy: str) -> None:
    policy = model()
    policy.generation_config.update(temperature=0.9, top_p=0.6, do_sample=None)
    policy.config.odd, policy.config.top_p = {1, 2}, 0.5
    encoder = AutoTokenizer.from_pretrained(model_folder())
    encoder.init_kwargs["odd"] = object()
    trainer = make_trainer(tmp_path, model=policy, processing_class=encoder, **{**SAVED, "save_strategy": strategy})
    with pytest.warns(UserWarning) as caught:
        trainer.train()
    said = [str(one.message) for one in caught]
    assert any("generation config cannot be saved as it is: temperature, top_p left out" in one for one in said), said
    assert any("config.json is saved without odd, top_p" in one for one in said), said
    assert any("tokenizer is saved without odd" in one for one in said), said
    trainer.save_model(str(tmp_path / "end"))
    for folder in [tmp_path / "end", *tmp_path.glob("checkpoint-*")]:
        assert {name: float((weight - load_file(folder / "model.safetensors").get(name, weight)).abs().max())
                for name, weight in policy.state_dict().items()} == dict.fromkeys(policy.state_dict(), 0.0)  # fmt: skip
        loads(folder)
    assert not (tmp_path / "unfinished").exists() and not (tmp_path / "run.lock").exists()


def test_a_file_beside_the_weights_that_breaks_later_keeps_no_weights_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PreTrainedConfig.save_pretrained

    def breaks(config: Any, folder: str, **options: Any) -> None:
        if "checkpoint-2" in str(folder):
            Path(folder, "config.json").write_text('{"half')
            raise ValueError("the validator has changed its mind")
        real(config, folder, **options)

    monkeypatch.setattr(PreTrainedConfig, "save_pretrained", breaks)
    trainer = make_trainer(tmp_path, **SAVED)
    with pytest.warns(UserWarning, match=r"config\.json could not be written into .*changed its mind"):
        trainer.train()
    found = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json", "optimizer.pt"} <= found
    assert "config.json" not in found and not any("part" in name for name in found)


class Counting(TrainerCallback, ExportableState):
    def __init__(self, value: Any) -> None:
        self.value = value

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"value": self.value}}


def test_a_callback_whose_state_is_no_json_is_found_before_the_first_rollout(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[Counting(object())], **SAVED)
    with pytest.raises(ConfigError, match=r"the state of the callback Counting has no form in JSON .*let its"):
        trainer.train()
    assert trainer.scheduler.policy.synced == 0
    make_trainer(tmp_path, callbacks=[Counting(3)], **SAVED).train()


def test_weights_stay_where_a_checkpoint_cannot_be_resumed_from(tmp_path: Path) -> None:
    late = Counting(1)
    trainer = make_trainer(tmp_path, callbacks=[late], **SAVED)

    class Turn(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            late.value = object()

    trainer.add_callback(Turn())
    with pytest.raises(
        RolloutError, match=r"checkpoint-2 could not be written: .*The model at this step is in .*weights-2"
    ):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*")) and not (tmp_path / "unfinished").exists()
    loads(tmp_path / "weights-2")


# The disk.


def test_a_checkpoint_that_the_disk_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    policy = model()
    size = 4 * sum(weight.numel() for weight in policy.parameters())
    trainer = make_trainer(tmp_path / "a", model=policy, **SAVED, optim="adamw_torch")
    assert rehearsal.checkpoint_bytes(trainer) == 3 * size
    trainer.args.optim = "sgd"
    assert rehearsal.checkpoint_bytes(trainer) == size
    adapted = make_trainer(tmp_path / "b", peft_config=lora(), **SAVED, optim="adamw_torch")
    assert rehearsal.checkpoint_bytes(adapted) < size / 2
    monkeypatch.setattr(rehearsal.shutil, "disk_usage", lambda path: usage(0, 0, size // 2))
    with pytest.raises(ConfigError, match=r"one checkpoint takes 0 MiB or more, and 0 MiB are free in .*--output_dir"):
        trainer.train()
    monkeypatch.setattr(rehearsal.shutil, "disk_usage", lambda path: usage(0, 0, 2 * size))
    trainer.args.max_steps, trainer.args.save_steps = 5, 1
    with pytest.warns(UserWarning, match=r"5 checkpoints take .*--save_total_limit N keeps the last N"):
        trainer.train()


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ConfigError, match=f"cannot write {folder}: .*; name another folder with --output_dir"):
            make_trainer(folder, **SAVED).train()


def test_a_disk_that_is_full_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(encoder: Any, folder: str, **options: Any) -> None:
        Path(folder, "tokenizer.json").write_text("{")
        with open("/dev/full", "w") as disk:
            disk.write("a tokenizer")

    trainer = make_trainer(tmp_path, **SAVED)
    monkeypatch.setattr(type(trainer.processing_class), "save_pretrained", full)
    with pytest.raises(AgentGymError, match="cannot write .*: No space left on device; make room"):
        trainer.train()
    assert not (tmp_path / "unfinished").exists() and trainer.scheduler.policy.synced == 0


@pytest.mark.slow
def test_a_name_that_cannot_be_given_leaves_the_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def rename(path: Path, target: Any) -> Any:
        if Path(target).name == "checkpoint-2":
            raise OSError(5, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RolloutError, match=r"checkpoint-2 could not get its name: .*It is whole in .*unfinished"):
        make_trainer(tmp_path, **SAVED).train()
    [whole] = tmp_path.glob("unfinished/*/checkpoint-2")
    monkeypatch.undo()
    whole.rename(tmp_path / "checkpoint-2")
    trainer = make_trainer(tmp_path, **{**SAVED, "max_steps": 3})
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 3


def test_files_are_on_disk_before_a_checkpoint_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    real = saving.sync

    def sync(path: Path) -> None:
        synced.append((path.name, (tmp_path / "checkpoint-2").exists()))
        real(path)

    monkeypatch.setattr(saving, "sync", sync)
    make_trainer(tmp_path, **SAVED).train()
    before = {name for name, named in synced if not named}
    assert {path.name for path in (tmp_path / "checkpoint-2").iterdir()} <= before and "checkpoint-2" in before


# Old checkpoints.


def test_old_checkpoints_go_by_their_step_whatever_the_clock_says(tmp_path: Path) -> None:
    for step, age in ((9, 0), (10, -7200), (20, -7200), (100, 7200), (2, -9000)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        os.utime(folder, (time.time() - age,) * 2)
    (tmp_path / "checkpoint-of-mine").mkdir()
    rotate(tmp_path, 2, ("checkpoint-10",), tmp_path / "unfinished" / "mine")
    assert not any((tmp_path / "unfinished" / "mine").iterdir())
    shutil.rmtree(tmp_path / "unfinished")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-10", "checkpoint-100", "checkpoint-of-mine"}
    rotate(tmp_path, None, (), tmp_path / "unfinished")
    rotate(tmp_path, 1, ("checkpoint-10", "checkpoint-100"), tmp_path / "unfinished")
    assert len(list(tmp_path.iterdir())) == 3


def test_the_best_checkpoint_is_found_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    assert best_here("/elsewhere/checkpoint-4", tmp_path) == str(tmp_path / "checkpoint-4")
    assert best_here("/elsewhere/checkpoint-5", tmp_path) == "/elsewhere/checkpoint-5"
    assert best_here(None, tmp_path) is None


def test_what_another_process_has_not_finished_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = saving.aside_name().rpartition("-")[0]
    for name in (f"{host}-{os.getppid()}", f"{host}-{dead.pid}", "unfinished/elsewhere-7"):
        (tmp_path / name / "checkpoint-3").mkdir(parents=True)
    saving.clear_aside(tmp_path, saving.aside_name())
    assert {path.name for path in (tmp_path / "unfinished").iterdir()} == {
        Path(f"{host}-{os.getppid()}").name,
        "elsewhere-7",
    }


# One run, one folder.

HOLD = """
import sys, time
from agent_gym.trainers.run_lock import held
with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_training_in_a_folder_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    try:
        refused = rf"is the folder of a run that trains at present \(process {first.pid} on .* since 20.*--output_dir"
        trainer = make_trainer(tmp_path, max_steps=1)
        with pytest.raises(ConfigError, match=refused):
            trainer.train()
        with pytest.raises(ConfigError, match=refused):
            refuse_running(tmp_path)
        assert trainer.scheduler.policy.synced == 0
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    trainer.train()
    assert not (tmp_path / "run.lock").exists()


def test_processes_of_one_run_share_its_folder(tmp_path: Path) -> None:
    with held(tmp_path, announced=True):
        assert train(tmp_path, max_steps=1)  # of this run
        subprocess.run([sys.executable, "-c", HOLD.replace("600", "0"), str(tmp_path)], check=True)
        refuse_running(tmp_path)
        assert (tmp_path / "run.lock").exists()
        with mock.patch.dict(os.environ):
            del os.environ["AGENT_GYM_RUN"]  # as a process of somebody else
            with pytest.raises(ConfigError, match="trains at present"), held(tmp_path):
                pass
    meeting = "machines:2:node1:29500"
    with held(tmp_path, announced=True, meeting=meeting), held(tmp_path, meeting=meeting):
        pass
    assert "AGENT_GYM_RUN" not in os.environ
    assert not (tmp_path / "run.lock").exists()


def test_a_thread_that_trains_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    class Wait(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            inside.set()
            leave.wait(120)

    one, two = make_trainer(tmp_path, max_steps=1, callbacks=[Wait()]), make_trainer(tmp_path, max_steps=1)
    running = threading.Thread(target=one.train)
    running.start()
    try:
        assert inside.wait(120)
        with pytest.raises(ConfigError, match="trains at present"):
            two.train()
    finally:
        leave.set()
        running.join()
    assert one.state.global_step == 1


def test_a_process_that_was_forked_does_not_keep_the_folder(tmp_path: Path) -> None:
    script = HOLD.replace("time.sleep(600)", "import os\n    if os.fork():\n        os._exit(0)\n    time.sleep(20)")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.DEVNULL, check=True)
    for _ in range(50):  # the child closes its copy as soon as it runs
        try:
            with held(tmp_path):
                return
        except ConfigError:
            time.sleep(0.1)
    raise AssertionError("the folder is held by a process that was forked")


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"without locks \(No locks available\): a second training"), held(tmp_path):
        pass
    assert fcntl.LOCK_EX


# The schedule of a run that is gone on with.

SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {}, "cosine": {}, "cosine_with_restarts": {"num_cycles": 2}, "polynomial": {"lr_end": 1e-7},
    "constant": {}, "constant_with_warmup": {}, "inverse_sqrt": {}, "cosine_with_min_lr": {"min_lr": 1e-5},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-5},
    "warmup_stable_decay": {"num_decay_steps": 2, "num_stable_steps": 1},
}  # fmt: skip


def rates(folder: Path, kind: str, steps: int, resume: bool = False, **changes: Any) -> list[float]:
    warm = 0 if kind == "constant" else 1
    options = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": SCHEDULES[kind] or None, "warmup_steps": warm}
    values = {
        "max_steps": steps,
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-3,
        **options,
        **changes,
    }
    trainer = make_trainer(folder, **values)
    trainer.train(resume_from_checkpoint=resume or None)
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


@pytest.mark.parametrize("kind", ["linear", pytest.param("ppo", marks=pytest.mark.slow, id="with a critic")])
def test_a_resumed_run_has_the_rates_of_its_own_schedule(tmp_path: Path, kind: str) -> None:
    kind, changes = ("linear", {"ppo": True}) if kind == "ppo" else (kind, {})
    rates(tmp_path / "short", kind, 2, **changes)
    longer = rates(tmp_path / "short", kind, 4, resume=True, **changes)
    straight = rates(tmp_path / "straight", kind, 4, **changes)
    assert longer[2:] == pytest.approx(straight[2:], abs=0) and longer[2] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_goes_on_as_the_straight_one(tmp_path: Path, kind: str) -> None:
    rates(tmp_path / "short", kind, 2)
    assert rates(tmp_path / "short", kind, 6, resume=True)[2:] == rates(tmp_path / "straight", kind, 6)[2:]
    faster = rates(tmp_path / "short", kind, 8, resume=True, learning_rate=2e-3)[-2:]  # of the present settings, too
    assert faster == rates(tmp_path / "fast", kind, 8, learning_rate=2e-3)[-2:]


@pytest.mark.slow
def test_a_python_run_goes_on_from_what_its_settings_name(tmp_path: Path) -> None:
    make_trainer(tmp_path, **SAVED).train()
    trainer = make_trainer(tmp_path, **{**SAVED, "max_steps": 3}, resume_from_checkpoint="true")
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 3]
    with pytest.raises(ConfigError, match="there is no checkpoint at nowhere"):
        make_trainer(tmp_path, resume_from_checkpoint="nowhere").train()


# Settings.


def test_the_best_checkpoint_is_that_of_the_most_success_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    best: dict[str, Any] = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
    best |= {"eval_steps": 1, "save_steps": 1}
    args = settings(tmp_path, **best)
    assert (args.metric_for_best_model, args.greater_is_better) == ("eval_success", True)
    for name in ("reward", "eval_episode/turns", "env/letters", "held_out_success", "tool/calculator/calls"):
        assert settings(tmp_path, **best, metric_for_best_model=name).greater_is_better is True
    assert settings(tmp_path, **best, metric_for_best_model="failed").greater_is_better is False
    for name in ("loss", "eval_loss", "accuracy", "succes"):
        with pytest.raises(
            ConfigError, match=f"metric_for_best_model is '{name}', which no evaluation has; allowed: succ"
        ):
            settings(tmp_path, **best, metric_for_best_model=name)
    plateau = settings(tmp_path, **best, lr_scheduler_type="reduce_lr_on_plateau")
    assert plateau.lr_scheduler_kwargs["mode"] == "max"


@pytest.mark.parametrize("name", ["env/lettres", "reward/corect", "eval_env/lettres"])
def test_a_metric_of_the_environment_that_is_not_there_is_refused_before_the_first_rollout(
    tmp_path: Path, name: str
) -> None:
    trainer = make_trainer(
        tmp_path, **{**SAVED, "save_steps": 1}, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
        metric_for_best_model=name, eval_dataset=task_dataset(ENV, tasks=2),
    )  # fmt: skip
    played = []
    trainer.rollout = lambda *args, **kwargs: played.append(args)
    with pytest.raises(ConfigError, match=rf"metric_for_best_model is '{name}', which .* it has: .*env/letters"):
        trainer.train()
    assert not played
    trainer.args.metric_for_best_model = "env/letters"
    check_best_metric(trainer)


def test_side_files_that_cannot_be_written_end_no_run(tmp_path: Path) -> None:
    """A folder is in the place of each, so that the system refuses to write it, as a full disk does."""
    trainer = make_trainer(tmp_path, **SAVED, trajectories_per_step=1)

    class Block(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (tmp_path / f"card.json.{os.getpid()}.part").mkdir(exist_ok=True)
            if state.global_step == 1:
                shutil.rmtree(tmp_path / "trajectories")
                (tmp_path / "trajectories").write_text("")

    trainer.add_callback(Block())
    with pytest.warns(UserWarning) as caught:
        trainer.train()
    words = [str(one.message) for one in caught]
    for file in (r"card\.json", "trajectories"):
        assert any(re.search(rf"{file}.* was not written, and training continues: ", word) for word in words), words
    assert trainer.state.global_step == 2 and weights(loads(tmp_path / "checkpoint-2"))


def test_a_card_that_is_broken_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"training": ')
    card = RunCard(SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path))))
    with pytest.warns(UserWarning, match="cannot be read, and is written anew"):
        assert card._written() == {}


def test_a_number_that_no_episode_had_is_zero() -> None:
    assert with_metric("tool/a/calls", {"eval_success": 0.5}, first=True)["eval_tool/a/calls"] == 0.0
    assert with_metric("eval_env/a", {"eval_success": 0.5}, first=False)["eval_env/a"] == 0.0
    assert with_metric("env/a", {"eval_env/a": 0.5}, first=True) == {"eval_env/a": 0.5}


def test_state_of_a_run_is_whole_json(tmp_path: Path) -> None:
    make_trainer(tmp_path, **SAVED).train()
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2
    assert weights(loads(tmp_path / "checkpoint-2"))
