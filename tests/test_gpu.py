"""What needs an NVIDIA GPU: run `pytest -m gpu tests/test_gpu.py` where there is one, with nothing else on it.

vLLM measures the card's free memory when it starts, and gives up where another process has freed some meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import model_server  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from trainer_tools import make_trainer, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
ENV_ID = "AgentR1/GSM8K-v0"
CONTEXT = 512


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sleep", [False, True], ids=["awake", "sleeping"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_logprobs_after_each_sync_are_the_trainers(tmp_path: Path, dtype: str, sleep: bool, lora: bool) -> None:
    from peft import LoraConfig

    trainer = make_trainer(
        tmp_path,
        policy=None,
        peft_config=LoraConfig(r=4, target_modules="all-linear") if lora else None,
        use_vllm=True,
        use_cpu=False,
        bf16=False,
        model_init_kwargs={"dtype": dtype},
        vllm_enable_sleep_mode=sleep,
        vllm_gpu_memory_utilization=0.1,
        learning_rate=1e-2,
    )
    trainer.train()
    trainer.runner.policy.close()
    logs = [log for log in trainer.state.log_history if "sampling/logp_difference_max" in log]
    # bfloat16 keeps eight bits, and the two implementations round in different places.
    tolerance = 1e-3 if dtype == "float32" else 0.3
    assert len(logs) == 3 and max(log["sampling/logp_difference_max"] for log in logs) < tolerance


@pytest.mark.parametrize("preset", ["single", "zero3", "fsdp2"])
def test_a_preset_trains_on_one_card(tmp_path: Path, preset: str) -> None:
    if preset == "zero3":
        pytest.importorskip("deepspeed")
    model, out = make_tiny_model(tmp_path / "model", context=CONTEXT), tmp_path / "out"
    options = f"""
        --num_processes 1 --use_vllm true --vllm_gpu_memory_utilization 0.2 --max_steps 2 --learning_rate 1e-2
        --per_device_train_batch_size 4 --num_generations 2 --train_tasks 8 --max_turn_tokens 8 --logging_steps 1
        --max_episode_tokens {CONTEXT} --save_steps 2 --report_to none --accelerate_config {preset}
    """.split()
    words = ["agent_gym", "grpo", ENV_ID, "--model_name_or_path", model, "--output_dir", out, *options]
    command, env = [sys.executable, "-m", *map(str, words)], {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert before.keys() == after.keys(), "whole weights are saved, under their own names"
    assert any((before[name].float() - after[name].float()).abs().max() > 1e-4 for name in before)
    logs = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    gaps = [log["sampling/logp_difference_max"] for log in logs if "sampling/logp_difference_max" in log]
    assert len(gaps) == 2 and max(gaps) < 0.3, "gathered weights are those that sampled"


def way_of(policy: Any) -> str:
    sender = policy._sender
    return "shared" if sender._shares else "files" if sender._channel is None else "broadcast"


def synced(url: str, device: str) -> tuple[float, str]:
    """The largest difference of logprobs after two syncs, and the way that the weights took."""
    from agent_gym.policies.vllm.server import VLLMServerPolicy

    torch.cuda.set_device(device)
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    worst = 0.0
    with closing(VLLMServerPolicy([url], [EOS], context=CONTEXT)) as policy:
        for seed in range(2):
            disturb(model, seed)
            on_gpu = ((name, weight.to(device)) for name, weight in model.named_parameters())
            policy.sync(on_gpu)
            requests = make_requests(8)
            worst = max(worst, largest_difference(model, requests, run(policy, requests)))
        return worst, way_of(policy)


def test_weights_are_broadcast_between_two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU: the server needs one of its own")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # the server's; this process has counted its own already
    with model_server(Path(model_folder()), tmp_path / "log.txt", context=CONTEXT) as (url, _):
        worst, way = synced(url, "cuda:1")
    assert way == "broadcast" and worst < 0.3


def test_weights_of_a_server_on_the_trainers_card_go_through_its_memory(tmp_path: Path) -> None:
    with model_server(Path(model_folder()), tmp_path / "log.txt", context=CONTEXT) as (url, _):
        worst, way = synced(url, "cuda:0")
    assert way == "shared" and worst < 0.3


def differing(policy: Any, weights: dict[str, Any], folder: Path) -> list[str]:
    """Let the engine's process write its weights, and return the names of those that are not the trainer's, in bf16."""
    content = {"method": "save_sharded_state", "kwargs": {"path": str(folder)}}
    policy._call(policy._post("http://localhost", "/collective_rpc", content))
    found: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
        file.unlink()
    assert len(found) > 10
    joined = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    off = []
    for name, weight in found.items():
        if name.endswith("_scale"):  # of the cache: vLLM's own, in no checkpoint
            continue
        [parts] = [[name.replace(key, part) for part in parts] for key, parts in joined.items() if key in name] or [
            [name]
        ]
        mine = torch.cat([weights[part].bfloat16() for part in parts]).cpu()
        if not torch.equal(weight[: len(mine)], mine):  # what is behind fills up the embedding
            off.append(name)
    return off


@pytest.mark.parametrize("sleep", [False, True], ids=["awake", "sleeping"])
@pytest.mark.parametrize("way", ["shared", "files"])
def test_the_engines_process_has_the_trainers_weights_bit_for_bit(
    way: str, sleep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_gym.policies.vllm import buckets
    from agent_gym.policies.vllm.child import VLLMChildPolicy

    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 1 << 16)  # several, in turn
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    options: dict[str, Any] = {"dtype": "bfloat16", "gpu_memory_utilization": 0.1, "sleep": sleep}
    taken = []
    with closing(VLLMChildPolicy(model_folder(), [EOS], context=CONTEXT, **options)) as policy:
        if way == "files":
            policy._sender._transfer = "files"
        for seed in range(5):
            policy.sleep()
            disturb(model, seed)
            weights = {name: weight.to("cuda") for name, weight in model.named_parameters()}
            policy.wake()
            policy.sync(weights.items())
            assert way_of(policy) == way and not differing(policy, weights, tmp_path)
            del weights
            torch.cuda.empty_cache()
            taken.append(torch.cuda.memory_reserved())
    assert taken[-1] <= taken[1], "buckets go back when the engine is done with them"


def test_expandable_segments_do_not_stop_a_sync(tmp_path: Path) -> None:
    # They are chosen when torch is imported, and whether they can be shared depends on the machine.
    program = f"""
from test_gpu import *
from agent_gym.policies.vllm.child import VLLMChildPolicy
from pathlib import Path
model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
weights = {{name: weight.to("cuda") for name, weight in model.named_parameters()}}
options = {{"dtype": "bfloat16", "gpu_memory_utilization": 0.1}}
with closing(VLLMChildPolicy(model_folder(), [EOS], context=CONTEXT, **options)) as policy:
    for _ in range(2):
        policy.sync(weights.items())
        assert not differing(policy, weights, Path({str(tmp_path)!r}))
    print("by", way_of(policy))
"""
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    words, here = [sys.executable, "-W", "always", "-c", program], Path(__file__).parent
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=env, cwd=here)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "by shared" in done.stdout or "weights go through files, because" in done.stderr


def test_no_stage_of_the_doctor_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent_gym", "doctor", "--output_dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, (tmp_path / "report.md").read_text()


def test_the_benchmark_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "times TRL's" in done.stdout
