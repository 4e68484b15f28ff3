"""SmolLM2 as it is published learns sums by GRPO with a LoRA of 0.5 MB: `agent-gym grpo`, then the held-out prompts.

    python benchmarks/sums_lora.py --seeds 20 21 22 23 24     # 8 to 10 CPU minutes a seed; taken up where it stopped
    python benchmarks/sums_lora.py --table                    # what benchmarks/history holds

The settings are those of the preset `zero` but for the adapter (rank 4 on the projections of queries and values) and
its rate, which is the first that was tried, on seed 20. Each seed is one JSON in benchmarks/history: command, curve on
200 validation tasks, success on the 200 tasks of test, greedily and in one attempt each, and CPU seconds of training.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import _common

HISTORY = Path(__file__).parent / "history"
AGENT_GYM = (sys.executable, "-m", "agent_gym")
ENV = "AgentR1/Sums-v0"
TRAIN = shlex.split(
    f"grpo --env {ENV} --model smollm2 --use_peft true --lora_r 4 --lora_alpha 8 --lora_dropout 0 "
    "--lora_target_modules q_proj v_proj --max_steps 80 --steps_per_generation 4 --num_generations 8 "
    "--keep_variance 1.0 --per_device_train_batch_size 32 --max_num_seqs 128 --micro_batch_size 32 "
    "--learning_rate 5e-4 --vllm_importance_sampling_mode in_ratio --lr_scheduler_type constant --warmup_steps 0 "
    "--max_turn_tokens 12 --max_episode_tokens 96 --eval_strategy steps --eval_steps 10 --use_cpu true --bf16 false "
    "--gradient_checkpointing false --dtype float32 --epsilon_high 0.28 --adam_beta2 0.98"
)
EVALUATE = shlex.split(f"eval {ENV} --split test --episodes 200 --max_turn_tokens 12 --json --model")
DECODINGS = {"greedy": [], "sampled": ["--temperature", "1"]}


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[20], metavar="N")
    parser.add_argument("--out", type=Path, default=Path("runs/sums_lora"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    for seed in () if options.table else options.seeds:
        run(seed, options.out / f"seed{seed}")
    table([json.loads(file.read_text(encoding="utf-8")) for file in sorted(HISTORY.glob("sums_lora.seed*.json"))])


def run(seed: int, folder: Path) -> None:
    """Train and evaluate one seed, unless its JSON is there."""
    file = HISTORY / f"sums_lora.seed{seed}.json"
    if file.is_file():
        return
    words = [*TRAIN, "--seed", str(seed)]
    if not (folder / "adapter_model.safetensors").is_file():
        subprocess.run([*AGENT_GYM, *words, "--output_dir", str(folder)], check=True)
    training = json.loads((folder / "card.json").read_text(encoding="utf-8"))["training"]
    record: dict[str, Any] = {
        "seed": seed,
        "command": shlex.join(["agent-gym", *words]),
        "versions": training["versions"],
        "cpu_seconds": training["spent"]["cpu_seconds"],
        "validation": {one["step"]: one["success"] for one in training["evaluations"]},
        "test": {decoding: _played(folder, more) for decoding, more in DECODINGS.items()},
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _played(folder: Path, more: list[str]) -> dict[str, float]:
    done = subprocess.run([*AGENT_GYM, *EVALUATE, str(folder), *more], check=True, stdout=subprocess.PIPE, text=True)
    (result,) = json.loads(done.stdout)["results"]
    return {"tasks": result["tasks"], **result["measures"]["episode/success"]}


def table(records: list[dict[str, Any]]) -> None:
    """Print the success of each seed, and the mean with the interval of Student's t over the seeds."""
    from rivals import spread

    from agent_gym.speedrun.tables import over

    rows: list[list[Any]] = [
        [one["seed"], *(100 * one["test"][decoding]["value"] for decoding in DECODINGS), one["cpu_seconds"]]
        for one in records
    ]
    if len(rows) > 1:
        means = [over([one["test"][decoding]["value"] for one in records], "success") for decoding in DECODINGS]
        rows.append(["mean", *map(spread, means), None])
    _common.print_table(("seed", *DECODINGS, "CPU s"), rows)


if __name__ == "__main__":
    main()
