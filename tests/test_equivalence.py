"""How the work is cut, shared out or interrupted must not change what is learned.

The policy answers from seeds alone, so every run sees the same episodes, and weights may differ by rounding only. Two
optimizers, because SGD shows a wrong scale of the gradient, which AdamW divides away, and AdamW shows wrong directions
of small gradients, which SGD hides.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from test_continuous import SERVER  # noqa: E402
from trainer_tools import (  # noqa: E402
    ENV,
    SGD,
    RandomPolicy,
    distance,
    in_ranks,
    logged,
    lora,
    make_trainer,
    mixture_of_experts,
    model_folder,
    train,
    weights,
)
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

TOLERANCE = 1e-6
# With its default of 1e-8 AdamW turns rounding errors of vanishing gradients into steps of their full size.
ADAMW: dict[str, Any] = {"learning_rate": 2e-4, "adam_epsilon": 1e-5}
COMMON: dict[str, Any] = {"per_device_train_batch_size": 16, "env_kwargs": {"fail": 7}}
# The third turn has a context of its own: episodes of two rows, which no piece need hold together.
SEVERAL_ROWS: dict[str, Any] = {"context": "window:1", "env_kwargs": {"patient": True}, "max_turns": 3}
GAE: dict[str, Any] = {"ppo": True, "lam": 0.9, "gamma": 0.99, "step_lam": 0.8, "step_gamma": 0.95}
PPO: dict[str, Any] = {**GAE, **SGD, "critic_learning_rate": 1e-2}
PPO_ADAMW: dict[str, Any] = {**GAE, **ADAMW, "critic_learning_rate": 2e-4}
TWICE = {**SGD, "num_iterations": 2}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": SGD,
    "kl, two minibatches": {**TWICE, "steps_per_generation": 2, "per_device_train_batch_size": 8, "beta": 0.1},
    # Two rollouts of 8 episodes each per update: the weights of each sum to 1, whatever the pieces.
    "two rollouts": {
        **TWICE, "gradient_accumulation_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4,
    },
    "cispo": {**TWICE, "loss_type": "cispo", "epsilon_high": 5.0, "entropy_coef": 0.05},
    "raft": {**TWICE, "advantage_estimator": "raft"},
    "sequence": {**TWICE, "importance_sampling_level": "sequence", "loss_normalization": "sequence", "delta": 2.0},
    # Few tokens of the budget are used, so that the gradient is small.
    "constant": {
        **TWICE, "loss_normalization": "constant", "advantage_estimator": "dr_grpo", "learning_rate": 0.3,
    },
    "episode": {
        **TWICE, **SEVERAL_ROWS, "loss_normalization": "episode", "advantage_estimator": "reinforce_pp_baseline",
    },
    "several minibatches": {
        **TWICE, **SEVERAL_ROWS, "steps_per_generation": 2, "per_device_train_batch_size": 8,
    },
    "gigpo, rebuild, StarPO-S": {
        **SGD, "context": "rebuild", "advantage_estimator": "gigpo", "keep_groups": 0.5, "loss_normalization": "step",
    },
    "refills": {**SGD, "max_refills": 2},
    "gae, window": {**PPO_ADAMW, "context": "window:1"},
    "head, rebuild": {**PPO, "critic": "head", "context": "rebuild", "loss_normalization": "episode"},
    "StepPO, window": {
        **PPO_ADAMW, "advantage_estimator": "step_gae", "importance_sampling_level": "step",
        "loss_normalization": "step", "context": "window:1",
    },
    "bi-level, KL in the reward": {
        **PPO, "advantage_estimator": "bilevel_gae", "beta": 0.1, "kl_in": "reward", "context": "window:1",
    },
}  # fmt: skip


def same(one: Any, other: Any) -> None:
    start = weights(AutoModelForCausalLM.from_pretrained(model_folder()))
    assert distance(start, {name: one[name] for name in start}) > 1e-4, "the run has hardly moved the weights"
    assert distance(one, other) <= TOLERANCE


QUICK = ("grpo", "two rollouts", "several minibatches", "gigpo, rebuild, StarPO-S", "gae, window", "head, rebuild")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RUNS])
def test_micro_batches(tmp_path: Path, name: str) -> None:
    options = {**COMMON, **RUNS[name]}
    cut = {"micro_batch_tokens": 150} if "window" in name or "kl" in name else {"micro_batch_size": 3}
    same(train(tmp_path, **options), train(tmp_path, **options, **cut))


@pytest.mark.slow
def test_accumulation_adamw_and_gradient_checkpointing(tmp_path: Path) -> None:
    straight = train(tmp_path, **COMMON, **ADAMW)
    same(straight, train(tmp_path, **COMMON, **ADAMW, gradient_checkpointing=True))
    for steps in (2, 4):
        split = {"per_device_train_batch_size": 16 // steps, "gradient_accumulation_steps": steps}
        same(straight, train(tmp_path, **{**COMMON, **split}, **ADAMW, micro_batch_size=3))
    halves = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    window = {**COMMON, **RUNS["StepPO, window"]}
    same(train(tmp_path, **window), train(tmp_path, **{**window, **halves}))


def test_a_mixture_of_experts_balances_its_load_once_per_step(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(mixture_of_experts(tmp_path / "model"), dtype=torch.float32)
    model.config.output_router_logits, model.config.router_aux_loss_coef = True, 10.0

    def gradient(micro_batch_size: int) -> Any:
        model.zero_grad()
        trainer = make_trainer(tmp_path, model=model, per_device_train_batch_size=4, micro_batch_size=micro_batch_size)
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
        return {name: p.grad.numpy().copy() for name, p in trainer.model.named_parameters() if p.grad is not None}

    whole, cut = gradient(4), gradient(1)
    assert max(abs(value).max() for name, value in whole.items() if "gate.weight" in name) > 1e-2
    assert distance(whole, cut) < 1e-5


def test_the_minibatches_of_a_rollout_divide_its_rows(tmp_path: Path) -> None:
    options = {**COMMON, **RUNS["gae, window"], "per_device_train_batch_size": 4, "steps_per_generation": 4}
    trainer = make_trainer(tmp_path, **options, max_steps=4)
    seen: list[Any] = []
    prepare = trainer._prepare_inputs
    trainer._prepare_inputs = lambda inputs: seen.append(prepare(inputs)) or seen[-1]
    trainer.train()
    owners = [int(i) for minibatch in seen for i in minibatch["episode_of"] if i >= 0]
    assert sorted(owners) == sorted(int(i) for i in trainer._generated["episode_of"] if i >= 0)
    # However they are cut, the minibatches of a rollout weigh as much as the rollout.
    assert sum(minibatch["weights"].sum().item() for minibatch in seen) == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "adapter"), [("model", None), ("head", lora())], ids=["model", "head, lora"])
def test_a_run_taken_up_again_equals_the_straight_one(tmp_path: Path, kind: str, adapter: Any) -> None:
    def build(folder: str) -> Any:
        return make_trainer(
            tmp_path / folder,
            **{**PPO_ADAMW, "critic": kind, "critic_warmup_steps": 1, "micro_batch_size": 3},
            peft_config=adapter,
            # 24 tasks and eight per step: an epoch has three steps, and the restart is in the second.
            train_dataset=task_dataset(ENV, tasks=24),
            lr_scheduler_type="cosine",
            max_steps=8,
            save_strategy="steps",
            save_steps=4,
            policy=RandomPolicy(),
        )

    straight, again = build("straight"), build("again")
    straight.train()
    shutil.copytree(tmp_path / "straight" / "checkpoint-4", tmp_path / "again" / "checkpoint-4")
    again.train(resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-4"))
    assert again.state.global_step == 8
    assert distance(weights(straight.model), weights(again.model)) == 0.0


# Several processes.


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


@pytest.mark.slow
def test_ranks_where_every_episode_failed(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{}, {"max_staleness": 1}, {"max_staleness": 1, **SERVER}]
    cases = [(options, bad) for options in settings for bad in ([1], [0, 1])]
    message = r"all 16 episodes failed; the first: EnvFailure: the machinery broke \(.*trainer_tools\.py:\d+\)"
    for found in in_ranks(run_with_bad_ranks, 2, str(tmp_path), cases):
        assert found[::2] == [[0.5, 0.5]] * 3
        assert all(re.fullmatch(message, error) for error in found[1::2])


def run_rank(folder: str, processes: int, options: dict[str, Any]) -> Any:
    trainer = make_trainer(folder, **options)
    assert trainer.accelerator.num_processes == processes
    trainer.train()
    return weights(trainer.model), [log for log in trainer.state.log_history if "reward" in log]


def compare(folder: Path, options: dict[str, Any], processes: int, cut: dict[str, Any]) -> None:
    """Train in one process and in several, of which each has its share of the batch, and compare weights and logs."""
    options = {**COMMON, **options}
    share = {**options, **cut, "per_device_train_batch_size": options["per_device_train_batch_size"] // processes}
    (one, logs), *others = in_ranks(run_rank, processes, str(folder / "several"), processes, share)
    assert len(others) == processes - 1 and all(distance(one, other) == 0.0 for other, _ in others)
    trainer = make_trainer(folder / "one", **options)
    before = weights(trainer.model)
    trainer.train()
    assert distance(before, one) > 1e-4 and distance(one, weights(trainer.model)) <= TOLERANCE
    for mine, theirs in zip([log for log in trainer.state.log_history if "reward" in log], logs, strict=True):
        for key in mine:
            if not key.startswith(
                ("time/", "perf/", "step_time", "rollout/tokens_per_s", "rollout/repeated", "update/")
            ):
                assert theirs[key] == pytest.approx(mine[key], rel=1e-4, abs=1e-5), key


ROWS: dict[str, Any] = {"micro_batch_size": 3}
# Ranks need different numbers of passes, and fill up with empty ones.
TOKENS: dict[str, Any] = {"micro_batch_tokens": 150}
PACKED: dict[str, Any] = {**TOKENS, "packing": True}
SHARED: dict[str, dict[str, Any]] = {
    # Twelve episodes in groups of four: a group straddles the ranks.
    "straddling": {**SGD, "per_device_train_batch_size": 12},
    "accumulation": {
        **SGD, "beta": 0.1, "gradient_accumulation_steps": 2, "steps_per_generation": 1,
        "per_device_train_batch_size": 8,
    },
    "many failures": {**ADAMW, "num_iterations": 2, "scale_rewards": "batch", "env_kwargs": {"fail": 3}},
    "lora": {**ADAMW, "peft_config": lora(), "gradient_checkpointing": True},
    **RUNS,
}  # fmt: skip


@pytest.mark.parametrize(("name", "cut"), [("grpo", ROWS), ("gae, window", TOKENS)])
def test_two_ranks(tmp_path: Path, name: str, cut: dict[str, Any]) -> None:
    compare(tmp_path, RUNS[name], 2, cut)


# Each rank divides its own rows into minibatches at random, so that two of them are not those of one process.
ALONE = ("kl, two minibatches", "episodes as minibatches", "two rollouts")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHARED if name not in ("grpo", "gae, window", *ALONE)])
def test_two_ranks_with_other_settings(tmp_path: Path, name: str) -> None:
    compare(tmp_path, SHARED[name], 2, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cut"),
    [("straddling", ROWS), ("grpo", PACKED), ("gae, window", PACKED), ("head, rebuild", TOKENS), ("constant", ROWS)],
)
def test_four_ranks(tmp_path: Path, name: str, cut: dict[str, Any]) -> None:
    compare(tmp_path, SHARED[name], 4, cut)
