"""With a critic and with rewritten contexts too: how the work is cut, shared out or interrupted changes no weight.

The companion of test_grpo_equivalence.py, on the settings where rows and episodes are not the same thing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from test_grpo_equivalence import run_rank, start  # noqa: E402
from trainer_tools import ENV, SGD, RandomPolicy, distance, in_ranks, lora, make_trainer, train, weights  # noqa: E402

from agent_gym.trainers import task_dataset  # noqa: E402

TOLERANCE = 1e-6
CRITIC_SGD: dict[str, Any] = {**SGD, "critic_learning_rate": 1e-2}
ADAMW: dict[str, Any] = {"learning_rate": 2e-4, "critic_learning_rate": 2e-4, "adam_epsilon": 1e-5}
PPO: dict[str, Any] = {"ppo": True, "lam": 0.9, "gamma": 0.99, "step_lam": 0.8, "step_gamma": 0.95}
STEP = {"advantage_estimator": "step_gae", "importance_sampling_level": "step", "loss_normalization": "step"}
SETTINGS: dict[str, dict[str, Any]] = {
    "gae": {**PPO, **CRITIC_SGD},
    "gae, window": {**PPO, **ADAMW, "context": "window:1"},
    "head, rebuild": {
        **PPO, **CRITIC_SGD, "critic": "head", "context": "rebuild",
        "loss_normalization": "episode",
    },
    "StepPO, window": {**PPO, **ADAMW, **STEP, "context": "window:1"},
    "bi-level, KL in the reward": {
        **PPO, **CRITIC_SGD, "advantage_estimator": "bilevel_gae", "beta": 0.1, "kl_in": "reward",
        "context": "window:1",
    },
    "grpo, window": {**SGD, "num_generations": 4, "context": "window:1"},
    "gigpo, rebuild, StarPO-S": {
        **SGD, "num_generations": 4, "context": "rebuild", "advantage_estimator": "gigpo", "keep_groups": 0.5,
        "loss_normalization": "step",
    },
    "grpo, refills": {**SGD, "num_generations": 4, "max_refills": 2},
}  # fmt: skip
COMMON: dict[str, Any] = {"per_device_train_batch_size": 16, "env_kwargs": {"fail": 7}, "max_steps": 3}


def moved(found: dict[str, Any]) -> float:
    return distance(start(), {name: value for name, value in found.items() if not name.startswith("critic.")})


@pytest.mark.parametrize("name", SETTINGS)
def test_micro_batches(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path, **COMMON, **SETTINGS[name])
    assert moved(whole) > 1e-4
    cut = {"micro_batch_tokens": 150} if "window" in name else {"micro_batch_size": 3}
    assert distance(whole, train(tmp_path, **COMMON, **SETTINGS[name], **cut)) <= TOLERANCE


@pytest.mark.parametrize("name", ["gae, window", "StepPO, window", "grpo, window"])
def test_accumulation(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path, **COMMON, **SETTINGS[name])
    halves = {**COMMON, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    assert distance(whole, train(tmp_path, **halves, **SETTINGS[name], minibatch_by="episodes")) <= TOLERANCE


ROWS: dict[str, Any] = {"micro_batch_size": 3}
TOKENS: dict[str, Any] = {"micro_batch_tokens": 150}
PACKED: dict[str, Any] = {**TOKENS, "packing": True}


def compare(folder: Path, name: str, processes: int, cut: dict[str, Any]) -> None:
    options = {**COMMON, **SETTINGS[name]}
    share = {**options, "per_device_train_batch_size": 16 // processes, **cut}
    (one, logs), *others = in_ranks(run_rank, processes, str(folder / "several"), processes, share)
    assert len(others) == processes - 1 and all(distance(one, other) == 0.0 for other, _ in others)
    trainer = make_trainer(folder / "one", **options)
    trainer.train()
    assert distance(one, weights(trainer.model)) <= TOLERANCE
    assert moved(one) > 1e-4
    for mine, theirs in zip([log for log in trainer.state.log_history if "reward" in log], logs, strict=True):
        for key in mine:
            if not key.startswith(("time/", "step_time", "rollout/tokens_per_s", "rollout/repeated")):
                assert theirs[key] == pytest.approx(mine[key], rel=1e-4, abs=1e-5), key


def test_two_ranks_with_a_critic_and_a_window(tmp_path: Path) -> None:
    compare(tmp_path, "gae, window", 2, TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "gae, window"])
def test_two_ranks(tmp_path: Path, name: str) -> None:
    compare(tmp_path, name, 2, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [ROWS, TOKENS, PACKED], ids=str)
@pytest.mark.parametrize("name", ["gae, window", "head, rebuild", "gigpo, rebuild, StarPO-S"])
def test_four_ranks(tmp_path: Path, name: str, cut: dict[str, Any]) -> None:
    compare(tmp_path, name, 4, cut)


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_run_taken_up_again_equals_the_straight_one(tmp_path: Path, kind: str, adapter: bool) -> None:
    def build(folder: str, steps: int) -> Any:
        return make_trainer(
            tmp_path / folder,
            **{**PPO, **ADAMW, "critic": kind, "critic_warmup_steps": 1, "micro_batch_size": 3},
            peft_config=lora() if adapter else None,
            # Six tasks and two per step: an epoch has three steps, and the restart is in the second.
            train_dataset=task_dataset(ENV, tasks=24),
            lr_scheduler_type="cosine",
            max_steps=8,
            save_strategy="steps",
            save_steps=4,
            policy=RandomPolicy(),
        )

    straight = build("straight", 8)
    straight.train()
    shutil.copytree(tmp_path / "straight" / "checkpoint-4", tmp_path / "again" / "checkpoint-4")
    again = build("again", 8)
    again.train(resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-4"))
    assert again.state.global_step == 8
    assert distance(weights(straight.model), weights(again.model)) == 0.0


def test_minibatches_of_whole_episodes(tmp_path: Path) -> None:
    options = {**COMMON, **SETTINGS["gae, window"], "per_device_train_batch_size": 4, "steps_per_generation": 4}
    for by in ("rows", "episodes"):
        trainer = make_trainer(tmp_path, **options, minibatch_by=by)
        seen = []
        prepare = trainer._prepare_inputs
        trainer._prepare_inputs = lambda inputs, seen=seen, prepare=prepare: seen.append(prepare(inputs)) or seen[-1]
        trainer.max_steps = trainer.args.max_steps = 4
        trainer.train()
        held = [{int(i) for i in minibatch["episode_of"] if i >= 0} for minibatch in seen[:4]]
        split = any(a & b for i, a in enumerate(held) for b in held[:i])
        assert split == (by == "rows")
        assert set().union(*held) == set(range(len(set().union(*held))))
        # However they are cut, the minibatches of a rollout weigh as much as the rollout.
        assert sum(minibatch["weights"].sum().item() for minibatch in seen[:4]) == pytest.approx(1.0)


@pytest.mark.parametrize("context", ["budget:170", "summarize:560"])
def test_the_bound_of_a_context_holds_in_training(tmp_path: Path, context: str) -> None:
    bound = int(context.partition(":")[2])
    options = {"env_kwargs": {"patient": True, "max_turns": 24}, "max_episode_tokens": 999, "max_steps": 1}
    trainer = make_trainer(tmp_path, **PPO, **CRITIC_SGD, **options, context=context)
    trainer.train()
    batch = trainer._generated
    assert batch["attention_mask"].sum(1).max() <= bound
    assert (batch["episode_of"] >= 0).sum() > 8  # contexts were rewritten
