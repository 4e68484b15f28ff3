"""What a training run uploads with `--push_to_hub`, to a server that speaks the hub's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import huggingface_hub
import transformers.trainer
from huggingface_hub import constants
from openai_tools import serving
from test_export_model import Hub

from agent_gym.cli.main import main
from agent_gym.trainers import hub as uploads
from agent_gym.trainers.hub import model_files

PRIVATE = ("run.json", "run.lock", "log.jsonl", "trajectories", "card.json", "notes.txt", "gateway.log")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    hub: Any = Hub()
    with serving(hub) as url:
        api = huggingface_hub.HfApi(endpoint=url.removesuffix("/v1"), token="hf_test")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(uploads, "HfApi", lambda: api)
        monkeypatch.setattr(transformers.trainer, "hf_api", lambda: api)
        huggingface_hub.close_session()
        yield hub
        huggingface_hub.close_session()


def test_a_run_uploads_its_model_and_keeps_the_rest_of_its_folder(hub: Any, tiny_model: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in ("notes.txt", "gateway.log", "run.jsonl.open"):
        (out / name).write_text("mine")
    words = ["sft", "AgentR1/Bisect-v0", "--model_name_or_path", tiny_model, "--output_dir", str(out)]
    words += "--per_device_train_batch_size 2 --max_steps 2 --train_tasks 8 --use_cpu true --save_steps 1".split()
    words += "--push_to_hub true --hub_model_id me/m --hub_strategy all_checkpoints --hub_always_push true".split()
    assert main([*words, "--save_total_limit", "1", "--hub_token", "hf_CANARY"]) == 0
    top = {name for name in hub.files if "/" not in name}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= top
    assert top == set(model_files(out)), top
    assert not [name for name in hub.files if any(part in name for part in PRIVATE)]
    assert not [name for name, content in hub.files.items() if b"hf_CANARY" in content]
    assert "checkpoint-2/optimizer.pt" in hub.files
    assert hub.files["model.safetensors"] == (out / "model.safetensors").read_bytes()
    assert not list(out.glob("unfinished*"))


def test_only_files_of_a_model_are_named(tmp_path: Path) -> None:
    names = ["config.json", "model-00001-of-00002.safetensors", "modeling_own.py", "critic/model.safetensors"]
    private = ["train.py", ".env", "optimizer.pt", "trajectories/1.jsonl", "tokenizer/notes", "page/index.html"]
    private += ["run.json", "run.lock", "checkpoint-3/config.json", "model.safetensors.1.part", "events.out.tfevents.1"]
    for name in [*names, *private]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert model_files(tmp_path) == sorted(names)
    assert model_files(tmp_path, resumed=True) == sorted([*names, "optimizer.pt"])
