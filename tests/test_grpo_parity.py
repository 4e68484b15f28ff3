"""On policy to 1e-5: the engine's logprobs of what it sampled are the trainer's, before and after real updates.

Rows of several turns, both kinds of output layer, with and without an adapter. The updates are large, so that an engine
that kept its old weights would be off by more than the tolerance; that is checked too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, distance, in_ranks, lora, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.rollout import EpisodeSpec  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.batch import training_episode  # noqa: E402

TOLERANCE = 1e-5  # natural log, float32 on both sides
ENGINES = [
    pytest.param(None, id="transformers"),
    pytest.param("vllm", marks=pytest.mark.vllm, id="vllm"),
]


def parity_trainer(folder: Path, engine: str | None, **options: Any) -> Any:
    if engine == "vllm":
        pytest.importorskip("vllm")
    options = {"max_steps": 4, "learning_rate": 5e-3, "max_num_seqs": 16, "micro_batch_size": 3, **options}
    return make_trainer(folder, policy=None, use_vllm=engine == "vllm", max_turns=3, **options)


def watch(trainer: Any) -> list[tuple[float, float]]:
    """Before each update, record how far the engine is from the trainer, and how far from the first weights.

    The reference is a plain forward pass of the trainer's model, without any code of the trainer.
    """
    found: list[tuple[float, float]] = []
    generate = trainer._generate_and_score_completions
    first = AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path)

    def compare(inputs: Any) -> Any:
        batch = generate(inputs)
        ids, sampled = batch["input_ids"], batch["action_mask"][:, 1:]
        apart = []
        for model in (trainer.model, first):
            training = model.training
            model.eval()
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1]
            model.train(training)
            logps = (logits / trainer.temperature).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            apart.append((logps - batch["engine_logps"][:, 1:])[sampled].abs().max().item())
        found.append((apart[0], apart[1]))
        return batch

    trainer._generate_and_score_completions = compare
    return found


@pytest.mark.parametrize(
    ("tied", "temperature", "engine"),
    [
        pytest.param(True, 1.0, None, id="tied-transformers"),
        pytest.param(True, 1.0, "vllm", id="tied-vllm", marks=pytest.mark.vllm),
        pytest.param(False, 0.7, None, id="untied-transformers"),
        # Below, vLLM has untied layers with an adapter.
        pytest.param(False, 0.7, "vllm", id="untied-vllm", marks=[pytest.mark.vllm, pytest.mark.slow]),
    ],
)
def test_engine_and_trainer_agree(tmp_path: Path, tied: bool, temperature: float, engine: str | None) -> None:
    trainer = parity_trainer(tmp_path, engine, model=model_folder(tied=tied), temperature=temperature)
    found = watch(trainer)
    trainer.train()
    trainer.runner.policy.close()
    assert len(found) == 4
    assert max(now for now, _ in found) <= TOLERANCE
    assert found[0][1] <= TOLERANCE
    assert min(stale for _, stale in found[1:]) > 100 * TOLERANCE
    turns = [log["episode/turns"] for log in trainer.state.log_history if "episode/turns" in log]
    assert min(turns) > 1.0
    if engine == "vllm":
        logs = [log for log in trainer.state.log_history if "sampling/ratio_mean" in log]
        assert len(logs) == 4
        assert max(log["sampling/logp_difference_max"] for log in logs) <= TOLERANCE
        assert all(log["sampling/ratio_mean"] == pytest.approx(1.0, abs=1e-4) for log in logs)


TARGETS = [pytest.param(["q_proj", "v_proj"], marks=pytest.mark.slow), ["down_proj", "embed_tokens"]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("targets", TARGETS, ids=str)
def test_the_engine_sees_the_adapter(tmp_path: Path, engine: str | None, targets: list[str]) -> None:
    trainer = parity_trainer(
        tmp_path,
        engine,
        model=model_folder(tied=False),
        peft_config=lora(lora_alpha=16, lora_dropout=0.0, target_modules=targets),
        learning_rate=3e-2,
        max_steps=6,
    )
    before = weights(trainer.model)
    found = watch(trainer)
    trainer.train()
    trainer.runner.policy.close()
    assert max(now for now, _ in found) <= TOLERANCE
    assert found[-1][1] > 100 * TOLERANCE
    # Merging into the weights and taking the adapter out again would round at every sync; nothing may have moved.
    after = weights(trainer.model)
    assert all((before[name] == after[name]).all() for name in before if "lora_" not in name)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_samples_in_the_precision_of_the_loss(engine: str | None, tmp_path: Path) -> None:
    trainer = parity_trainer(tmp_path, engine, bf16=True, max_steps=1, learning_rate=0.0)
    reference = AutoModelForCausalLM.from_pretrained(model_folder())  # in float32, with the weights that stay

    def compare(episodes: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logprobs of the sampled tokens: by the engine, by the pass of the loss, in float32."""
        batch = trainer._lay_out([training_episode(episode, i) for i, episode in enumerate(episodes)])
        mask, ids, attended = batch["action_mask"], batch["input_ids"], batch["attention_mask"]
        with torch.no_grad():
            loss = trainer._forward(trainer.model, batch).logps
            full = reference(input_ids=ids, attention_mask=attended).logits[:, :-1].log_softmax(-1)
        full = torch.nn.functional.pad(full.gather(-1, ids[:, 1:, None]).squeeze(-1), (1, 0))
        return batch["engine_logps"][mask], loss[mask], full[mask]

    specs = [EpisodeSpec(ENV, split="train", index=i, seed=i, sampling_seed=i, group=i) for i in range(8)]
    trainer.model.train()
    for _ in range(2):  # before and after accelerate has wrapped the model
        sampled, loss, full = compare(trainer.rollout(specs, 1.0))
        assert (full - loss).abs().mean() > 1e-3
        assert (full - sampled).abs().mean() > 1e-3
        if engine is None:  # the same modules; vLLM has kernels of its own, which round elsewhere
            assert (sampled - loss).abs().mean() < (full - loss).abs().mean() / 4
        trainer.train()
    trainer.runner.policy.close()
    # What is left is rounding, which is corrected for and logged.
    log = trainer.state.log_history[0]
    assert 0.0 < log["sampling/kl"] < 1e-4 and log["sampling/bounded"] == 0.0


def two_engines(folder: str, options: dict[str, Any]) -> Any:
    trainer = parity_trainer(Path(folder), "vllm", **options)
    found = watch(trainer)
    trainer.train()
    metrics = trainer.evaluate(task_dataset(ENV, split="test", tasks=3))
    return found, weights(trainer.model), metrics["eval_episodes"]


@pytest.mark.vllm
@pytest.mark.slow
def test_an_engine_on_each_of_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    # One rank has fewer evaluation tasks than the other, and rows move between ranks before they are trained on.
    options = {"per_device_train_batch_size": 6, "num_generations": 4}
    (found, one, episodes), (_, other, _) = in_ranks(two_engines, 2, str(tmp_path), options)
    assert max(now for now, _ in found) <= TOLERANCE
    assert min(stale for _, stale in found[1:]) > 100 * TOLERANCE
    assert distance(one, other) == 0.0
    assert episodes == 3
