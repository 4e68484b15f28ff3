"""The two trainers of gpu.py, with the same settings, each with a list that says what its rollouts took."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _rollout_sides import ENV_ID, STEPS, StockEnvironment
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from agent_gym.policies.vllm import engine_arguments

GROUP = 8
PROMPT = 128  # tokens that prompt and answers of the world take at most


@dataclass
class Rollout:
    """Seconds from handing over the weights to the last token, and sampled tokens."""

    seconds: float
    tokens: int


class Clock(TrainerCallback):
    """Notes the seconds of each optimizer step."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_step_begin(self, *arguments: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
        self.steps.append(time.perf_counter() - self._began)


def settings(options: Namespace) -> dict[str, Any]:
    """What both trainers are given."""
    on_cpu = options.device == "cpu"
    return {
        "max_steps": options.steps + 1,
        "per_device_train_batch_size": GROUP,
        "gradient_accumulation_steps": options.episodes // GROUP,
        "num_generations": GROUP,
        "learning_rate": 1e-6,
        "bf16": not on_cpu,
        "use_cpu": on_cpu,
        "gradient_checkpointing": not on_cpu,
        "use_vllm": True,
        "vllm_max_model_length": context(options),
        "vllm_gpu_memory_utilization": 0.4,
        "vllm_enable_sleep_mode": not on_cpu,
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
    }


def context(options: Namespace) -> int:
    """Tokens of the longest episode, rounded up."""
    return -(-(STEPS * (options.turn + PROMPT) + PROMPT) // 64) * 64


def make_ours(options: Namespace) -> tuple[Any, list[Rollout]]:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    model = str(Path(options.folder, "model"))
    args = AgentGRPOConfig(
        str(Path(options.folder, "ours")),
        max_turn_tokens=options.turn,
        max_episode_tokens=context(options),
        trajectories_per_step=0,
        **settings(options),
    )
    trainer = AgentGRPOTrainer(
        model,
        ENV_ID,
        args,
        train_dataset=task_dataset(ENV_ID, {"latency": 0.0}, tasks=1024),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.runner.policy._eos_token_ids = []  # only the length ends a turn
    play, rollouts = trainer.rollout, []

    def rollout(*arguments: Any) -> Any:
        began = time.perf_counter()
        episodes = play(*arguments)
        rollouts.append(Rollout(time.perf_counter() - began, trainer.runner.stats.sampled_tokens))
        return episodes

    trainer.rollout = rollout  # type: ignore[method-assign]
    return trainer, rollouts


def make_trl(options: Namespace) -> tuple[Any, list[Rollout]]:
    import trl.generation.vllm_generation as generation
    import trl.trainer.grpo_trainer as grpo_trainer
    from trl import GRPOConfig, GRPOTrainer

    on_cpu = options.device == "cpu"
    if on_cpu:
        # The arguments without which vLLM's CPU build does not start.
        arguments = {"dtype": "float32", "generation_config": "vllm", **engine_arguments(context(options), 0.1)}
        hard_wired = generation.LLM
        generation.LLM = lambda **given: hard_wired(**{**given, **arguments})
    args = GRPOConfig(
        output_dir=str(Path(options.folder, "trl")),
        max_completion_length=context(options) - PROMPT,
        max_tool_calling_iterations=STEPS - 1,
        vllm_mode="colocate",
        **settings(options),
    )
    model = str(Path(options.folder, "model"))
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed, "latency": 0.0} for seed in range(1024)]
    trainer: Any = GRPOTrainer(
        model,
        args=args,
        environment_factory=StockEnvironment,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list(rows),
    )
    if on_cpu:
        trainer.vllm_generation.sync_weights = lambda: None
    llm, parse, roll_out = trainer.vllm_generation.llm, grpo_trainer.parse_response, trainer._generate
    rollouts: list[Rollout] = []
    sampled = [0]
    generate = llm.generate

    def generate_turns(prompts: Any, sampling_params: Any, **kwargs: Any) -> Any:
        sampling_params.max_tokens, sampling_params.ignore_eos = options.turn, True
        outputs = generate(prompts, sampling_params, **kwargs)
        sampled[0] += sum(len(output.outputs[0].token_ids) for output in outputs)
        return outputs

    def timed(prompts: Any) -> Any:
        began, sampled[0] = time.perf_counter(), 0
        output = roll_out(prompts)
        rollouts.append(Rollout(time.perf_counter() - began, sampled[0]))
        return output

    def parse_as_call(tokenizer: Any, ids: list[int], **kwargs: Any) -> dict[str, Any]:
        # A random model calls no tool: its text is made the argument of a call, after TRL's own parser has run.
        message = parse(tokenizer, ids, **kwargs)
        call = {"name": "act", "arguments": {"action": message["content"]}}
        return {**message, "tool_calls": [{"type": "function", "function": call}]}

    llm.generate, trainer._generate, grpo_trainer.parse_response = generate_turns, timed, parse_as_call
    return trainer, rollouts
