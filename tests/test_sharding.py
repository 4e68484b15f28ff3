"""Layouts over two processes (DDP, FSDP2, ZeRO): what they train, save and resume is what one process would have.

Compared are the weights themselves. Logprobs would not do: an adapter that is left out changes them by less than the
rounding of an engine, as long as learning rates are small. DeepSpeed is an extra (agentic-gym[deepspeed]), and
compiles a small extension on first use.
"""

from __future__ import annotations

import functools
import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from trainer_tools import RandomPolicy, distance, in_ranks, make_trainer, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.doctor.ranks import shard  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402

RUN: dict[str, Any] = {"learning_rate": 2e-4, "adam_epsilon": 1e-5, "optim": "adamw_torch"}
RUN["max_grad_norm"] = 0.0  # DeepSpeed clips policy and critic as one, the plain trainer each by itself
LORA = {"r": 4, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]}


class Recorder(RandomPolicy):
    """Keeps the weights that it was given last."""

    weights: dict[str, Any]

    def sync(self, named: Any) -> None:
        self.weights = {name: weight.detach().float().numpy().copy() for name, weight in named}


class Way(NamedTuple):
    """What is trained and how it ends; in each layout the same."""

    lora: bool
    tied: bool
    critic: bool
    resumed: bool  # or saved as a model

    @property
    def name(self) -> str:
        return "-".join(
            [
                "lora" if self.lora else "full", "tied" if self.tied else "untied", "ppo" if self.critic else "grpo",
                "resume" if self.resumed else "save",
            ]
        )  # fmt: skip


def ways(every: bool) -> list[Way]:
    """Return all 16, or 5 of them in which each pair of choices occurs (a covering array of strength 2)."""
    choices = itertools.product((False, True), repeat=4)
    return [Way(*way) for way in choices if every or sum(way) in (0, 3)]


def given(folder: str, model: str, way: Way, *, sharded: bool, batch: int, **options: Any) -> dict[str, Any]:
    """Train two steps, in one go or with a new trainer for the second, and return what the engine is given then."""
    from peft import LoraConfig

    options |= {"peft_config": LoraConfig(**LORA)} if way.lora else {}
    options |= {"ppo": True, "critic_learning_rate": 2e-4, "lam": 0.9} if way.critic else {}
    options |= {"model": model, "processing_class": AutoTokenizer.from_pretrained(model)}
    options |= {"per_device_train_batch_size": batch, **RUN}
    if way.resumed:
        make_trainer(folder, max_steps=1, save_strategy="steps", save_steps=1, **options).train()
    policy = Recorder()
    trainer = make_trainer(folder, policy=policy, max_steps=2, **options)
    trainer.train(resume_from_checkpoint=True if way.resumed else None)
    assert is_sharded(trainer.model) == sharded
    policy.sync(named_weights(trainer.accelerator.unwrap_model(trainer.model)))
    if not way.resumed:
        trainer.save_model(f"{folder}/saved")
    return policy.weights


def is_sharded(model: Any) -> bool:
    return all(hasattr(weight, "ds_id") or hasattr(weight, "full_tensor") for weight in model.parameters())


def stored(folder: str, model: str, way: Way) -> dict[str, Any]:
    """Read the weights of a folder as its next user does."""
    saved: Any = AutoModelForCausalLM.from_pretrained(model if way.lora else folder, dtype=torch.float32)
    if way.lora:
        from peft import PeftModel

        saved = PeftModel.from_pretrained(saved, folder)
    return {name: weight.detach().numpy() for name, weight in named_weights(saved)}


def run_rank(folder: str, kind: str, all_ways: list[Way], models: dict[bool, str]) -> dict[str, Any]:
    """Go all ways in one process, since to start it takes longer than to train."""
    options = shard(kind, Path(folder), on_cpu=True)
    return {
        way.name: given(
            f"{folder}/{way.name}", models[way.tied], way, sharded=kind in ("fsdp2", "zero3"), batch=8, **options
        )
        for way in all_ways
    }


@functools.cache
def alone(folder: Path, way: Way, model: str) -> dict[str, Any]:
    """Train in one process, in one go."""
    start = dict(named_weights(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)))
    one = given(f"{folder}/{way.name}", model, way._replace(resumed=False), sharded=False, batch=16)
    assert distance(one, {name: weight.numpy() for name, weight in start.items()}) > 1e-4
    return one


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pairs", "all"])
@pytest.mark.parametrize(
    "kind", ["ddp", "fsdp2", *(pytest.param(kind, marks=needs_deepspeed) for kind in ("zero2", "zero3"))]
)
def test_a_layout_trains_saves_and_resumes_what_one_process_does(
    tmp_path: Path, apart: Path, kind: str, every: bool
) -> None:
    # Made here: with ZeRO-3, every model that a rank makes is in shares.
    models = {tied: model_folder(tied=tied) for tied in (False, True)}
    wrong = []
    for rank, found in enumerate(in_ranks(run_rank, 2, str(tmp_path), kind, ways(every), models, timeout_s=1200)):
        for way in ways(every):
            one = alone(apart, way, models[way.tied])
            off = {"trained": distance(one, found[way.name])}
            if not way.resumed:
                off["saved"] = distance(one, stored(f"{tmp_path}/{way.name}/saved", models[way.tied], way))
            wrong += [(way.name, rank, what, far) for what, far in off.items() if not far <= 1e-6]
    assert not wrong, wrong


def precise(folder: str, model: str) -> Any:
    """Score rows and run a micro-step under bf16; return types and what is held between passes."""
    shard("fsdp2", Path(folder), on_cpu=True, precision="bf16")
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
