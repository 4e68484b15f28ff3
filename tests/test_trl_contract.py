"""What the trainers lean on inside TRL, transformers and accelerate, written down.

The trainers override private methods and set private fields, so that a release which moves one of them would not fail:
it would train something else. Each test names what moved. After a change of the pins, go through the failures here
before anything else, then run the equivalence tests.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import transformers  # noqa: E402
import trl  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from packaging.requirements import Requirement  # noqa: E402
from trainer_tools import make_trainer  # noqa: E402
from trl.trainer import utils  # noqa: E402

from agent_gym.trainers.grpo import AgentGRPOTrainer  # noqa: E402
from agent_gym.trainers.ppo import AgentPPOTrainer  # noqa: E402

ROOT = Path(__file__).parents[1]
STOCK = trl.GRPOTrainer

OVERRIDDEN = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_prepare_inputs": ["self", "generation_batch"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "_compute_loss": ["self", "model", "inputs"],
    "evaluation_loop": [
        "self", "dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"
    ],
    "_get_train_sampler": ["self", "dataset"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_get_output_dir": ["self", "trial"],
    "_save_optimizer_and_scheduler": ["self", "output_dir"],
    "_save": ["self", "output_dir", "state_dict"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_determine_best_metric": ["self", "metrics", "trial"],
}  # fmt: skip
"""Methods that are replaced, and how TRL and transformers call them."""

OVERRIDDEN_WITH_A_CRITIC = {
    "create_optimizer": ["self", "model"],
    "_clip_grad_norm": ["self", "model"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_best_model": ["self"],
}
"""The same for the trainer with a critic."""

CALLED = {
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "compute_loss_context_manager": ["self"],
    "_get_eval_sampler": ["self", "eval_dataset"],
    "log": ["self", "logs", "start_time"],
    "evaluate": ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"],
}

FIELDS = {
    "_metrics": dict, "_logs": dict, "_step": int, "_buffered_inputs": type(None), "_current_train_step_time": float,
    "_tokenizer": object, "accelerator": Accelerator, "model": object, "ref_model": type(None), "beta": float,
    "epsilon_low": float, "epsilon_high": float, "aux_loss_enabled": bool, "router_aux_loss_coef": float,
    "eos_token_ids": list, "is_fsdp_enabled": bool, "optimizer": type(None),
    "num_generations": int, "num_generations_eval": int, "num_iterations": int,
    "shuffle_dataset": bool, "temperature": float, "use_vllm": bool, "vllm_importance_sampling_correction": bool,
    "vllm_importance_sampling_mode": str, "vllm_importance_sampling_clip_max": float,
    "vllm_importance_sampling_clip_min": type(None), "log_completions": bool, "is_deepspeed_enabled": bool,
    "loss_is_scaled_for_ga": bool, "state": transformers.TrainerState,
}  # fmt: skip
"""Fields of a fresh stock trainer that ours reads or writes."""


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def moved(what: str, found: Any, expected: Any) -> str:
    return f"{what} is {found} in trl {trl.__version__}; trainers/ was written for {expected}"


def test_the_installed_versions_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in map(Requirement, project["optional-dependencies"]["train"]):
        if wanted.name in ("torch", "transformers", "trl"):
            found = version(wanted.name)
            assert wanted.specifier.contains(found), f"{wanted.name} {found} is installed; pyproject.toml has {wanted}"
    held = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert held["trl"] == "1.16.0", "a new version of trl: go through this file, then run the slow tests"


@pytest.mark.parametrize("name", [*OVERRIDDEN, *OVERRIDDEN_WITH_A_CRITIC, *CALLED])
def test_a_method_has_the_same_arguments(name: str) -> None:
    method, expected = getattr(STOCK, name), {**OVERRIDDEN, **OVERRIDDEN_WITH_A_CRITIC, **CALLED}[name]
    found = parameters(inspect.unwrap(method))
    assert found == expected, moved(f"the signature of GRPOTrainer.{name}", found, expected)
    if name not in CALLED:
        ours = AgentGRPOTrainer if name in OVERRIDDEN else AgentPPOTrainer
        assert getattr(ours, name) is not method
        assert parameters(getattr(ours, name)) == expected, f"{ours.__name__}.{name} does not take what TRL passes"


def test_the_fields_of_a_stock_trainer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    for name, kind in FIELDS.items():
        assert hasattr(trainer, name), f"GRPOTrainer.{name} is gone in trl {trl.__version__}"
        value = getattr(trainer, name)
        assert isinstance(value, kind), moved(f"GRPOTrainer.{name}", type(value).__name__, kind.__name__)
    assert trainer._step == 0
    assert set(trainer._metrics) == {"train", "eval"}
    assert set(trainer._logs) >= {"prompt", "completion", "rewards", "advantages"}
    # Otherwise transformers would divide the loss by the accumulation steps once more.
    assert trainer.loss_is_scaled_for_ga is True
    assert trainer.accelerator.gradient_accumulation_steps == 1


def test_the_fused_output_layer_takes_labels_and_names_its_results() -> None:
    found = parameters(utils.add_fused_lm_head)
    assert found == ["model", "temperature", "cast_lm_head_to_fp32", "outputs"], moved("add_fused_lm_head", found, "4")
    assert {"log_probs", "entropy", "aux_loss"} <= set(utils.FusedCausalLMOutput.__dataclass_fields__)
    assert parameters(utils.use_adapter) == ["model", "adapter_name"]
