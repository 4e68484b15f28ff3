"""Weights in shares over processes (FSDP2, ZeRO): what the engine is given is what one process would have.

Compared are the weights themselves. Logprobs would not do: an adapter that is left out changes them by less than the
rounding of an engine, as long as learning rates are small. DeepSpeed is an extra (pip install 'agent-gym[deepspeed]'),
and compiles a small extension on first use.
"""

from __future__ import annotations

import itertools
import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from trainer_tools import RandomPolicy, distance, in_ranks, make_trainer, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402

ZERO = {
    "zero_allow_untested_optimizer": True,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
}
RUN: dict[str, Any] = {"max_steps": 2, "learning_rate": 2e-4, "adam_epsilon": 1e-5, "optim": "adamw_torch"}
RUN["max_grad_norm"] = 0.0  # DeepSpeed clips policy and critic as one, the plain trainer each by itself
LORA = {"r": 4, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]}


class Recorder(RandomPolicy):
    """Keeps the weights that it was given last."""

    weights: dict[str, Any]

    def sync(self, named: Any) -> None:
        self.weights = {name: weight.detach().float().numpy().copy() for name, weight in named}


def shard(kind: str, folder: Path, precision: str = "no") -> dict[str, Any]:
    """Prepare this rank for a way of sharding, as `accelerate launch` would, and return the settings it needs."""
    if kind == "ddp":
        return {}
    if kind == "fsdp2":
        from accelerate.state import PartialState
        from accelerate.utils import DistributedType

        # accelerate shards on GPUs only, by this name; nothing further down asks for a GPU.
        start = PartialState.__init__

        def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
            start(self, cpu, **kwargs)
            if self._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
                self.distributed_type = DistributedType.MULTI_GPU

        PartialState.__init__ = init
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
        os.environ |= {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
        os.environ |= {"ACCELERATE_MIXED_PRECISION": precision}
        return {}
    os.environ.pop("ACCELERATE_USE_CPU", None)  # or accelerate takes its own way of running on CPUs
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]
    stage: dict[str, Any] = {"stage": int(kind[-1])}
    if kind == "zero3":
        # DeepSpeed leaves small weights whole. Those of a real model are not small.
        stage["stage3_param_persistence_threshold"] = 0
        # As TrainingArguments do on GPUs: the model is made in shares before accelerate gets to it.
        import_module("deepspeed").init_distributed(dist_backend="gloo")
    config = folder / f"{kind}{os.environ['RANK']}.json"
    config.write_text(json.dumps({**ZERO, "zero_optimization": stage}))
    return {"deepspeed": str(config)}


def run_rank(folder: str, kind: str, model: str, lora: bool) -> Any:
    """Train in shares; return what the engine is given afterwards."""
    kind, _, critic = kind.partition(" ")
    return given(folder, model, lora, bool(critic), kind in ("fsdp2", "zero3"), batch=8, **shard(kind, Path(folder)))


def given(
    folder: str, model: str, lora: bool, critic: bool, sharded: bool, batch: int, **options: Any
) -> dict[str, Any]:
    from peft import LoraConfig

    policy = Recorder()
    options |= {"peft_config": LoraConfig(**LORA)} if lora else {}
    options |= {"ppo": True, "critic_learning_rate": 2e-4, "lam": 0.9} if critic else {}
    options |= {"model": model, "processing_class": AutoTokenizer.from_pretrained(model)}
    trainer = make_trainer(folder, policy=policy, per_device_train_batch_size=batch, **RUN, **options)
    trainer.train()
    assert is_sharded(trainer.model) == sharded
    policy.sync(named_weights(trainer.accelerator.unwrap_model(trainer.model)))
    return policy.weights


def is_sharded(model: Any) -> bool:
    return all(hasattr(weight, "ds_id") or hasattr(weight, "full_tensor") for weight in model.parameters())


needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")


def way(kind: str, lora: bool, tied: bool) -> Any:
    marks = [needs_deepspeed] if kind.startswith("zero") else []
    marks += [] if (kind, lora, tied) == ("fsdp2", True, False) else [pytest.mark.slow]
    return pytest.param(kind, lora, tied, marks=marks)


WAYS = itertools.product(("ddp", "fsdp2", "zero2", "zero3"), (True, False), (True, False))


@pytest.mark.parametrize(("kind", "lora", "tied"), [*(way(*one) for one in WAYS), way("zero2 critic", False, True)])
def test_the_engine_is_given_what_one_process_would_give_it(tmp_path: Path, kind: str, lora: bool, tied: bool) -> None:
    # Made here: with ZeRO-3, every model that a rank makes is in shares.
    folder = model_folder(tied=tied)
    start = dict(named_weights(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)))
    one = given(str(tmp_path / "one"), folder, lora, "critic" in kind, False, batch=16)
    assert distance(one, {name: weight.numpy() for name, weight in start.items()}) > 1e-4
    for other in in_ranks(run_rank, 2, str(tmp_path), kind, folder, lora):
        assert distance(one, other) <= 1e-6


def precise(folder: str, model: str) -> Any:
    """Score rows and run a micro-step under bf16; return types and what is held between passes."""
    shard("fsdp2", Path(folder), "bf16")
    with pytest.raises(ConfigError, match="the model is in shares .*--use_vllm true"):
        make_trainer(folder, model=model, policy=None, use_vllm=False)
    trainer = make_trainer(
        folder, model=model, max_steps=1, per_device_train_batch_size=8, micro_batch_size=2, ppo=True,
        gradient_accumulation_steps=2, critic_learning_rate=1e-4, bf16=True,
    )  # fmt: skip
    seen: list[Any] = []
    loss = trainer.compute_loss

    def compute(model: Any, batch: Any, **kwargs: Any) -> Any:
        # Between passes: a whole gradient would be held by the layers, a share is on the parameter.
        seen.append([held(module) for module in model.modules() if hasattr(module, "_get_fsdp_state")])
        scores = trainer._forward(model, batch)
        seen.append((scores.logps.dtype, scores.entropy.dtype, scores.values.dtype))
        return loss(model, batch, **kwargs)

    trainer.compute_loss = compute
    trainer.train()
    policy = trainer.accelerator.state.fsdp_plugin.mixed_precision_policy
    return seen, (policy.param_dtype, policy.reduce_dtype)


def held(module: Any) -> int:
    group = module._get_fsdp_state()._fsdp_param_group
    if group is None:
        return 0
    whole = [p.unsharded_accumulated_grad for p in group.fsdp_params]
    whole += [p._unsharded_param.grad for p in group.fsdp_params if hasattr(p, "_unsharded_param")]
    return sum(gradient.numel() for gradient in whole if gradient is not None)


def test_fsdp2_needs_an_engine_rounds_no_logprob_and_holds_no_whole_gradient(tmp_path: Path) -> None:
    for seen, dtypes in in_ranks(precise, 2, str(tmp_path), model_folder()):
        assert dtypes == (torch.bfloat16, torch.float32)
        assert len(seen) >= 16
        for gradients, types in zip(seen[::2], seen[1::2], strict=True):
            assert gradients and set(gradients) == {0}
            assert set(types) == {torch.float32}
