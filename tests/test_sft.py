"""The warm start: what is shown is what will be played, and only the policy's words are learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, distance, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402
from trl.trainer.utils import _ChunkedLogProbFunction  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.rollout import Budget, Row  # noqa: E402
from agent_gym.trainers.run_lock import held  # noqa: E402
from agent_gym.trainers.sft import expert_episodes, sft_dataset, train_sft  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


@pytest.fixture(scope="module")
def tiny_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder())


@pytest.fixture(scope="module")
def rows(tiny_tokenizer: Any) -> list[Row]:
    return [row for episode in expert_episodes(GSM8K, None, tiny_tokenizer, episodes=12) for row in episode.rows]


def sft_config(folder: Path, **changes: Any) -> SFTConfig:
    values: dict[str, Any] = {
        "per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_length": 2048, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "logging_steps": 1,
    }  # fmt: skip
    return SFTConfig(str(folder), **(values | changes))


@pytest.mark.parametrize("train_on", ["policy", "all"])
def test_trl_trains_on_exactly_these_labels(
    tmp_path: Path, tiny_tokenizer: Any, rows: list[Row], train_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        tuple(row.token_ids): [
            i if mine or train_on == "all" else -100 for i, mine in zip(row.token_ids, row.action_mask, strict=True)
        ]
        for row in rows
    }
    assert [example["labels"] for example in sft_dataset(rows, train_on)] == list(expected.values())
    seen: list[dict[str, Any]] = []
    stock = SFTTrainer.compute_loss

    def compute(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        seen.append({name: value.clone() for name, value in inputs.items()})
        return stock(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "compute_loss", compute)
    train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, max_steps=3), train_on=train_on)
    found = 0
    for batch in seen:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True):
            assert labels[mask].tolist() == expected[tuple(ids[mask].tolist())]
            assert (labels[~mask] == -100).all()
            found += 1
    assert found == 12


def test_the_output_layer_reads_what_has_a_label(
    tmp_path: Path, tiny_tokenizer: Any, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights become those of TRL's own trainer, which computes logits of all places on a CPU."""
    ours, stock = (AutoModelForCausalLM.from_pretrained(model_folder()) for _ in range(2))
    read: list[int] = []  # places that the loss of each step read
    apply = _ChunkedLogProbFunction.apply
    monkeypatch.setattr(_ChunkedLogProbFunction, "apply", lambda x, *rest: read.append(len(x)) or apply(x, *rest))
    trained = train_sft(ours, tiny_tokenizer, rows, sft_config(tmp_path / "ours", max_steps=3))
    args = sft_config(tmp_path / "stock", max_steps=3, dataset_kwargs={"skip_prepare_dataset": True})
    other = SFTTrainer(model=stock, args=args, train_dataset=sft_dataset(rows), processing_class=tiny_tokenizer)
    other.train()
    assert distance(weights(ours), weights(stock)) < 1e-6
    logged = [[log["loss"] for log in one.state.log_history if "loss" in log] for one in (trained, other)]
    assert logged[0] == pytest.approx(logged[1], abs=1e-5)
    sampled = sum(sum(row.action_mask) for row in rows)
    assert sum(read[:3]) == sampled and sum(read[3:]) > 2 * sampled


def test_imitation_learns(tmp_path: Path, tiny_tokenizer: Any, rows: list[Row]) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    before = weights(model)
    trainer = train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, max_steps=12, learning_rate=3e-3))
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses[-1] < losses[0] - 0.5
    assert distance(before, weights(model)) > 1e-3  # the model that was handed in is the one that learned
    half = AutoModelForCausalLM.from_pretrained(model_folder(), dtype="bfloat16")
    with pytest.warns(UserWarning, match="24 of 24 trained weights are bfloat16"):
        train_sft(half, tiny_tokenizer, rows, sft_config(tmp_path, bf16=True, max_steps=1))


def test_a_demonstration_that_would_be_cut_is_refused(tmp_path: Path, tiny_tokenizer: Any, rows: list[Row]) -> None:
    longest = max(len(row.token_ids) for row in rows)
    with pytest.raises(ConfigError, match=f"has {longest} tokens, max_length is {longest - 1}: raise it"):
        train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, max_length=longest - 1))
    train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, max_length=longest, max_steps=1))

    model = AutoModelForCausalLM.from_pretrained(model_folder(), max_position_embeddings=longest - 1)
    with pytest.raises(ConfigError, match=f"has {longest} tokens, and the model reads {longest - 1}: take a model"):
        train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, max_length=None))


def test_packing_is_refused_and_not_ignored(tmp_path: Path, tiny_tokenizer: Any, rows: list[Row]) -> None:
    with pytest.raises(ConfigError, match="demonstrations are not packed: leave it out. padding_free leaves out"):
        train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, packing=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"assistant_only_loss": True},
            "assistant_only_loss is True; allowed: False, since demonstrations come as tok",
        ),
        ({"dataset_text_field": "words"}, "dataset_text_field is 'words'; allowed: 'text', since demonstrations come"),
        ({"fp16": True}, "fp16 is True, and a CPU computes in it as in float32"),
        ({"warmup_steps": 2, "lr_scheduler_type": "constant"}, "lr_scheduler_type 'constant' has no warmup"),
    ],
)
def test_settings_that_do_nothing_are_refused(
    tmp_path: Path, tiny_tokenizer: Any, rows: list[Row], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, **changes))


def test_checkpoints_are_whole_and_the_run_has_its_folder_alone(
    tmp_path: Path, tiny_tokenizer: Any, rows: list[Row]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    model.generation_config.update(temperature=0.9, do_sample=None)
    saved = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "save_total_limit": 1}
    with held(tmp_path), pytest.raises(ConfigError, match="is the folder of a run that trains at present"):
        train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, **saved))
    with pytest.warns(UserWarning, match="generation config cannot be saved as it is: temperature left out"):
        train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, **saved))
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "README.md", "run.json", "log.jsonl"}
    with pytest.raises(ConfigError, match="holds another run"):
        train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, **saved))
    longer = sft_config(tmp_path, **{**saved, "max_steps": 4})
    trained = train_sft(model_folder(), tiny_tokenizer, rows, longer, resume=True)
    rates = [entry["learning_rate"] for entry in trained.state.log_history if "learning_rate" in entry]
    assert rates[2:] == [5e-4, 2.5e-4]


def test_styles_are_drawn_by_their_shares_and_by_the_seed(tiny_tokenizer: Any) -> None:
    def calls(seed: int) -> list[int]:
        styles = {"default": 0.5, "direct": 0.5}
        played = expert_episodes(GSM8K, None, tiny_tokenizer, episodes=40, seed=seed, styles=styles)
        return [sum(len(step.tool_calls) for step in episode.steps) for episode in played]

    first = calls(0)
    assert len(first) == 40 and 10 < sum(n == 0 for n in first) < 30
    assert first == calls(0) and first != calls(1)


def test_only_solved_episodes_are_shown(tiny_tokenizer: Any) -> None:
    assert len(expert_episodes(ENV, None, tiny_tokenizer, episodes=6)) == 6
    assert expert_episodes(ENV, {"patient": True}, tiny_tokenizer, episodes=2, budget=Budget(max_turns=1)) == []


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (GSM8K, {"styles": {"default": -1.0}}, r"styles is .*shares must be positive"),
        (GSM8K, {"styles": {"loud": 1.0}}, "no style 'loud'; known: default, direct"),
        ("Toy/Inline-v1", {}, "Toy/Inline"),
        ("Toy/World-v0", {}, "WorldEnv has no expert"),
        (ENV, {"styles": {"loud": 1.0}}, "the expert of LettersEnv has no style 'loud'; known: default"),
    ],
)
def test_what_cannot_be_demonstrated_is_named(
    tiny_tokenizer: Any, env_id: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expert_episodes(env_id, None, tiny_tokenizer, episodes=1, **options)


def test_without_a_demonstration_there_is_nothing_to_train_on() -> None:
    with pytest.raises(ConfigError, match="no demonstrations to train on"):
        sft_dataset([])
