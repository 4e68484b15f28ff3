"""Where TRL knows the same algorithm, its trainer computes the same loss, gradient and advantages.

The loss and the credit are written here and not taken from TRL, since TRL knows no steps and averages in ways that
depend on how rows are cut. Where both mean the same, a stock `trl.GRPOTrainer` gets the same rows in its layout through
its `_compute_loss`, and the same rewards through its `_generate_and_score_completions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from trainer_tools import make_trainer, model_folder  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from agent_gym.trainers.batch import Batch  # noqa: E402
from agent_gym.trainers.estimators.groups import grpo  # noqa: E402
from agent_gym.trainers.losses import loss_weights  # noqa: E402

TOLERANCE = 1e-6
ROWS, LENGTH = 8, 24


def stock_trainer(folder: Path, reward: Any = None, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": ROWS,
        "num_generations": 4,
        "max_completion_length": 4,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "loss_type": "dapo",
    }
    return GRPOTrainer(
        model_folder(),
        reward_funcs=[reward or (lambda completions, **_: [0.0] * len(completions))],
        args=GRPOConfig(str(folder / "stock"), **(settings | options)),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * ROWS),
    )


def make_rows() -> Batch:
    """Rows with one step each, which the world begins, interrupts and, in some rows, ends; the last row is a dummy.

    Old and reference logprobs are off by so much that every clip has something to do.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([LENGTH, 23, 20, 17, 14, 11, 9, 2])[:, None]
    attended = torch.arange(LENGTH) < lengths
    sampled = attended & (torch.rand(ROWS, LENGTH, generator=generator) < 0.7)
    sampled[:, :2] = False
    sampled[:-1, 4] = True
    advantages = torch.randn(ROWS, 1, generator=generator).expand(ROWS, LENGTH) * sampled
    return {
        "input_ids": torch.randint(3, 512, (ROWS, LENGTH), generator=generator) * attended,
        "attention_mask": attended.long(),
        "action_mask": sampled,
        "step_of": sampled.long() - 1,
        "episode_of": torch.tensor([*range(ROWS - 1), -1]),
        "engine_logps": torch.zeros(ROWS, LENGTH),
        "advantages": advantages,
        "noise": 0.4 * torch.randn(2, ROWS, LENGTH, generator=generator),
    }


def in_layout_of_trl(batch: Batch) -> dict[str, Any]:
    """The same rows under TRL's names: a prompt of one token, which nothing predicts, and a completion."""
    renamed = {
        "old_logps": "old_per_token_logps",
        "ref_logps": "ref_per_token_logps",
        "engine_ratio": "importance_sampling_ratio",
    }
    return {
        "prompt_ids": batch["input_ids"][:, :1],
        "prompt_mask": batch["attention_mask"][:, :1],
        "completion_ids": batch["input_ids"][:, 1:],
        "completion_mask": batch["attention_mask"][:, 1:],
        "tool_mask": batch["action_mask"][:, 1:].long(),
        # A number per row, as TRL has it. It is the same on all tokens of the row.
        "advantages": batch["advantages"].abs().max(1).values * batch["advantages"].sum(1).sign(),
        "num_items_in_batch": batch["action_mask"].sum(),
        **{theirs: batch[ours][:, 1:] for ours, theirs in renamed.items() if ours in batch},
    }


def loss_and_gradients(trainer: Any, inputs: Any) -> tuple[float, dict[str, Any]]:
    trainer.model.train()
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def on_both(
    tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any], *, fresh: bool = False, dummy: bool = True
) -> tuple[Any, Any]:
    """Put the rows through both trainers, compare loss and gradients, and return them.

    Args:
        tmp_path: where the trainers may write.
        ours: settings of our trainer.
        theirs: settings of TRL's.
        fresh: whether the policy is still the one that was scored, so that no old logprobs are given.
        dummy: whether the last row, which nothing is trained on, goes along.
    """
    trainer, stock = make_trainer(tmp_path, **ours), stock_trainer(tmp_path, **theirs)
    batch = {name: value if dummy or name == "noise" else value[:-1] for name, value in make_rows().items()}
    with torch.no_grad():
        logps = trainer._forward(trainer.model, batch).logps
    mask, by = batch["action_mask"], trainer.args.loss_normalization
    off, off_reference = batch.pop("noise")[:, : len(mask)] * mask
    total = trainer.args.rollout_tokens
    batch["weights"] = loss_weights(mask, batch["step_of"], batch["episode_of"], by, constant=total)
    if not fresh:
        batch["old_logps"] = logps + off
    if trainer.beta:
        batch["ref_logps"] = logps + off_reference
    inputs = in_layout_of_trl(batch)
    if ours.get("vllm_importance_sampling_mode") == "in_ratio":
        batch["engine_logps"] = batch.pop("old_logps")
    elif ours.get("use_vllm"):
        batch["engine_logps"] = logps - off
        stock.use_vllm = True  # after its engine would have been built
        ratio = off.exp().clamp(max=stock.vllm_importance_sampling_clip_max)
        inputs["importance_sampling_ratio"] = ratio[:, 1:]
    loss, gradients = loss_and_gradients(trainer, batch)
    expected, expected_gradients = loss_and_gradients(stock, inputs)
    assert abs(expected) > 1e-4
    assert loss == pytest.approx(expected, abs=TOLERANCE)
    assert gradients.keys() == expected_gradients.keys()
    assert max(gradient.abs().max().item() for gradient in expected_gradients.values()) > 1e-3
    for name, gradient in gradients.items():
        assert (gradient - expected_gradients[name]).abs().max() < TOLERANCE, name
    return trainer, stock


K3 = {"beta": 0.1, "use_bias_correction_kl": False}
SAME: dict[str, dict[str, Any]] = {
    "as it is": {},
    "dual clip": {"epsilon_high": 0.28, "delta": 1.5},
    "everything": {"epsilon_high": 0.28, "delta": 1.5, "beta": 0.1, "entropy_coef": 0.1, "temperature": 0.7},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    # Above one, where the cap has something to do.
    "cispo, capped": {"loss_type": "cispo", "epsilon_high": 1.2, **K3},
    "sequence": {"importance_sampling_level": "sequence", "epsilon": 0.01},
    "sequence, dual clip": {
        "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.04, "delta": 1.05,
    },
    # Two rollouts in four micro-steps, of which these rows are one: half of a rollout, a quarter of the update.
    "a part of a rollout": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
}  # fmt: skip


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
def test_trl_computes_the_same_loss(tmp_path: Path, options: dict[str, Any]) -> None:
    on_both(tmp_path, options, options)


def test_the_engines_logprobs_are_the_old_ones_of_trl(tmp_path: Path) -> None:
    options = {"epsilon_high": 0.28, "delta": 1.5, "importance_sampling_level": "sequence"}
    on_both(tmp_path, {"use_vllm": True, "vllm_importance_sampling_mode": "in_ratio", **options}, options)


def test_trl_computes_the_same_loss_before_the_first_update(tmp_path: Path) -> None:
    on_both(tmp_path, {"beta": 0.1}, {"beta": 0.1}, fresh=True)
    options = {"vllm_importance_sampling_clip_max": 1.2, "vllm_importance_sampling_mode": "token_truncate"}
    on_both(tmp_path, {"use_vllm": True, **options}, options, fresh=True)


STEP = {"importance_sampling_level": "step", "epsilon": 0.01}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        # A row of one step is a sequence; a step has no name in TRL.
        (STEP, STEP | {"importance_sampling_level": "sequence"}),
        # TRL's mean is over all rows of the batch, a dummy included, and ours over those that are trained on.
        *(({"loss_normalization": by}, {"loss_type": "grpo"}) for by in ("sequence", "step", "episode")),
        # TRL divides by rows x max_completion_length, whatever the rows hold.
        *(
            (
                {"loss_normalization": "constant", "max_episode_tokens": 60, "gradient_accumulation_steps": steps},
                {"loss_type": "dr_grpo", "max_completion_length": 60, "gradient_accumulation_steps": steps},
            )
            for steps in (1, 2)
        ),
    ],
    ids=str,
)
def test_what_trl_calls_otherwise(tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    on_both(tmp_path, ours, theirs, dummy=theirs.get("loss_type") != "grpo")


def test_trl_computes_the_same_loss_with_kl_and_logs_the_same_numbers(tmp_path: Path) -> None:
    options = {"epsilon_high": 0.28, **K3}
    trainer, stock = on_both(tmp_path, options, options)
    ours = trainer._means.pop(trainer.accelerator)
    assert set(ours) == {"kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
    for name, value in ours.items():
        assert 0.0 < value == pytest.approx(stock._metrics["train"][name][-1], abs=TOLERANCE), name


@pytest.mark.parametrize("failed", [(), (0, 1, 2, 5)], ids=str)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_trl_computes_the_same_group_advantages(tmp_path: Path, scale: str, failed: tuple[int, ...]) -> None:
    # What could not be scored is None in TRL and absent here.
    returns = [1.0, 0.0, 0.0, 0.3, 3.0, -2.0, 0.7, 0.7]
    scored = [None if i in failed else value for i, value in enumerate(returns)]
    stock = stock_trainer(tmp_path, reward=lambda completions, **_: scored, scale_rewards=scale)
    stock.model.train()
    theirs = stock._generate_and_score_completions([{"prompt": "x"}] * ROWS)["advantages"]
    kept = [i for i, value in enumerate(scored) if value is not None]
    ours = torch.zeros(ROWS)
    ours[kept] = grpo(torch.tensor(returns)[kept], torch.tensor(kept) // 4, scale)
    assert theirs.abs().max() > 0.1
    assert torch.allclose(ours, theirs, atol=TOLERANCE)
