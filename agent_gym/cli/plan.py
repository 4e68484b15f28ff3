"""`agent-gym plan`: what fits on which GPUs, and the command for it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence

from agent_gym.cli.parser import Parser, positive
from agent_gym.plan import Estimate, find_shape, plan
from agent_gym.plan.memory import cache_per_token

GIB = 2**30
_HEAD = "LAYOUT GPUS CONFIG TRAINS WEIGHTS GRADS ADAM ACTS HEAD UPDATE ENGINE CACHE TOKENS EPISODES FITS"


def main(argv: Sequence[str]) -> int:
    """Print the estimates and a command."""
    parser = Parser("plan", "Estimate the memory of a training run and name a layout that fits.", config=False)
    parser.add_argument("--model", required=True, help="folder or hub id")
    parser.add_argument("--gpus", type=_gpus, required=True, metavar="NxGIB", help="for example 4x80")
    parser.add_argument("--max_episode_tokens", type=positive, default=4096, help="tokens of the longest context")
    help_text = "tokens of a forward and backward pass; a longer episode is alone in its own"
    parser.add_argument("--micro_batch_tokens", type=positive, default=8192, help=help_text)
    parser.add_argument("--lora_r", type=positive, default=16, help="rank of the adapters, where there are any")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    arguments = parser.parse(argv)
    shape = find_shape(arguments.model)
    count, gib = arguments.gpus
    estimates = plan(
        shape,
        count,
        gib * GIB,
        episode_tokens=arguments.max_episode_tokens,
        micro_batch_tokens=arguments.micro_batch_tokens,
        lora_rank=arguments.lora_r,
    )
    best = next((estimate for estimate in estimates if estimate.obstacle is None), None)
    command = None if best is None else _command(best, arguments, gib)
    if arguments.json:
        rows = [{**dataclasses.asdict(one), "training": one.training, "obstacle": one.obstacle} for one in estimates]
        facts = {"shape": dataclasses.asdict(shape), "parameters": shape.parameters}
        print(json.dumps({**facts, "estimates": rows, "command": command}, indent=2))
        return 0
    print(
        f"{arguments.model}: {shape.parameters:,} parameters, "
        f"{cache_per_token(shape) / 1024:.0f} KiB of cache per token\n"
        f"{count} GPUs of {gib:g} GiB, of which {estimates[0].usable / GIB:.1f} are planned with; GiB per GPU:\n"
    )
    _print_table([_HEAD.split(), *map(_row, estimates)])
    print()
    if command is None:
        print("Nothing fits: take more or larger GPUs, shorter episodes or a smaller model.")
    else:
        print(f"The first that fits:\n\n{command}")
    return 0


def _gpus(text: str) -> tuple[int, float]:
    count, _, gib = text.lower().partition("x")
    try:
        gpus = int(count), float(gib)
    except ValueError:
        gpus = 0, 0.0
    if gpus[0] < 1 or not 1 <= gpus[1] < 10_000:
        raise argparse.ArgumentTypeError(f"expected a number of GPUs and their GiB, such as 4x80, got {text!r}")
    return gpus


def _row(one: Estimate) -> list[str]:
    sizes = (one.state.weights, one.state.gradients, one.state.optimizer, one.activations, one.head, one.training)
    return [
        one.layout,
        f"{one.trainers}+{one.servers}" if one.servers else str(one.trainers),
        one.config,
        f"lora {one.lora_rank}" if one.lora_rank else "all",
        *(f"{size / GIB:.1f}" for size in sizes),
        f"{one.engine / GIB:.1f}",
        f"{max(0.0, one.cache) / GIB:.1f}",
        f"{one.cache_tokens:,}",
        f"{one.episodes:,}",
        "yes" if one.obstacle is None else f"not {one.obstacle}",
    ]


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[4:14], widths[4:], strict=False)]
        print("  ".join([*words, *numbers, row[14]]))


def _command(one: Estimate, arguments: argparse.Namespace, gib: float) -> str:
    tokens = arguments.max_episode_tokens
    flags = [f"--model_name_or_path {arguments.model}", f"--max_episode_tokens {tokens}"]
    flags += [f"--micro_batch_tokens {arguments.micro_batch_tokens}", "--gradient_checkpointing true", "--bf16 true"]
    if one.lora_rank:
        flags += [f"--use_peft true --lora_r {one.lora_rank} --lora_target_modules all-linear --dtype bfloat16"]
    lines, prefix = [], ""
    if one.servers:
        urls = []
        for server in range(one.engines):
            first = server * one.tensor_parallel
            cards = ",".join(map(str, range(first, first + one.tensor_parallel)))
            spread = f" -- --tensor-parallel-size {one.tensor_parallel}" if one.tensor_parallel > 1 else ""
            lines.append(
                f"CUDA_VISIBLE_DEVICES={cards} agent-gym serve model {arguments.model} --port {8010 + server} "
                f"--context {tokens}{spread} &"
            )
            urls.append(f"http://127.0.0.1:{8010 + server}")
        prefix = f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(one.servers, one.servers + one.trainers)))} "
        flags += [f"--layout server --vllm_server_base_url {','.join(urls)}"]
    else:
        # vLLM counts the share from the whole card.
        share = math.floor(100 * (one.engine + one.cache) / (gib * GIB)) / 100
        flags += [f"--use_vllm true --vllm_enable_sleep_mode true --vllm_gpu_memory_utilization {share}"]
    flags += [f"--accelerate_config {one.config} --num_processes {one.trainers}"]
    return "\n".join([*lines, " \\\n    ".join([f"{prefix}agent-gym grpo ENV_ID", *flags])])
