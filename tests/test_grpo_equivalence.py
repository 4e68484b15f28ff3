"""How the work is cut must not change what is learned: micro-batches, accumulation, processes, checkpointing.

The policy answers from seeds alone, so every run sees the same episodes, and weights may differ by rounding only. Two
optimizers, because SGD shows a wrong scale of the gradient, which AdamW divides away, and AdamW shows wrong directions
of small gradients, which SGD hides.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import SGD, distance, in_ranks, logged, lora, make_trainer, model_folder, train, weights  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402

TOLERANCE = 1e-6
MOVED = 1e-4  # what a run changes at least, so that equal weights say something

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    # With its default of 1e-8 AdamW turns rounding errors of vanishing gradients into steps of their full size.
    "adamw": {"optim": "adamw_torch", "learning_rate": 2e-4, "adam_epsilon": 1e-5},
}
BATCH = {"per_device_train_batch_size": 16}
FAILING = {"env_kwargs": {"fail": 7}}


def start() -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return weights(AutoModelForCausalLM.from_pretrained(model_folder()))


def same(one: Any, other: Any) -> None:
    assert distance(one, start()) > MOVED, "the run has hardly moved the weights"
    assert distance(one, other) <= TOLERANCE


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights of the plainest run for each optimizer: one process, one pass over all rows."""
    folder = tmp_path_factory.mktemp("straight")
    return {name: train(folder, **BATCH, **FAILING, **options) for name, options in OPTIMIZERS.items()}


CUTS = [{"micro_batch_size": 3}, {"micro_batch_size": 1}, {"micro_batch_tokens": 150}]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_micro_batches(tmp_path: Path, straight: Any, optimizer: str, cut: dict[str, Any]) -> None:
    same(straight[optimizer], train(tmp_path, **BATCH, **FAILING, **OPTIMIZERS[optimizer], **cut))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [2, 4])
def test_accumulation_over_the_same_episodes(tmp_path: Path, straight: Any, optimizer: str, steps: int) -> None:
    split = {"per_device_train_batch_size": 16 // steps, "gradient_accumulation_steps": steps, "micro_batch_size": 3}
    same(straight[optimizer], train(tmp_path, **split, **FAILING, **OPTIMIZERS[optimizer]))


# The third turn has a context of its own: episodes of two rows, which no piece need hold together.
SEVERAL_ROWS = {"context": "window:1", "env_kwargs": {"patient": True}, "max_turns": 3}
LOSSES: list[dict[str, Any]] = [
    {"steps_per_generation": 2, "per_device_train_batch_size": 8, "beta": 0.1, "micro_batch_tokens": 200},
    # Two rollouts of 8 episodes each per update: the weights of each sum to 1, whatever the pieces.
    {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"importance_sampling_level": "sequence", "loss_normalization": "sequence"},
    {"importance_sampling_level": "step", "loss_normalization": "step"},
    {"loss_normalization": "episode", "delta": 2.0, "epsilon_high": 0.28},
    # Few tokens of the budget are used, so that the gradient is small.
    {"loss_normalization": "constant", "advantage_estimator": "dr_grpo", "learning_rate": 0.3},
    {"entropy_coef": 0.05},
    {"beta": 0.1, "use_bias_correction_kl": True},
    {"beta": 0.1, "kl_in": "reward", "advantage_estimator": "reinforce_pp"},
    {**SEVERAL_ROWS, "loss_normalization": "episode", "importance_sampling_level": "step"},
    {**SEVERAL_ROWS, "steps_per_generation": 2, "minibatch_by": "episodes", "per_device_train_batch_size": 8},
]


@pytest.mark.parametrize("options", LOSSES, ids=str)
def test_other_losses(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {**BATCH, **OPTIMIZERS["sgd"], "num_iterations": 2, **options}
    tokens = options.pop("micro_batch_tokens", None)
    cut = {"micro_batch_tokens": tokens} if tokens else {"micro_batch_size": 5}
    same(train(tmp_path, **options), train(tmp_path, **options, **cut))


def test_gradient_checkpointing(tmp_path: Path, straight: Any) -> None:
    kept = train(tmp_path, **BATCH, **FAILING, **OPTIMIZERS["adamw"], gradient_checkpointing=True)
    same(straight["adamw"], kept)


def test_a_mixture_of_experts_balances_its_load_once_per_step(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    def gradient(micro_batch_size: int) -> Any:
        torch.manual_seed(0)
        config = Qwen3MoeConfig(
            vocab_size=512, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
            output_router_logits=True, router_aux_loss_coef=10.0, pad_token_id=0, eos_token_id=2,
        )  # fmt: skip
        trainer = make_trainer(
            tmp_path,
            model=Qwen3MoeForCausalLM(config),
            processing_class=AutoTokenizer.from_pretrained(model_folder()),
            per_device_train_batch_size=4,
            micro_batch_size=micro_batch_size,
        )
        trainer.current_gradient_accumulation_steps = 1
        # Four times the same row, so that the mean over rows is the same however they are cut.
        ids = torch.arange(3, 13).repeat(4, 1)
        sampled = torch.arange(10).repeat(4, 1) > 0
        rows = {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "action_mask": sampled,
            "step_of": sampled.long() - 1, "engine_logps": -sampled.float(), "advantages": sampled.float(),
            "weights": sampled / sampled.sum(), "episode_of": torch.arange(4),
        }  # fmt: skip
        # The last row of a batch is a dummy, which no minibatch of four rows takes.
        dummy = {name: torch.zeros_like(value[:1]) for name, value in rows.items()}
        dummy |= {"attention_mask": dummy["attention_mask"] + 1, "episode_of": torch.tensor([-1])}
        batch = {name: torch.cat([value, dummy[name]]) for name, value in rows.items()}
        trainer._generate_and_score_completions = lambda inputs: batch
        trainer.training_step(trainer.model, [])
        return {name: p.grad.numpy() for name, p in trainer.model.named_parameters() if p.grad is not None}

    whole, cut = gradient(4), gradient(1)
    assert max(abs(value).max() for name, value in whole.items() if "gate.weight" in name) > 1e-2
    assert distance(whole, cut) < 1e-5


# Several processes.


def run_rank(folder: str, processes: int, options: dict[str, Any]) -> Any:
    trainer = make_trainer(folder, **options)
    assert trainer.accelerator.num_processes == processes
    trainer.train()
    return weights(trainer.model), [log for log in trainer.state.log_history if "reward" in log]


def run_with_bad_ranks(folder: str, cases: list[tuple[dict[str, Any], list[int]]]) -> list[Any]:
    found: list[Any] = []
    for i, (options, bad) in enumerate(cases):
        fail = int(int(os.environ["RANK"]) in bad)
        trainer = make_trainer(f"{folder}/{i}", env_kwargs={"fail": fail}, max_steps=2, **options)
        try:
            trainer.train()
            found.append(logged(trainer, "rollout/failed"))
        except RolloutError as error:
            found.append(str(error))
    return found


def test_ranks_where_every_episode_failed(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{}, {"overlap": True}, {"over_sampling": 0.5}]
    cases = [(options, bad) for options in settings for bad in ([1], [0, 1])]
    message = r"all 16 episodes failed; the first: EnvFailure: the machinery broke \(.*trainer_tools\.py:\d+\)"
    for found in in_ranks(run_with_bad_ranks, 2, str(tmp_path), cases):
        assert found[::2] == [[0.5, 0.5]] * 3
        assert all(re.fullmatch(message, error) for error in found[1::2])


def test_two_ranks(tmp_path: Path, straight: Any) -> None:
    options = {**FAILING, **OPTIMIZERS["sgd"], "per_device_train_batch_size": 8, "micro_batch_size": 3}
    (one, logs), (other, _) = in_ranks(run_rank, 2, str(tmp_path), 2, options)
    assert distance(one, other) == 0.0
    same(straight["sgd"], one)
    assert any(log["rollout/failed"] for log in logs)


# Sixteen episodes per step, shared by two or four ranks.
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {**OPTIMIZERS["adamw"]},
        # Ranks need different numbers of passes, and fill up with empty ones.
        {**OPTIMIZERS["sgd"], "micro_batch_size": None, "micro_batch_tokens": 150},
        {**OPTIMIZERS["adamw"], "micro_batch_size": None, "micro_batch_tokens": 400, "packing": True, "beta": 0.1},
        # Twelve episodes in groups of four: a group straddles the ranks.
        {**OPTIMIZERS["sgd"], "per_device_train_batch_size": 12, "num_generations": 4},
        {**OPTIMIZERS["sgd"], "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
        {**OPTIMIZERS["adamw"], "num_iterations": 2, "scale_rewards": "batch", "env_kwargs": {"fail": 3}},
        {**OPTIMIZERS["sgd"], "beta": 0.1, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
        {**OPTIMIZERS["adamw"], "peft_config": lora(), "gradient_checkpointing": True},
        # Weights by episode and credit over the batch are sums over both ranks, in whatever way rows are shared.
        {
            **OPTIMIZERS["sgd"],
            **SEVERAL_ROWS,
            "loss_normalization": "episode",
            "advantage_estimator": "reinforce_pp_baseline",
        },
        {**OPTIMIZERS["sgd"], "loss_normalization": "constant", "advantage_estimator": "dr_grpo", "learning_rate": 0.3},
    ],
    ids=str,
)
def test_ranks_and_one_process(tmp_path: Path, options: dict[str, Any], processes: int) -> None:
    options = {**FAILING, "per_device_train_batch_size": 16, "micro_batch_size": 3, **options}
    share = {**options, "per_device_train_batch_size": options["per_device_train_batch_size"] // processes}
    (one, logs), *others = in_ranks(run_rank, processes, str(tmp_path / "several"), processes, share)
    assert len(others) == processes - 1 and all(distance(one, other) == 0.0 for other, _ in others)
    trainer = make_trainer(tmp_path / "one", **options)
    before = weights(trainer.model)
    trainer.train()
    assert distance(before, weights(trainer.model)) > MOVED
    assert distance(weights(trainer.model), one) <= TOLERANCE
    history = [log for log in trainer.state.log_history if "reward" in log]
    for mine, theirs in zip(history, logs, strict=True):
        for name in ("reward", "reward_std", "episode/turns", "reward/letters", "rollout/failed", "loss", "grad_norm"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-6), name
