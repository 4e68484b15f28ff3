"""The memory estimator against what transformers, PEFT and torch really allocate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint

import agent_gym.plan as memory
from agent_gym.cli.main import main
from agent_gym.errors import ConfigError
from agent_gym.plan import ModelShape, find_shape, plan
from agent_gym.plan.models import KNOWN

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = ModelShape(96, 160, 2, 3, 1, 32, 512, tied=False, qk_norm=True)
GIB = 2**30


def config_of(shape: ModelShape) -> Any:
    family = transformers.Qwen3Config if shape.qk_norm else transformers.Qwen2Config
    family = family if shape.qk_norm or shape.qkv_bias else transformers.LlamaConfig
    return family(
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
    )


def model_of(shape: ModelShape, **kwargs: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_config(config_of(shape), **kwargs)


def size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B"])
def test_parameters_are_those_of_the_instantiated_model(name: str) -> None:
    shape = dataclasses.replace(KNOWN[name], layers=2)
    with torch.device("meta"):
        model = model_of(shape)
    assert model.num_parameters() == shape.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as the models' safetensors files count them
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen3-8B-Base", 8_190_735_360),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
    ],
)
def test_known_models_have_their_published_size(name: str, parameters: int) -> None:
    assert find_shape(name).parameters == parameters


def test_training_state_adapters_and_cache_are_those_of_a_trained_model() -> None:
    model = model_of(SMALL)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    state = memory.training_state(SMALL, "single", 1)
    moments = [t for entry in optimizer.state.values() for name, t in entry.items() if name != "step"]
    assert state.gradients == size(p.grad for p in model.parameters())
    assert state.optimizer == size(moments)
    # The rest are the copies that autocast makes during a pass.
    assert state.weights - 2 * SMALL.parameters == size(model.parameters())
    with torch.no_grad():
        cache = model.bfloat16()(torch.zeros(1, 7, dtype=torch.long), use_cache=True).past_key_values
    held = size(t for layer in cache.layers for t in (layer.keys, layer.values))
    assert held == 7 * memory.cache_per_token(SMALL)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    assert adapted.get_nb_trainable_parameters()[0] == SMALL.lora_parameters(4)


@pytest.mark.parametrize("sharding", ["zero3", "fsdp2"])
def test_shares_of_many_processes_add_up_to_sixteen_bytes_per_parameter(sharding: str) -> None:
    # What is gathered does not depend on the number of processes, so that it cancels out.
    few, many = (memory.training_state(KNOWN["Qwen/Qwen2.5-7B"], sharding, n).total for n in (2, 8))
    assert few - many == pytest.approx(16 * KNOWN["Qwen/Qwen2.5-7B"].parameters * (1 / 2 - 1 / 8))


@pytest.mark.parametrize(
    ("shape", "residual"), [(SMALL, 2), (dataclasses.replace(SMALL, hidden=128, mlp=384, heads=4, kv_heads=4), 4)]
)
def test_activations_of_a_layer_are_those_that_autograd_saves(shape: ModelShape, residual: int) -> None:
    def saved(layers: int) -> int:
        torch.manual_seed(0)
        dtype = torch.float32 if residual == 4 else torch.bfloat16
        model = model_of(dataclasses.replace(shape, layers=layers), dtype=dtype)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            # Weights, and the copies that autocast makes of them, are counted with the training state.
            if storage.data_ptr() not in own and TOKENS in tensor.shape:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with torch.autocast("cpu", torch.bfloat16, enabled=residual == 4):
                output = model(torch.ones(1, TOKENS, dtype=torch.long), use_cache=False).logits
        assert output.requires_grad
        return sum(kept.values())

    measured = (saved(3) - saved(1)) / 2 / TOKENS
    assert memory.layer_activations(shape, residual) == pytest.approx(measured, rel=0.15)


TOKENS = 61  # no width of the models above


def tracked_peak(shape: ModelShape, ranks: int, tokens: int) -> int:
    """Bytes of one rank at the peak of a pass as `trainers/rows.py` runs it, with FSDP2 as accelerate sets it up.

    No rank and no number exists: a fake process group, and tensors that are shapes only. Of the optimizer only what it
    holds is counted: on a GPU its step is one kernel (`adamw_torch_fused`, the default), which takes nothing more.
    """
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from trl.trainer.utils import add_fused_lm_head

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mp_policy": mixed, "mesh": distributed.init_device_mesh("cpu", (ranks,))}
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = model_of(shape, dtype=torch.float32)
            add_fused_lm_head(model, outputs=("log_probs", "entropy"))
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
            for layer in model.model.layers:
                fully_shard(layer, **options)
            if not shape.tied:
                fully_shard(model.model.embed_tokens, **options)
            ends = [model.model.norm, *([model.model.embed_tokens] if shape.tied else []), model.lm_head]
            fully_shard(ends, **options, reshard_after_forward=False)
            fully_shard(model, **options)
            return peak_of_second_update(model, torch.optim.AdamW(model.parameters()), tokens)
    finally:
        distributed.destroy_process_group()


def peak_of_second_update(model: Any, optimizer: Any, tokens: int) -> int:
    """Bytes at the peak of the second micro-batch of a step, when the gradients of the first are there."""
    from torch.distributed._tools.mem_tracker import MemTracker

    ids = torch.zeros(1, tokens, dtype=torch.long)
    causal = {"full_attention": None}  # no mask, as with flash attention

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=ids, attention_mask=causal, shift_labels=ids, fused_lm_head=True)
        output.log_probs.sum().backward()

    update()
    optimizer.step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, ids)
    with tracker:
        update()
    return max(devices["Total"] for devices in tracker.get_tracker_snapshot("peak").values())


class Removed:
    """The handle of a hook that was not set."""

    def remove(self) -> None:
        """Nothing is there to remove."""


def tracked_on_one(shape: ModelShape, tokens: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the bytes at the peak of an update on one GPU, with adapters of a rank or, at 0, of all weights."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from trl.trainer.utils import add_fused_lm_head

    # The tracker sets hooks on all weights, and frozen ones take none.
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, hook, real=real: real(self, hook) if self.requires_grad else Removed()
        )
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model_of(shape, dtype=torch.bfloat16 if rank else torch.float32)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if rank:
            peft = pytest.importorskip("peft")
            monkeypatch.setattr(torch.nn.Module, "to", lambda self, *arguments, **options: self)  # fakes cannot move
            config = peft.LoraConfig(r=rank, target_modules="all-linear")
            model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
            for module in model.modules():  # as PEFT does by default outside of fake mode: adapters are float32
                if type(module).__name__ == "Linear" and module.weight.requires_grad:
                    module.weight = torch.nn.Parameter(module.weight.detach().float())
            model.enable_input_require_grads()
        model.train()
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
        return peak_of_second_update(model, optimizer, tokens)


@pytest.mark.parametrize(
    ("name", "layers", "tokens", "rank"),
    [
        ("Qwen/Qwen2.5-7B", 4, 32768, 0),
        pytest.param("Qwen/Qwen2.5-7B", 4, 32768, 16, marks=pytest.mark.slow),
        ("Qwen/Qwen2.5-1.5B", 2, 8192, 0),
        ("Qwen/Qwen2.5-1.5B", 2, 8192, 16),
        *(
            pytest.param(f"Qwen/Qwen2.5-{b}B", None, 32768, rank, marks=pytest.mark.slow)
            for b in (7, 14)
            for rank in (0, 16)
        ),
    ],
)
def test_the_peak_on_one_gpu_is_what_a_tracker_counts(
    name: str, layers: int | None, tokens: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("trl.kernels.chunked_logprob")
    for kernel in ("_forward_tile", "_backward_tile", "_addmm_fp32"):  # as in the test below
        monkeypatch.setattr(kernels, kernel, lambda *arguments, **options: None)
    shape = dataclasses.replace(KNOWN[name], layers=layers or KNOWN[name].layers)
    sizes = plan(shape, 1, 80 * GIB, episode_tokens=1, micro_batch_tokens=tokens, lora_rank=16)  # no longer pass
    [one] = [one for one in sizes if one.lora_rank == rank]
    tracked = tracked_on_one(shape, tokens, rank, monkeypatch)
    print(f"\n{name}, {shape.layers} layers, rank {rank}, {tokens:,} tokens: plan", end=" ")
    print(f"{one.training / GIB:.2f} GiB, tracked {tracked / GIB:.2f}, ratio {one.training / tracked:.3f}")
    assert one.training == pytest.approx(tracked, rel=0.1)


@pytest.mark.parametrize(
    ("name", "layers", "ranks", "tokens"),
    [
        ("Qwen/Qwen2.5-7B", 2, 64, 4096),
        ("Qwen/Qwen2.5-1.5B", 2, 8, 16384),
        *(pytest.param(f"Qwen/Qwen2.5-{b}B", None, 64, 8192, marks=pytest.mark.slow) for b in (7, 14, 32)),
    ],
)
def test_the_peak_under_fsdp2_is_what_a_tracker_counts(
    name: str, layers: int | None, ranks: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("trl.kernels.chunked_logprob")
    # On a GPU these write into their tile and take no memory of their own; here they would be made of torch's.
    for kernel in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
        monkeypatch.setattr(kernels, kernel, lambda *arguments, **options: None)
    shape = dataclasses.replace(KNOWN[name], layers=layers or KNOWN[name].layers)
    sizes = plan(shape, ranks, 80 * GIB, episode_tokens=1, micro_batch_tokens=tokens, lora_rank=16)  # no longer pass
    [one] = [one for one in sizes if (one.layout, one.config) == ("colocate", "fsdp2")]
    tracked = tracked_peak(shape, ranks, tokens)
    print(f"\n{name}, {shape.layers} layers, {ranks} ranks, {tokens:,} tokens: plan", end=" ")
    print(f"{one.training / GIB:.2f} GiB, tracked {tracked / GIB:.2f}, ratio {one.training / tracked:.2f}")
    assert one.training == pytest.approx(tracked, rel=0.1)


def test_plan_orders_layouts_and_leaves_out_what_does_not_fit() -> None:
    def planned(gpus: int, gib: int, name: str = "Qwen/Qwen2.5-7B") -> list[Any]:
        return plan(KNOWN[name], gpus, gib * GIB, episode_tokens=4096, micro_batch_tokens=8192, lora_rank=16)

    def fitting(gpus: int, gib: int, name: str = "Qwen/Qwen2.5-7B") -> list[tuple[str, str, int]]:
        found = planned(gpus, gib, name)
        return [(one.layout, one.config, one.lora_rank) for one in found if one.obstacle is None]

    assert fitting(4, 80)[0] == ("colocate", "zero2", 0)
    assert ("colocate", "ddp", 0) not in fitting(4, 80)  # 16 bytes and more for each of 7.6e9 parameters
    assert fitting(1, 80) == [("colocate", "single", 16)]
    assert fitting(1, 80, "Qwen/Qwen2.5-0.5B")[0] == ("colocate", "single", 0)
    assert fitting(4, 80, "Qwen/Qwen2.5-72B") == []
    # A server spreads a model that does not fit on one card.
    two = next(one for one in planned(4, 48, "Qwen/Qwen2.5-32B") if one.servers == 2)
    assert two.tensor_parallel == 2 and two.engines == 1 and two.cache > 0
    # Or one beside which there is no room for vLLM itself, or for the episodes.
    small = next(one for one in planned(4, 17) if one.servers == 2 and one.config == "zero3" and one.lora_rank)
    assert small.tensor_parallel == 2 and small.obstacle is None
    long = plan(KNOWN["Qwen/Qwen2.5-14B"], 4, 80 * GIB, episode_tokens=32768, micro_batch_tokens=8192, lora_rank=16)
    spread = {one.config: one for one in long if one.servers == 2 and one.lora_rank}
    assert spread["zero3"].tensor_parallel == 2 and spread["zero3"].obstacle is None
    # vLLM refuses to spread 28 heads over 8 GPUs.
    assert {one.tensor_parallel for one in planned(16, 6) if one.servers == 8} == {4}
    # Full training in fp32 has a residual stream of four bytes.
    full, adapters = planned(1, 80, "Qwen/Qwen2.5-0.5B")
    small = KNOWN["Qwen/Qwen2.5-0.5B"]
    waits = memory.activations(small, 8192 + 4096, "single", 4, waiting=4 * small.embedding)
    assert full.activations == waits > adapters.activations
    with pytest.raises(ConfigError, match="qwen3_moe"):
        ModelShape.from_config({"model_type": "qwen3_moe"})


def test_cli_names_a_command_that_the_trainer_understands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    from agent_gym.cli.train import TrainingParser

    known = {*TrainingParser("grpo")._option_string_actions, "--num_processes"}
    for gpus in ("4x80", "1x80"):
        assert main(["plan", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", gpus, "--json"]) == 0
        command = json.loads(capsys.readouterr().out)["command"]
        call = command[command.index("agent-gym grpo") :]
        flags = {word for word in call.split() if word.startswith("--")}
        assert flags and flags <= known
    config_of(SMALL).save_pretrained(folder := tmp_path / "my model")
    assert main(["plan", "--model", str(folder), "--gpus", "2x16"]) == 0
    shown = capsys.readouterr().out
    assert f"{SMALL.parameters:,} parameters" in shown and f"--model_name_or_path '{folder}'" in shown


def test_cli_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, gpus, message in (
        ("Qwen/Qwen2.5-7B", "four", "4x80"),
        ("./nowhere", "1x80", "nowhere/config.json"),
        ("some/where", "1x80", "Qwen/Qwen2.5-7B"),  # the hub cannot be reached
    ):
        assert message in complaint(capsys, "plan", "--model", model, "--gpus", gpus)
    sizes = {"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2}
    for config, message in (
        ([1], "it is [1]"),
        ({**sizes, "num_attention_heads": 0}, "num_attention_heads is 0; it must be a whole number of at least 1"),
        ({**sizes, "intermediate_size": "wide"}, "intermediate_size is 'wide'"),
        (sizes, "has no 'intermediate_size'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert message in complaint(capsys, "plan", "--model", str(tmp_path), "--gpus", "1x80")
