"""Checkpoints in shares: each process of FSDP2 writes its own, a run goes on from them, and an export joins them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402
from test_resume import AtStep, ends_with_full_disk  # noqa: E402
from test_sharding import Recorder  # noqa: E402
from torch.distributed.checkpoint import FileSystemWriter  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402

from agent_gym.doctor.ranks import shard  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402
from agent_gym.trainers.export_model import export_model, find_checkpoint  # noqa: E402

WAYS: dict[str, dict[str, Any]] = {"full": {}, "tied": {"tied": True}, "ppo": {"ppo": True}}


class SecondUpdate(TrainerCallback):
    """Lets the disk be fast from the end of the second update on, when the checkpoint of the first is not whole."""

    def __init__(self, folder: Path, began_anew: bool, trained: threading.Event) -> None:
        self.folder, self.began_anew, self.trained = folder, began_anew, trained

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            if self.began_anew:
                assert any(self.folder.glob("unfinished/*/checkpoint-1"))
                assert not (self.folder / "checkpoint-1").exists()
            self.trained.set()


def ranked(folder: str, model: dict[bool, str], names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Train each way for two steps, then the second step again from the first checkpoint; return both weights."""
    shard("fsdp2", Path(folder), on_cpu=True)
    found: dict[str, list[dict[str, Any]]] = {}
    write = FileSystemWriter.write_data

    def late(*given: Any) -> Any:
        assert trained.wait(60)
        return write(*given)

    FileSystemWriter.write_data = late
    for name, way in ((name, WAYS[name]) for name in names):
        options: dict[str, Any] = {"model": model[way.get("tied", False)], "ppo": way.get("ppo", False)}
        found[name] = []
        for resume in (None, f"{folder}/{name}/checkpoint-1"):
            policy = Recorder()
            saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "learning_rate": 1e-2}
            trainer = make_trainer(f"{folder}/{name}", policy=policy, **options, **saving)
            trained = threading.Event()
            trainer.add_callback(SecondUpdate(Path(trainer.args.output_dir), resume is None, trained))
            trainer.train(resume_from_checkpoint=resume)
            policy.sync(named_weights(trainer.accelerator.unwrap_model(trainer.model)))
            found[name].append(policy.weights)
        trainer.save_model(f"{folder}/{name}/end")
    return found


def full(folder: str, model: str) -> str:
    """Train while the disk of process 0 is full from the third step on; return what the run ended with."""
    shard("fsdp2", Path(folder), on_cpu=True)
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "max_steps": 6}
    options |= {"model": model, "policy": Recorder()}
    return ends_with_full_disk(lambda fill: make_trainer(folder, callbacks=[AtStep(3, fill)], **options), 100_000)


@pytest.mark.slow
def test_shares_that_cannot_be_written_stop_all_processes_and_leave_the_last_checkpoint(tmp_path: Path) -> None:
    messages = in_ranks(full, 2, str(tmp_path), model_folder())
    # The checkpoint of the second step may be in writing when the third begins; that of the first has its name.
    failed = [re.search(r"checkpoint-([23]) could not be written: process 0: .*File too large", m) for m in messages]
    [step] = {int(found[1]) for found in failed if found is not None}
    assert all(failed) and all(f"checkpoint-{step - 1} with --resume" in message for message in messages), messages
    assert {path.name for path in tmp_path.glob("*checkpoint*")} == {f"checkpoint-{k}" for k in range(1, step)}
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize("names", [["ppo"], pytest.param(["full", "tied"], marks=pytest.mark.slow)], ids="-".join)
def test_a_run_goes_on_from_shares_and_an_export_joins_them(tmp_path: Path, names: list[str]) -> None:
    models = {tied: model_folder(tied) for tied in (False, True)}
    found, _ = in_ranks(ranked, 2, str(tmp_path), models, names)
    for name, (straight, resumed) in found.items():
        assert distance(straight, resumed) < 1e-6, name
        folder = tmp_path / name / "checkpoint-2"
        assert not list(folder.glob("*.safetensors")) and len(list(folder.glob("pytorch_model_fsdp_0/*.distcp"))) == 2
        out = export_model(find_checkpoint(folder), tmp_path / f"{name}-out", critic=name == "ppo")
        AutoTokenizer.from_pretrained(out)
        for made in (out, tmp_path / name / "end"):
            model = AutoModelForCausalLM.from_pretrained(made, dtype="float32")
            stored = {key: weight.detach().numpy() for key, weight in named_weights(model)}
            assert distance(stored, straight) < 1e-6, (name, made)
        if name == "ppo":
            critics = [load_file(place / "critic/model.safetensors") for place in (out, tmp_path / name / "end")]
            assert distance(*({key: value.numpy() for key, value in critic.items()} for critic in critics)) == 0.0
