"""What the trainers lean on inside TRL, transformers and accelerate, written down.

The trainers override private methods and set private fields, so that a release which moves one of them would not fail:
it would train something else. Each test names what moved. After a change of the pins, go through the failures here
before anything else, then run the equivalence tests.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
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
from accelerate.state import GradientState  # noqa: E402
from trainer_tools import make_trainer, settings  # noqa: E402
from trl.trainer import utils  # noqa: E402

from agent_gym.trainers.config import ADDITIVE_LOSSES  # noqa: E402
from agent_gym.trainers.grpo import AgentGRPOTrainer  # noqa: E402

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
}  # fmt: skip
"""Methods that are replaced, and how TRL and transformers call them."""

CALLED = {
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "compute_loss_context_manager": ["self"],
    "_get_eval_sampler": ["self", "eval_dataset"],
    "log": ["self", "logs", "start_time"],
    "evaluate": ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"],
}

REQUIRED_INPUTS = {
    "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch",
    "ref_per_token_logps", "importance_sampling_ratio", "tool_mask",
}  # fmt: skip
OPTIONAL_INPUTS = {
    "old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio", "pixel_values", "image_grid_thw",
    "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids",
    "mm_token_type_ids", "image_position_ids",
}  # fmt: skip
"""Names that the loss looks up in a batch: by subscript, and with `get`."""

FIELDS = {
    "_metrics": dict, "_logs": dict, "_step": int, "_buffered_inputs": type(None), "_current_train_step_time": float,
    "_tokenizer": object, "accelerator": Accelerator, "model": object, "ref_model": type(None), "beta": float,
    "num_generations": int, "num_generations_eval": int, "num_iterations": int, "scale_rewards": str,
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


def loss_source() -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(STOCK._compute_loss)))


def test_the_installed_versions_are_the_pinned_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(pin.split("==") for pin in project["optional-dependencies"]["train"] if "==" in pin)
    assert pins["trl"] == "1.16.0", "a new pin of trl: go through this file, then run the slow tests"
    for name in ("trl", "transformers", "accelerate", "peft"):
        found = version(name).partition("+")[0]
        assert found == pins[name], f"{name} {found} is installed, pyproject.toml pins {pins[name]}"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_is_still_called_the_same_way(name: str) -> None:
    method = getattr(STOCK, name, None)
    assert method is not None, f"trl.GRPOTrainer.{name} is gone; nothing calls the override in trainers/ any more"
    found, expected = parameters(method), OVERRIDDEN[name]
    assert found == expected, moved(f"the signature of GRPOTrainer.{name}", found, expected)
    ours = parameters(getattr(AgentGRPOTrainer, name))
    assert ours == expected, f"AgentGRPOTrainer.{name} takes {ours}, TRL passes {expected}"


@pytest.mark.parametrize("name", CALLED)
def test_a_called_method_takes_the_same_arguments(name: str) -> None:
    method = getattr(STOCK, name, None)
    assert method is not None, f"trl.GRPOTrainer.{name} is gone"
    found = parameters(inspect.unwrap(method))
    assert found == CALLED[name], moved(f"the signature of GRPOTrainer.{name}", found, CALLED[name])


def test_logprobs_are_asked_for_as_the_override_expects() -> None:
    method = inspect.unwrap(STOCK._get_per_token_logps_and_entropies)
    expected = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    expected += ["compute_aux_loss"]
    assert parameters(method)[:8] == expected, moved("the head of its signature", parameters(method)[:8], expected)
    calls = [
        node
        for node in ast.walk(loss_source())
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_get_per_token_logps_and_entropies"
    ]
    assert len(calls) == 1, moved("the number of scoring passes in the loss", len(calls), 1)
    assert [getattr(argument, "id", "?") for argument in calls[0].args] == expected[1:5]
    keywords = {keyword.arg for keyword in calls[0].keywords}
    about_tokens = {"old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"}
    known = {"compute_entropy", "compute_aux_loss"} | OPTIONAL_INPUTS - about_tokens
    assert keywords == known, moved("what the loss hands to its scoring pass", keywords, known)


def test_the_loss_reads_the_batch_names_that_are_known_here() -> None:
    required, optional = set(), set()
    for node in ast.walk(loss_source()):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "inputs":
            required.add(ast.literal_eval(node.slice))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if getattr(node.func.value, "id", "") == "inputs":
                optional.add(ast.literal_eval(node.args[0]))
    assert required == REQUIRED_INPUTS, moved("what the loss demands", required, REQUIRED_INPUTS)
    assert optional == OPTIONAL_INPUTS, moved("what the loss takes if it is there", optional, OPTIONAL_INPUTS)


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


def test_additive_losses_are_divided_by_the_tokens_of_the_whole_batch() -> None:
    source = inspect.getsource(STOCK._compute_loss)
    branch = source[source.index('elif self.loss_type in ["cispo", "dapo", "vespo"]:') :]
    branch = " ".join(branch[: branch.index("elif", 10)].split())
    for piece in (
        'inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        "normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        "loss = (per_token_loss * mask).sum() / normalizer",
    ):
        assert piece in branch, f"the normaliser of {ADDITIVE_LOSSES} has changed: {branch}"


def test_advantages_may_be_given_per_token() -> None:
    assert "if advantages.dim() == 1:" in inspect.getsource(STOCK._compute_loss), "(B, T) advantages are not foreseen"


def test_the_fused_output_layer_takes_labels_and_names_its_results() -> None:
    found = parameters(utils.add_fused_lm_head)
    assert found == ["model", "temperature", "cast_lm_head_to_fp32", "outputs"], moved("add_fused_lm_head", found, "4")
    assert {"log_probs", "entropy", "aux_loss"} <= set(utils.FusedCausalLMOutput.__dataclass_fields__)
    assert parameters(utils.use_adapter) == ["model", "adapter_name"]


def test_transformers_drives_the_step_as_the_override_expects() -> None:
    source = inspect.getsource(transformers.Trainer._run_epoch)
    for piece in (
        "self.training_step(model, inputs, num_items_in_batch)",
        "self.accelerator.gradient_state._set_sync_gradients(do_sync_step)",
        "self.current_gradient_accumulation_steps = len(batch_samples)",
        "self.state.global_step += 1",
    ):
        assert piece in source, f"transformers {transformers.__version__}: _run_epoch no longer has: {piece}"
    assert parameters(GradientState._set_sync_gradients) == ["self", "sync_gradients"]


def test_trl_resolves_the_generation_batch_as_the_settings_expect(tmp_path: Path) -> None:
    args = settings(tmp_path, gradient_accumulation_steps=4, steps_per_generation=2)
    assert (args.generation_batch_size, args.chunks, args.batch_tasks) == (16, 2, 4)
    args = settings(tmp_path, gradient_accumulation_steps=4)
    assert (args.generation_batch_size, args.chunks, args.batch_tasks) == (32, 4, 8)
