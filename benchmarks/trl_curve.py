"""One single-turn world, one start, two trainers: `AgentGRPOTrainer`, and TRL's `GRPOTrainer` with a reward function.

    python benchmarks/trl_curve.py --seeds 30 31 32 33 34    # both sides of each seed; taken up where it stopped
    python benchmarks/trl_curve.py --table                   # what benchmarks/history holds

The world names two trades and asks for the place of the better one (`LuckyBandit` of _luck_worlds.py without luck: the
better arm pays 1, the other one 0). The start has imitated a player who takes the worse one in seven of ten. Both sides
have the same weights at the start, chat template, prompts, groups, rollouts, updates, rate, clip and normalisation. The
order of the tasks and the random numbers of sampling differ. Each writes its weights every 20 steps, and one function
plays all of them on 160 held-out prompts, greedily and with eight samples a prompt. The rate was chosen on seed 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
from rivals import HISTORY, PACKAGES, spread

ENV = "_luck_worlds:LuckyBandit-v0"
KWARGS: dict[str, Any] = {"system_prompt": "", "chances": [1.0, 1.0], "pays": [1.0, 0.0]}
SIDES = ("agent_gym", "trl")
CHOSEN_ON = (0,)
EVERY = 20
SETTINGS: dict[str, Any] = {
    "max_steps": 160,
    "per_device_train_batch_size": 64,
    "steps_per_generation": 4,
    "num_generations": 8,
    "learning_rate": 5e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "epsilon_high": 0.28,
    "beta": 0.0,
    "temperature": 1.0,
    "scale_rewards": "group",
    "save_steps": EVERY,
    "save_only_model": True,
    "gradient_checkpointing": False,
    "model_init_kwargs": {"dtype": "float32"},
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": EVERY,
}
"""What both trainers are given. A rollout of 256 episodes has four updates, and each row is used once."""


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--rate", type=float, metavar="R", help="a trial of this learning rate, kept in --out alone")
    parser.add_argument("--out", type=Path, default=Path("runs/luck"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if not options.table:
        for seed in options.seeds:
            for side in SIDES:
                run(side, seed, options.out, options.rate)
    print(table([json.loads(file.read_text()) for file in sorted(HISTORY.glob("trl_curve.*.json"))]))


def run(side: str, seed: int, out: Path, rate: float | None) -> None:
    """Train one side on one seed from the start of benchmarks/luck.py, unless its JSON is there."""
    import torch
    from luck import preset_of

    from agent_gym.speedrun.run import run_speedrun

    torch.set_num_threads(1)
    name = f"trl_curve.{side}.seed{seed}"
    folder = out / (name if rate is None else f"{name}.rate{rate:g}")
    file = HISTORY / f"{name}.json" if rate is None else folder / "found.json"
    if file.is_file():
        return
    imitated = out / f"start.bandit.seed{seed}"
    if not (imitated / "results.json").is_file():
        run_speedrun(preset_of("ragen", "grpo", None, None), seed, imitated)
    settings = SETTINGS | ({} if rate is None else {"learning_rate": rate})
    begin = time.process_time()
    {"agent_gym": train_ours, "trl": train_trl}[side](imitated / "sft", folder, {**settings, "seed": seed})
    found: dict[str, Any] = {"side": side, "seed": seed, "cpu_seconds": time.process_time() - begin}
    steps = range(EVERY, settings["max_steps"] + 1, EVERY)
    places = {0: imitated / "sft", **{step: folder / f"checkpoint-{step}" for step in steps}}
    found["curve"] = {step: success(place) for step, place in places.items()}
    found |= {"settings": settings, "facts": _common.provenance(PACKAGES)}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def train_ours(start: Path, folder: Path, settings: dict[str, Any]) -> None:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    limits = {"max_turn_tokens": 8, "max_episode_tokens": 64, "loss_normalization": "token"}
    args = AgentGRPOConfig(output_dir=str(folder), **limits, **settings)
    trainer = AgentGRPOTrainer(str(start), ENV, args, env_kwargs=KWARGS)
    trainer.train()
    trainer.runner.close()
    trainer.runner.policy.close()


def train_trl(start: Path, folder: Path, settings: dict[str, Any]) -> None:
    import trl
    from datasets import Dataset

    import agent_gym

    env: Any = agent_gym.make(ENV, **KWARGS).unwrapped

    def begin(index: int) -> Any:
        return env.reset(seed=0, options={"split": "train", "index": index})[1]["messages"]

    def reward(completions: list[Any], index: list[int], **_: Any) -> list[float]:
        paid = []
        for completion, one in zip(completions, index, strict=True):
            begin(one)
            paid.append(env.step(completion[0]["content"])[1])
        return paid

    rows = [{"prompt": begin(i), "index": i} for i in range(len(env.tasks["train"]))]
    args = trl.GRPOConfig(output_dir=str(folder), max_completion_length=8, loss_type="dapo", **settings)
    trl.GRPOTrainer(str(start), reward_funcs=[reward], args=args, train_dataset=Dataset.from_list(rows)).train()


def success(model: Path) -> list[float]:
    """Play the held-out prompts; greedy and sampled success."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agent_gym.evaluate import evaluate, make_specs
    from agent_gym.policies.transformers import TransformersPolicy
    from agent_gym.rollout import Budget, Runner

    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = TransformersPolicy(
        AutoModelForCausalLM.from_pretrained(model).eval(),
        [tokenizer.eos_token_id],
        tokenizer.pad_token_id,
        tokenizer.decode,
    )
    found = []
    with closing(Runner(policy, tokenizer, Budget(8, 64))) as runner:
        for samples, temperature in ((1, 0.0), (8, 1.0)):
            specs = make_specs(ENV, KWARGS, split="test", group_size=samples)
            found.append(evaluate(runner, specs, temperature=temperature).measures["episode/success"].value)
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """The means over fresh seeds by step, and the difference of the sides, paired by seed."""
    from agent_gym.speedrun.tables import over

    curves = {(run["side"], run["seed"]): run["curve"] for run in runs if run["seed"] not in CHOSEN_ON}
    seeds = sorted({seed for _, seed in curves if all((side, seed) in curves for side in SIDES)})
    lines = []
    for place, decoding in enumerate(("greedy", "sampled")):
        lines += [f"| steps, {decoding} | agent_gym | TRL | difference |", "|---|---|---|---|"]
        for step in curves[SIDES[0], seeds[0]] if seeds else ():
            ours, theirs = ([curves[side, seed][step][place] for seed in seeds] for side in SIDES)
            apart = over([a - b for a, b in zip(ours, theirs, strict=True)])
            cells = [spread(over(ours, "success")), spread(over(theirs, "success")), spread(apart)]
            lines.append(f"| {step} | {' | '.join(cells)} |")
        lines.append("")
    for side in SIDES:
        lines.append(f"{side}: {[round(run['cpu_seconds']) for run in runs if run['side'] == side]} CPU s to train")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
