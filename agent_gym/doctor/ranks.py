"""Training on random weights for `agent-gym doctor`. A rank of several processes runs this module.

A script plays where layouts are compared, so that all train on the same tokens and must end with the same weights; the
engine plays where speed is measured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from agent_gym.doctor import StageSettings
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import described
from agent_gym.plan import ModelShape, find_shape

STEPS, GROUP = 3, 4
TINY = ModelShape(128, 256, 2, 2, 1, 64, 1024, tied=True, qkv_bias=True)
EPISODE, MICRO_BATCH = 2048, 8192  # tokens, in measurements on GPUs


class LengthEnv(TextEnv):
    """Pays the length of a text modulo 7, which differs between texts even under random weights."""

    reward_weights: ClassVar[dict[str, float]] = {"length": 1.0}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"train": range(256)}, **kwargs)

    def begin(self, task: Any) -> str:
        return f"Write a text, the {task}th."

    def respond(self, action: str) -> Reply:
        return Reply("", terms={"length": len(action) % 7 / 7}, terminated=True, success=len(action) > 0)


ENV_ID = "Doctor/Length-v0"
gymnasium.register(ENV_ID, entry_point=LengthEnv)


def large(setting: StageSettings) -> ModelShape:
    """Return the shape of the measured model: Qwen2.5-1.5B's, and without a GPU a tiny one."""
    return find_shape("Qwen/Qwen2.5-1.5B") if setting.gpus else TINY


def model_folder(setting: StageSettings, shape: ModelShape) -> str:
    """Write a random model of this shape, with a tokenizer, unless that was done before; return its folder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from agent_gym.speedrun.tiny import make_tiny_tokenizer

    folder = Path(setting.folder, f"model-{shape.hidden}")
    if not folder.is_dir():
        tokenizer = make_tiny_tokenizer(["Write a text, the 0123456789th."])
        config = Qwen2Config(
            hidden_size=shape.hidden, intermediate_size=shape.mlp, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocab,
            tie_word_embeddings=shape.tied, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
            # In a narrow model with the usual 0.02 all tokens would be about equally likely.
            initializer_range=0.02 if shape.hidden > 1000 else 0.1,
        )  # fmt: skip
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(part := folder.with_suffix(".part"))
        tokenizer.save_pretrained(part)
        part.rename(folder)
    return str(folder)


def make_trainer(setting: StageSettings, shape: ModelShape, *, lora: bool = False, **changes: Any) -> Any:
    """Make a GRPO trainer of a random model; without `use_vllm` a script plays. `changes` are settings."""
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from agent_gym.chat import ChatRenderer
    from agent_gym.policies import ScriptedPolicy
    from agent_gym.rollout import derive_seed
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    settings: dict[str, Any] = {
        "max_steps": STEPS, "per_device_train_batch_size": 2 * GROUP, "num_generations": GROUP, "learning_rate": 1e-3,
        "adam_epsilon": 1e-5,  # otherwise the smallest gradients, which are noise, move weights as much as the largest
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0,  # layouts clip by norms of other sums
        "max_turn_tokens": 64, "max_episode_tokens": 512, "use_vllm": False, "use_cpu": not setting.gpus, "bf16": False,
        "gradient_checkpointing": False, "model_init_kwargs": {"dtype": "float32"}, "trajectories_per_step": 0,
        "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
    }  # fmt: skip

    def write(episode: Any) -> str:
        rng = np.random.default_rng(derive_seed(episode.spec.sampling_seed or 0, 0))
        return "".join(rng.choice([*"abcdefgh "], rng.integers(1, 40)))

    settings |= changes
    model = model_folder(setting, shape)
    renderer = ChatRenderer.of(AutoTokenizer.from_pretrained(model))
    return AgentGRPOTrainer(
        model,
        ENV_ID,
        AgentGRPOConfig(str(Path(setting.folder, "run")), **settings),
        policy=None if settings["use_vllm"] else ScriptedPolicy(write, renderer.encode_action),
        peft_config=LoraConfig(r=16, lora_alpha=64, target_modules="all-linear") if lora else None,
    )


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    """Copy the weights that an engine would be given, to the CPU in float32."""
    from agent_gym.trainers.engine import named_weights

    named = named_weights(trainer.accelerator.unwrap_model(trainer.model))
    return {name: weight.detach().float().cpu().clone() for name, weight in named}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest difference of two sets of weights, infinite where one lacks a weight."""
    return max((a[name] - b[name]).abs().max().item() for name in a) if set(a) == set(b) else float("inf")


def compare(setting: StageSettings, kind: str) -> dict[str, float]:
    """Train as a rank of a layout; return the distances from one process, as shares of the largest change."""
    from safetensors.torch import load_file

    options, off = shard(kind, Path(setting.folder), on_cpu=not setting.gpus), {}
    for name in ("full", "lora"):
        one, start = (load_file(Path(setting.folder, f"{which}.safetensors")) for which in (name, "start"))
        trainer = make_trainer(setting, TINY, lora=name == "lora", **options)
        trainer.train()
        off[name] = distance(weights_of(trainer), one) / distance(one, start)
    return off


def shard(kind: str, folder: Path, *, on_cpu: bool, precision: str = "no") -> dict[str, Any]:
    """Prepare this rank for a layout, as `accelerate launch` would, and return the settings that a trainer needs."""
    if kind == "fsdp2":
        if on_cpu:
            _let_cpus_shard()
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
        os.environ |= {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}
        os.environ |= {"ACCELERATE_MIXED_PRECISION": precision}
    if not kind.startswith("zero"):
        return {}
    os.environ.pop("ACCELERATE_USE_CPU", None)  # or accelerate takes its own way of running on CPUs
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    stage: dict[str, Any] = {"stage": int(kind[-1])}
    if kind == "zero3":
        # DeepSpeed leaves small weights whole. The weights of a real model are not small.
        stage |= {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
        # As TrainingArguments do on GPUs: the model is made in shares before accelerate gets to it.
        import_module("deepspeed").init_distributed(dist_backend="gloo" if on_cpu else "nccl")
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")
    content = {**dict.fromkeys(auto, "auto"), "zero_allow_untested_optimizer": True, "zero_optimization": stage}
    config = folder / f"{kind}-rank{os.environ['RANK']}.json"
    config.write_text(json.dumps(content), encoding="utf-8")
    return {"deepspeed": str(config)}


def _let_cpus_shard() -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    # accelerate shards on GPUs only, by this name; nothing further down asks for a GPU.
    start = PartialState.__init__

    def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        start(self, cpu, **kwargs)
        if self._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    setattr(PartialState, "__init__", init)  # noqa: B010  (mypy takes no assignment to it)


def race(setting: StageSettings, kind: str) -> dict[str, Any]:
    """Train with the engine on the same GPUs; return tokens per second, shares of a step, and the peak of memory.

    Memory that others have taken before is not counted; memory that they take or free meanwhile is.
    """
    shape, device = large(setting), int(os.environ["LOCAL_RANK"])
    before = torch.cuda.mem_get_info(device)[0] if setting.gpus else 0
    changes: dict[str, Any] = {"max_steps": STEPS + 1, "learning_rate": 1e-6, "use_vllm": True}
    if setting.gpus:
        changes |= {
            "per_device_train_batch_size": 64, "num_generations": 8, "max_turn_tokens": 1024, "max_num_seqs": 64,
            "max_episode_tokens": EPISODE, "micro_batch_tokens": MICRO_BATCH, "gradient_checkpointing": True,
            "bf16": True, "vllm_enable_sleep_mode": True, "vllm_gpu_memory_utilization": 0.4,
        }  # fmt: skip
        changes |= shard(kind, Path(setting.folder), on_cpu=False, precision="bf16")
    trainer = make_trainer(setting, shape, **changes)
    policy, lowest = trainer.runner.policy, [2**60]

    def watch() -> None:
        # torch's own peak would count memory that the sleeping engine has freed.
        while setting.gpus and trainer.state.global_step < STEPS + 1:
            if getattr(policy, "_asleep", True):
                lowest[0] = min(lowest[0], torch.cuda.mem_get_info(device)[0])
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    trainer.train()
    policy.close()
    logs = [log for log in trainer.state.log_history if "time/update" in log][1:]  # the first step warms up
    seconds = {name: mean(log[f"time/{name}"] for log in logs) for name in ("rollout", "sync", "score", "update")}
    step = mean(log["step_time"] for log in logs)
    # An episode is one turn, so that the tokens of the rows are the ones that were read and sampled.
    tokens = (trainer.spent["read_tokens"] + trainer.spent["sampled_tokens"]) / trainer.state.global_step
    found: dict[str, Any] = {
        "rollout_tokens_per_s": round(mean(log["rollout/tokens_per_s"] for log in logs)),
        "update_tokens_per_s": round(tokens / seconds["update"]),
        **{f"{name}_share": round(value / step, 2) for name, value in seconds.items()},
    }
    if setting.gpus:
        found |= {"mfu": round(mean(log["perf/mfu"] for log in logs), 3)} if "perf/mfu" in logs[0] else {}
        found["peak_gib"] = round((before - lowest[0]) / 2**30, 2)
    return found


def endless(setting: StageSettings) -> None:
    """Train until the process is killed."""
    make_trainer(setting, TINY, max_steps=10**6).train()


def command(setting: StageSettings, *words: str) -> list[str]:
    """Return the command that runs this module in as many processes as there are GPUs."""
    start = ["torch.distributed.run", "--nproc_per_node", str(setting.ranks), "--master_port", free_port()]
    return [sys.executable, "-m", *start, "-m", __spec__.name, json.dumps(dataclasses.asdict(setting)), *words]


def free_port() -> str:
    """Return a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def main(words: Sequence[str]) -> None:
    """Run the named command as a rank, and write the result, or the error, into a file."""
    setting, (what, *arguments) = StageSettings(**json.loads(words[0])), words[1:]
    roles: dict[str, Callable[..., Any]] = {"compare": compare, "race": race, "endless": endless}
    result = Path(setting.folder, f"rank-{os.environ['RANK']}.json")
    try:
        found = roles[what](setting, *arguments)
    except Exception as error:
        failure = {"why": described(error), "traceback": traceback.format_exc()}
        result.with_suffix(".failed").write_text(json.dumps(failure), encoding="utf-8")
        raise
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
