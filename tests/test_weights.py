"""The weights for the engine: the checkpoint's names, adapters merged on the way and never into the model."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from peft import IA3Config, LoraConfig, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from trainer_tools import make_trainer, mixture_of_experts, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.critic import attach, make_critic  # noqa: E402
from agent_gym.trainers.engine import check_servable, named_weights  # noqa: E402


def load(tied: bool = False, dtype: Any = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder(tied=tied), dtype=dtype)


def adapt(model: Any, *adapters: str, **options: Any) -> Any:
    """Put adapters on a model whose deltas are not zero."""
    options = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"], **options}
    config = LoraConfig(init_lora_weights=False, **options)
    adapted = get_peft_model(model, config, adapter_name=adapters[0] if adapters else "default")
    for name in adapters[1:]:
        adapted.add_adapter(name, config)
    return adapted


def merged(adapted: Any) -> dict[str, Any]:
    return dict(adapted.merge_and_unload().named_parameters())


def close(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-6) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.allclose(one[name], other[name], atol=tolerance), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_plain_model_gives_its_own_weights_without_a_copy(tied: bool) -> None:
    model = load(tied)
    got = dict(named_weights(model))
    assert got.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert got[name].data_ptr() == parameter.data_ptr()
        assert not got[name].requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_modules": "all-linear"},
        {"modules_to_save": ["lm_head"]},
        {"use_rslora": True, "rank_pattern": {"q_proj": 2}},
    ],
    ids=str,
)
def test_an_adapter_is_merged_as_peft_merges_it(options: dict[str, Any]) -> None:
    adapted = adapt(load(), **options)
    if "modules_to_save" in options:
        with torch.no_grad():
            adapted.get_base_model().lm_head.weight.add_(1.0)
    got = {name: weight.clone() for name, weight in named_weights(adapted)}
    assert got.keys() == {name for name, _ in load().named_parameters()}
    plain = dict(load().named_parameters())
    assert any(not torch.equal(got[name], plain[name]) for name in got)
    close(got, merged(adapted))


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("adapted", [False, True])
def test_a_critic_is_no_weight_of_the_policy(kind: str, adapted: bool) -> None:
    plain = load()
    critic = make_critic(plain, kind)
    model = adapt(plain) if adapted else plain
    expected = {name: weight.clone() for name, weight in named_weights(model)}
    attach(model, critic)
    assert any("critic." in name for name, _ in model.named_parameters())
    got = dict(named_weights(model))
    assert got.keys() == expected.keys() == {name for name, _ in load().named_parameters()}
    assert all(torch.equal(got[name], expected[name]) for name in got)


def test_only_the_active_adapters_count() -> None:
    adapted = adapt(load(), "one", "two")
    adapted.set_adapter("two")
    got = {name: weight.clone() for name, weight in named_weights(adapted)}
    adapted.delete_adapter("one")
    close(got, merged(adapted))


def test_three_hundred_syncs_leave_a_bf16_base_bit_for_bit_the_same() -> None:
    adapted = adapt(load(dtype=torch.bfloat16), target_modules="all-linear")
    adapters = [parameter for name, parameter in adapted.named_parameters() if "lora_" in name]
    base = {name: parameter.clone() for name, parameter in adapted.named_parameters() if "lora_" not in name}
    previous = None
    for sync in range(300):
        generator = torch.Generator().manual_seed(sync)
        with torch.no_grad():
            for adapter in adapters:
                adapter.copy_(torch.randn(adapter.shape, generator=generator) * 0.02)
        given = dict(named_weights(adapted))
        now = given["model.layers.1.mlp.down_proj.weight"]
        assert previous is None or not torch.equal(now, previous), "the engine is given what the adapters have become"
        previous = now
    for name, parameter in adapted.named_parameters():
        assert "lora_" in name or torch.equal(parameter, base[name]), name
    # The three hundredth is what PEFT merges into a base that was never touched, rounded once.
    expected = merged(copy.deepcopy(adapted))
    assert given.keys() == expected.keys()
    for name, weight in given.items():
        assert weight.dtype == torch.bfloat16 and torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}], ids=str)
def test_adapters_that_are_no_sum_of_weights_are_refused(options: dict[str, Any]) -> None:
    model = load()
    if "lora_bias" in options:
        for layer in model.model.layers:
            layer.self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(32))
    with pytest.raises(ConfigError, match="q_proj has an adapter with DoRA or a bias.*use plain LoRA"):
        dict(named_weights(adapt(model, target_modules=["q_proj"], **options)))


def test_an_adapter_on_a_tied_embedding_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.embed_tokens, which is also the output layer"):
        dict(named_weights(adapt(load(tied=True), target_modules=["embed_tokens"])))


@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]], ids=str)
def test_a_copy_of_half_of_a_tied_embedding_is_refused(saved: list[str]) -> None:
    with pytest.raises(ConfigError, match="one weight in this model and in an engine: set ensure_weight_tying=True"):
        dict(named_weights(adapt(load(tied=True), modules_to_save=saved)))
    adapted = adapt(load(tied=True), modules_to_save=saved, ensure_weight_tying=True)
    with torch.no_grad():
        adapted.get_base_model().lm_head.weight.add_(1.0)
    close({name: weight.clone() for name, weight in named_weights(adapted)}, merged(adapted))


def test_single_tokens_that_an_adapter_trains_are_refused() -> None:
    with pytest.raises(ConfigError, match="'default' has trainable_token_indices, which are not merged: leave them"):
        dict(named_weights(adapt(load(), trainable_token_indices=[5, 6])))


def test_trained_weights_in_half_precision_are_warned_of_and_a_frozen_base_is_not(tmp_path: Path) -> None:
    words = "of 24 trained weights are float16 .* 2% of bfloat16 weights of size 0.02 have moved, by 1/47 of the way"
    with pytest.warns(UserWarning, match=words):
        make_trainer(tmp_path, bf16=False, model_init_kwargs={"dtype": "float16"})
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*trained weights are")
        make_trainer(tmp_path, bf16=True)
        frozen = make_trainer(tmp_path, bf16=True, model_init_kwargs={"dtype": "bfloat16"}, peft_config=adapter)
    types = {(weight.requires_grad, weight.dtype) for weight in frozen.model.parameters()}
    assert types == {(False, torch.bfloat16), (True, torch.float32)}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mixture_of_experts(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("loaded", [True, False])
def test_fused_experts_have_the_names_and_values_of_the_checkpoint(experts: str, loaded: bool) -> None:
    model = AutoModelForCausalLM.from_pretrained(experts)
    if not loaded:  # a model that was made and not loaded has no record of how it was read
        made = Qwen3MoeForCausalLM(model.config)
        made.load_state_dict(model.state_dict())
        model = made
    stored = load_file(Path(experts, "model.safetensors"))
    assert any(name.endswith("experts.3.down_proj.weight") for name in stored)
    assert any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters())
    got = dict(named_weights(model))
    assert got.keys() == stored.keys()
    assert all(torch.equal(got[name], stored[name]) for name in got)


def test_an_adapter_of_fused_experts_is_merged(experts: str) -> None:
    options = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    adapted = adapt(AutoModelForCausalLM.from_pretrained(experts), **options)
    got = {name: weight.clone() for name, weight in named_weights(adapted)}
    stored = load_file(Path(experts, "model.safetensors"))
    moved = {name for name in got if not torch.equal(got[name], stored[name])}
    assert {name.split(".")[-2] for name in moved} == {"q_proj", "gate_proj", "up_proj", "down_proj"}
    close(got, dict(named_weights(adapted.merge_and_unload())), 1e-5)


def test_what_no_engine_can_be_given_is_refused_before_it_starts(experts: str) -> None:
    adapted = get_peft_model(load(), IA3Config(target_modules=["q_proj"], feedforward_modules=[]))
    with pytest.raises(ConfigError, match="of the type .*IA3; allowed: LORA"):
        check_servable(adapted)
    check_servable(AutoModelForCausalLM.from_pretrained(experts))
    check_servable(load())
    model = load()
    model.is_quantized = True
    with pytest.raises(ConfigError, match="the policy is quantized"):
        check_servable(model)
