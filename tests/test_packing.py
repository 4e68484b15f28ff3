"""Rows packed into one sequence say, cost and teach what they do one below the other, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from test_batching import CPU, made_of  # noqa: E402
from trainer_tools import distance, make_trainer, model_folder, train  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MambaConfig, Qwen2Config  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.batch import collate, pack, unpack  # noqa: E402  # noqa: E402
from agent_gym.trainers.losses import loss_weights  # noqa: E402

SIZE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.1, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZE),
    "qwen2": Qwen2Config(**SIZE),
    # In some layers each token sees the eight before it only, also where a row begins.
    "qwen2, sliding": Qwen2Config(
        **SIZE, use_sliding_window=True, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def make_model(name: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention)


def build(folder: Path, model: Any, **options: Any) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    made = make_trainer(folder, model=model, processing_class=tokenizer, **options)
    made.current_gradient_accumulation_steps = 1
    return made


def random_batch(*lengths: int) -> dict[str, Any]:
    """Rows of these lengths, each an episode of its own, and a dummy."""
    batch = collate([made_of(n, number=i) for i, n in enumerate(lengths)], len(lengths) + 1, 0, CPU)
    generator = torch.Generator().manual_seed(0)
    batch["input_ids"] = torch.randint(3, 512, batch["input_ids"].shape, generator=generator)
    mask = batch["action_mask"]
    batch["advantages"] = torch.randn(mask.shape, generator=generator) * mask
    batch["weights"] = loss_weights(mask, batch["step_of"], batch["episode_of"], "token")
    return batch


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6))
def test_tokens_come_back_to_their_rows(lengths: list[int]) -> None:
    batch = collate([made_of(n, number=i) for i, n in enumerate(lengths)], len(lengths), 0, CPU)
    mask = batch["attention_mask"]
    numbers = torch.arange(mask.numel()).view(mask.shape)
    packed = pack({"input_ids": numbers, "labels": numbers, "attention_mask": mask})
    assert packed["attention_mask"] is None
    assert packed["position_ids"].tolist() == [[t for n in lengths for t in range(n)]]  # type: ignore[union-attr]
    assert torch.equal(unpack(packed["input_ids"], mask), numbers * mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_loss_and_gradients_are_those_of_padded_rows(tmp_path: Path, name: str, attention: str) -> None:
    batch = random_batch(21, 9, 2, 14)

    def run(packing: bool) -> tuple[Any, ...]:
        trainer = build(tmp_path, make_model(name, attention), packing=packing)
        assert trainer.model.config._attn_implementation == attention
        scores = trainer._forward(trainer.model, batch)
        loss = trainer._loss(scores, batch)
        loss.backward()
        gradients = {n: p.grad.numpy() for n, p in trainer.model.named_parameters() if p.grad is not None}
        return scores.logps.detach(), scores.entropy.detach(), loss.item(), gradients

    logps, entropy, loss, gradients = run(False)
    packed = run(True)
    assert (packed[0] - logps).abs().max() < 1e-5 and (packed[1] - entropy).abs().max() < 1e-5
    assert packed[2] == pytest.approx(loss, abs=1e-5) and abs(loss) > 1e-3
    assert distance(packed[3], gradients) < 1e-5 < max(abs(g).max() for g in gradients.values())


RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"beta": 0.1, "num_iterations": 2},
    "ppo": {"ppo": True, "num_iterations": 2, "lam": 0.9, "critic_learning_rate": 1e-2},
    "ppo, head": {"ppo": True, "critic": "head", "critic_learning_rate": 1e-2},
}


@pytest.mark.parametrize("name", RUNS)
def test_packed_training_ends_with_the_same_weights(tmp_path: Path, name: str) -> None:
    options = {**RUNS[name], "optim": "sgd", "learning_rate": 1e-2, "context": "window:1"}
    padded = train(tmp_path, **options)
    assert distance(padded, train(tmp_path, **options, packing=True, micro_batch_tokens=300)) <= 1e-6
    assert distance(padded, train(tmp_path, **options, max_steps=1)) > 1e-4


def test_a_state_space_model_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(
        vocab_size=512, hidden_size=32, state_size=4, num_hidden_layers=1, pad_token_id=0, eos_token_id=2,
        bos_token_id=2, use_cache=False,
    )  # fmt: skip
    trainer = build(tmp_path, AutoModelForCausalLM.from_config(config), packing=True)
    with pytest.raises(ConfigError, match="packing does not work with 'mamba'"):
        trainer.train()
    assert "runner" not in vars(trainer.scheduler)  # before anything was played


def test_attention_that_ignores_positions_is_refused(tmp_path: Path) -> None:
    # Known to the attention and not to the masks: the model gets none, and rows hear each other.
    ALL_ATTENTION_FUNCTIONS.register("deaf", ALL_ATTENTION_FUNCTIONS["sdpa"])
    trainer = build(tmp_path, make_model("llama", "deaf"), packing=True)
    with pytest.raises(ConfigError, match="'deaf': another first row moves the logprobs"):
        trainer.train()
