"""The speedrun in miniature: every stage runs, and what it leaves behind is complete."""

import dataclasses
import json
from importlib.util import find_spec

import pytest
import torch

from agent_gym.errors import ConfigError
from agent_gym.rollout import read_trajectories
from agent_gym.trainers.presets import CPU, GPU, PRESETS, Imitation, get_preset
from agent_gym.trainers.speedrun import run_speedrun

SMALL = dataclasses.replace(
    CPU,
    imitation=(
        dataclasses.replace(CPU.imitation[0], episodes=64, steps=4, batch=8),
        Imitation("mixed", 32, {"default": 0.5, "direct": 0.5}, 2, 8, {"learning_rate": 1e-3}),
    ),
    train_tasks=32,
    dev_tasks=8,
    test_tasks=12,
    grpo={**CPU.grpo, "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "eval_steps": 1},
)


def check(folder, results, engine):
    assert results["engine"] == engine
    assert [row["policy"] for row in results["results"]] == [
        name for name in (SMALL.imitation[0].name, "mixed", "GRPO policy") for _ in range(2)
    ]
    assert all(row["episodes"] == 12 and row["low"] <= row["success"] <= row["high"] for row in results["results"])
    assert json.loads((folder / "results.json").read_text()) == results
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "trajectories.html").read_text(encoding="utf-8")
    assert "<script" in page and "http://" not in page.replace("http://www.w3.org", "")
    written = sorted((folder / "grpo" / "trajectories").glob("train_*.jsonl"))
    assert len(written) == 2
    assert all("advantages" in row for record in read_trajectories(written[0]) for row in record["rows"])
    assert (folder / "grpo" / "model.safetensors").is_file() and (folder / "sft" / "config.json").is_file()


def test_every_stage_runs_on_the_transformers_engine(tmp_path, capsys):
    results = run_speedrun(SMALL, 3, tmp_path, engine="transformers")
    check(tmp_path, results, "transformers")
    printed = capsys.readouterr().out
    assert "95% Wilson intervals" in printed and "dev success" in printed
    assert "{'loss'" not in printed, "TRL's own log lines are in the way"


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_every_stage_runs_on_vllm(tmp_path):
    check(tmp_path, run_speedrun(SMALL, 3, tmp_path, engine="vllm"), "vllm")


def test_presets_and_engines_are_named_in_errors(tmp_path):
    assert get_preset("cpu") is CPU and get_preset("gpu") is GPU and set(PRESETS) == {"cpu", "gpu"}
    with pytest.raises(ConfigError, match=r"'tpu'; allowed: cpu, gpu"):
        run_speedrun("tpu", 0, tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
            run_speedrun("gpu", 0, tmp_path)
    with pytest.raises(ConfigError, match=r"'sglang'; allowed: auto, vllm, transformers"):
        run_speedrun("cpu", 0, tmp_path, engine="sglang")
