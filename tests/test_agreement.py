"""Engine and loss are compared on the first rollout, whatever the engine, and training stops before its first step."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import (  # noqa: E402
    RandomPolicy,
    distance,
    in_ranks,
    logged,
    lora,
    make_trainer,
    model_folder,
    weights,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import TransformersPolicy  # noqa: E402
from agent_gym.policies.transformers import TransformersPolicy as Engine  # noqa: E402

# What a single update, several updates, a critic, and ratios from the engine's logprobs need of the comparison differs.
WAYS: list[dict[str, Any]] = [
    {},
    {"num_iterations": 2},
    {"ppo": True},
    {"steps_per_generation": 2, "use_vllm": True, "vllm_importance_sampling_mode": "in_ratio"},
    {"gradient_accumulation_steps": 2},
]


class Warmer(TransformersPolicy):
    """An engine whose logprobs are not those that it samples with, as one with another temperature has them."""

    def poll(self) -> Any:
        turns = super().poll()
        for turn in turns:
            turn.logprobs = [0.5 * logprob for logprob in turn.logprobs]
        return turns


def warmer(model: Any) -> Warmer:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    return Warmer(model, [tokenizer.eos_token_id], tokenizer.pad_token_id)


def loaded() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_comparison_is_logged_for_every_engine_and_finds_rounding(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = make_trainer(tmp_path, policy=None, **options | {"use_vllm": False}, max_steps=2)
    trainer.train()
    # Once for each rollout: the second update on a rollout is another policy.
    assert len(logged(trainer, "sampling/kl")) == 2 / max(1, trainer.args.rollout_steps)
    assert max(logged(trainer, "sampling/kl")) < 1e-8
    assert max(logged(trainer, "sampling/logp_difference_max")) < 1e-4
    assert max(logged(trainer, "sampling/ratio_max")) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_training_stops_before_its_first_step_if_they_disagree(tmp_path: Path, options: dict[str, Any]) -> None:
    model = loaded()
    trainer = make_trainer(tmp_path, model=model, policy=warmer(model), **options)
    before = weights(trainer.model)
    with pytest.raises(ConfigError) as caught:
        trainer.train()
    message = str(caught.value)
    assert trainer.state.global_step == 0 and distance(before, weights(trainer.model)) == 0.0
    assert "\n" not in message and "from the transformers engine" in message and "'qwen3' in float32" in message
    found, allowed, most = re.search(r"is (\S+) nats .* allows (\S+?)\. .* up to (\S+?), there at", message).groups()
    assert float(found) > 0.05 and float(allowed) == 0.01 and float(most) > 1.0
    for word in ("token ", "engine_tolerance=None", "architecture", "cap", "dtype", "weights", "use_vllm"):
        assert word in message


def test_an_expert_goes_on(tmp_path: Path) -> None:
    for number, tolerance in enumerate((None, math.inf, 10.0)):
        model = loaded()
        trainer = make_trainer(
            tmp_path / str(number), model=model, policy=warmer(model), engine_tolerance=tolerance, max_steps=1
        )
        trainer.train()
        assert logged(trainer, "sampling/kl")[0] > 0.05 and trainer.state.global_step == 1
    with pytest.raises(ConfigError, match="engine_tolerance is -1"):
        make_trainer(tmp_path, engine_tolerance=-1.0)


def test_half_precision_is_allowed_ten_times_as_much(tmp_path: Path) -> None:
    model = loaded().to(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"allows 0\.1\..*'qwen3' in bfloat16"), pytest.warns(UserWarning):
        make_trainer(tmp_path, model=model, policy=warmer(model)).train()
    trainer = make_trainer(tmp_path, model=loaded().to(torch.bfloat16), policy=None, max_steps=2)
    trainer.train()
    assert 0 < max(logged(trainer, "sampling/kl")) < 0.01, "rounding alone is far below"


def test_a_resumed_run_is_compared_anew(tmp_path: Path) -> None:
    make_trainer(tmp_path, policy=None, max_steps=1, save_strategy="steps", save_steps=1).train()
    model = loaded()
    trainer = make_trainer(tmp_path, model=model, policy=warmer(model), max_steps=2)
    with pytest.raises(ConfigError, match="engine and loss disagree"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert trainer.state.global_step == 1


def test_later_rollouts_and_engines_without_logprobs_stop_nothing(tmp_path: Path) -> None:
    class Silent(RandomPolicy):
        def logprobs(self, rng: Any, count: int) -> list[float]:
            return [math.nan] * count

    silent = make_trainer(tmp_path / "silent", policy=Silent(), engine_tolerance=0.0, max_steps=2)
    silent.train()
    assert not logged(silent, "sampling/kl") and silent.state.global_step == 2
    model = loaded()
    policy = warmer(model)
    first, poll = [True], policy.poll

    def later() -> Any:
        return poll() if not first else Engine.poll(policy)

    policy.poll = later  # type: ignore[method-assign]
    trainer = make_trainer(tmp_path / "later", model=model, policy=policy, max_steps=2)
    rollout = trainer.rollout

    def play(*args: Any) -> Any:
        played = rollout(*args)
        first.clear()
        return played

    trainer.rollout = play
    trainer.train()
    assert logged(trainer, "sampling/kl")[0] < 1e-8 < 0.01 < logged(trainer, "sampling/kl")[1]


def _ranked(folder: str) -> str:
    import torch.distributed as dist

    class Second(Warmer):
        def poll(self) -> Any:  # only one of the ranks has an engine that differs
            return super().poll() if dist.get_rank() == 1 else Engine.poll(self)

    model = loaded()
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    policy = Second(model, [tokenizer.eos_token_id], tokenizer.pad_token_id)
    trainer = make_trainer(folder, model=model, policy=policy, max_steps=1)
    try:
        trainer.train()
    except ConfigError as error:
        return str(error)
    return "went on"


def test_all_ranks_stop_together_with_one_message(tmp_path: Path) -> None:
    one, other = in_ranks(_ranked, 2, str(tmp_path))
    assert one == other and "engine and loss disagree" in one


# Dropout: the ratio of the first pass over a rollout is 1, to the digit where the same kernel computes it.


def gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 2, "eos_token_id": 2, "bos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.1))  # whose own dropouts are 0.1


def with_attention_dropout() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32, attention_dropout=0.3)


def read_off_the_configuration() -> Any:
    """A Falcon reads its dropout off the configuration in each pass."""
    from transformers import FalconConfig, FalconForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return FalconForCausalLM(FalconConfig(**sizes, hidden_dropout=0.3, parallel_attn=False, eos_token_id=2))


def routed_at_random() -> Any:
    """A PhiMoE draws its experts in training mode."""
    from architectures import small

    return small("phimoe", router_jitter_noise=0.3)


NOISY: dict[str, tuple[Any, dict[str, Any], str]] = {
    "lora": (None, {"lora_dropout": 0.3}, r"lora_dropout 0\.3"),
    "gpt2": (gpt2, {}, r"attn_dropout 0\.1, drop 0\.1, .*resid_dropout 0\.1"),
    "attention": (with_attention_dropout, {}, r"attention_dropout 0\.3"),
    "falcon": (read_off_the_configuration, {}, "'falcon' has more noise in training mode"),
    "phimoe": (routed_at_random, {}, "'phimoe' has more noise in training mode"),
}


CASES = [
    *[(name, {}) for name in NOISY],
    *[(name, {"gradient_checkpointing": True}) for name in ("gpt2", "falcon", "phimoe")],
    *[(name, {"ppo": True, "critic_learning_rate": 0.0}) for name in ("lora", "gpt2", "falcon")],
]


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_the_first_pass_over_a_rollout_has_ratio_one(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    make, dropout, said = NOISY[name]
    adapter = {"peft_config": lora(**dropout, init_lora_weights=False)} if dropout else {}
    torch.manual_seed(0)
    still: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.0}
    trainer = make_trainer(tmp_path, model=make and make(), policy=None, **still, **options, **adapter)
    worst, values, loss = [], [], trainer._loss

    def look(scores: Any, batch: Any) -> Any:
        mask = batch["action_mask"]
        worst.append((scores.logps.detach() - batch["old_logps"]).abs()[mask].max().item())
        if scores.values is not None:
            now = torch.nn.functional.pad(scores.values.detach()[:, :-1], (1, 0))
            values.append((now - batch["old_values"]).abs()[mask].max().item())
        return loss(scores, batch)

    trainer._loss = look
    with pytest.warns(UserWarning, match=said):
        trainer.train()
    assert max(worst) < 1e-5 and max(values, default=0.0) < 1e-5
    assert max(logged(trainer, "sampling/kl")) < 1e-8
    assert logged(trainer, "clip_ratio/region_mean") == [0.0, 0.0]
    assert max(logged(trainer, "grad_norm")) > 0


def test_what_is_saved_keeps_its_dropout_and_sft_too(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=gpt2(), max_steps=1)
    with pytest.warns(UserWarning, match="dropout is set to 0"):
        trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert again.config.resid_pdrop == 0.1 and again.transformer.drop.p == 0.1


def test_noise_in_embeddings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neftune_noise_alpha is 5.*must be None"):
        make_trainer(tmp_path, neftune_noise_alpha=5.0)


# A tokenizer that does not go with the model.


def test_an_id_beyond_the_embedding_is_named_before_anything_is_sampled(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    with pytest.raises(ConfigError, match=r"513 tokens.*512 rows.*'<\|new\|>' \(512\).*resize_token_embeddings\(513\)"):
        make_trainer(tmp_path, processing_class=tokenizer)
    model = loaded()
    model.resize_token_embeddings(513)
    make_trainer(tmp_path, model=model, processing_class=tokenizer, policy=None, max_steps=1).train()


def test_a_name_for_images_may_lie_beyond_the_embedding_of_a_model_for_text(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        model_folder(), extra_special_tokens={"image_token": "<image_soft_token>"}
    )
    assert tokenizer.convert_tokens_to_ids("<image_soft_token>") == 512
    make_trainer(tmp_path, processing_class=tokenizer)


def test_a_tokenizer_without_an_end_of_text_ends_turns_where_its_template_does(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    tokenizer.eos_token = None
    trainer = make_trainer(tmp_path, processing_class=tokenizer, policy=None, max_steps=1)
    assert trainer.renderer.eos_token_ids == {2}
    trainer.train()
    tokenizer.pad_token = None
    with pytest.raises(ConfigError, match="neither a pad_token nor an eos_token"):
        make_trainer(tmp_path, processing_class=tokenizer)
    with pytest.raises(ConfigError, match=r"eos_token_ids is empty.*set tokenizer\.eos_token"):
        TransformersPolicy(loaded(), [None], 0)
