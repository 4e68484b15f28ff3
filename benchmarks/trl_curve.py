"""One single-turn world, one start, two trainers: `AgentGRPOTrainer`, and TRL's `GRPOTrainer` with a reward function.

    python benchmarks/trl_curve.py shared --seeds 30 31 32 33 34   # both sides of each seed; taken up where it stopped
    python benchmarks/trl_curve.py --table                         # what benchmarks/history holds

The world names two trades and asks for the place of one: the better arm of `LuckyBandit` in _luck_worlds.py pays 1, the
other one 0. The start has imitated a player who takes the steady arm in seven of ten. Both sides have the same weights
at the start, chat template, prompts, groups, updates, rate, clip and normalisation. Each writes its weights every 20
steps, and one function plays all of them on 160 held-out prompts, greedily and with eight samples a prompt. The rate
was chosen on seed 0.

    shared           the steady arm is the better one. Both sides take the tasks in one order, and the n-th answer to a
                     prompt is drawn with the same random numbers (common random numbers), so that equal trainers give
                     equal curves. A rollout of 64 episodes has one update, because the two sides would divide it into
                     different minibatches. TRL samples by its `rollout_func`
    own              the same world. Each side has its own order, random numbers, minibatches and engine; a rollout of
                     256 episodes has four updates
    plateau_shared   like `shared`, but the risky arm is the better one. The start knows the wrong trades, learns to
                     answer one place at 50%, and leaves that plateau by chance
    plateau          like `own` in that world
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
from rivals import HISTORY, PACKAGES, spread

ENV = "_luck_worlds:LuckyBandit-v0"
KWARGS: dict[str, Any] = {"system_prompt": "", "chances": [1.0, 1.0], "pays": [1.0, 0.0]}
SIDES = ("agent_gym", "trl")
CHOSEN_ON = (0,)
LIMITS = {"max_turn_tokens": 8, "max_episode_tokens": 64}
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
    "logging_strategy": "no",
}
"""What both trainers are given. Each row is used once."""
_ONE_UPDATE = {"steps_per_generation": 1, "shuffle_dataset": False, "model_init_kwargs": None}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "shared": ("steady", _ONE_UPDATE),
    "own": ("steady", {}),
    "plateau_shared": ("risky", _ONE_UPDATE),
    "plateau": ("risky", {}),
}
"""The better arm of each case, and what it changes in the settings."""


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("case", nargs="?", choices=CASES, default="shared")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--rate", type=float, metavar="R", help="a trial of this learning rate, kept in --out alone")
    parser.add_argument("--out", type=Path, default=Path("runs/luck"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if not options.table:
        for seed in options.seeds:
            for side in SIDES:
                run(options.case, side, seed, options.out, options.rate)
    for case in CASES:
        print(f"{case}\n")
        print(table([json.loads(file.read_text()) for file in sorted(HISTORY.glob(f"trl_curve.{case}.*.json"))]))


def run(case: str, side: str, seed: int, out: Path, rate: float | None) -> None:
    """Train one side on one seed from the start of benchmarks/luck.py, unless its JSON is there."""
    import torch
    from luck import preset_of

    from agent_gym.speedrun.run import run_speedrun

    torch.set_num_threads(1)
    name = f"trl_curve.{case}.{side}.seed{seed}"
    folder = out / (name if rate is None else f"{name}.rate{rate:g}")
    file = HISTORY / f"{name}.json" if rate is None else folder / "found.json"
    if file.is_file():
        return
    imitated = out / f"start.bandit.seed{seed}"
    if not (imitated / "results.json").is_file():
        run_speedrun(preset_of("ragen", "grpo", None, None), seed, imitated)
    settings = {**SETTINGS, **CASES[case][1], "seed": seed} | ({} if rate is None else {"learning_rate": rate})
    begin = time.process_time()
    kwargs = {**KWARGS, "better": CASES[case][0]}
    order = {} if settings.get("shuffle_dataset", True) else {"order": seed}
    {"agent_gym": train_ours, "trl": train_trl}[side](imitated / "sft", folder, {**kwargs, **order}, settings)
    found: dict[str, Any] = {"case": case, "side": side, "seed": seed, "cpu_seconds": time.process_time() - begin}
    steps = range(EVERY, settings["max_steps"] + 1, EVERY)
    places = {0: imitated / "sft", **{step: folder / f"checkpoint-{step}" for step in steps}}
    found["curve"] = {step: success(place, kwargs) for step, place in places.items()}
    found |= {"settings": settings, "facts": _common.provenance(PACKAGES)}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def train_ours(start: Path, folder: Path, kwargs: dict[str, Any], settings: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    args = AgentGRPOConfig(output_dir=str(folder), **LIMITS, loss_normalization="token", **settings)
    policy = shared_noise(start, settings["seed"]) if "order" in kwargs else None
    trainer = AgentGRPOTrainer(
        policy.model if policy else str(start),
        ENV,
        args,
        env_kwargs=kwargs,
        processing_class=AutoTokenizer.from_pretrained(start),
        policy=policy,
    )
    trainer.train()
    trainer.runner.close()
    trainer.runner.policy.close()


def train_trl(start: Path, folder: Path, kwargs: dict[str, Any], settings: dict[str, Any]) -> None:
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    import agent_gym

    tokenizer = AutoTokenizer.from_pretrained(start)
    policy = shared_noise(start, settings["seed"]) if "order" in kwargs else None
    env: Any = agent_gym.make(ENV, **kwargs).unwrapped

    def begin(index: int) -> Any:
        return env.reset(seed=0, options={"split": "train", "index": index})[1]["messages"]

    def reward(completions: list[Any], index: list[int], **_: Any) -> list[float]:
        paid = []
        for completion, one in zip(completions, index, strict=True):
            begin(one)
            paid.append(env.step(completion[0]["content"])[1])
        return paid

    rows = [{"prompt": begin(i), "index": i} for i in range(len(env.tasks["train"]))]
    args = trl.GRPOConfig(
        output_dir=str(folder), max_completion_length=LIMITS["max_turn_tokens"], loss_type="dapo", **settings
    )
    trl.GRPOTrainer(
        policy.model if policy else str(start),
        reward_funcs=[reward],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        rollout_func=partial(sample, policy, tokenizer) if policy else None,
    ).train()


def sample(policy: Any, tokenizer: Any, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """Let our engine answer the prompts of TRL's trainer: its `rollout_func`."""
    from agent_gym.policies.base import Request, SamplingParams

    training = trainer.model.training
    asked = [tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in prompts]
    for number, ids in enumerate(asked):
        policy.submit(Request(number, ids, SamplingParams(LIMITS["max_turn_tokens"])))
    found: dict[int, Any] = {}
    while policy.pending:
        found |= {one.id: one for one in policy.poll()}
    trainer.model.train(training)
    answers = [found[number] for number in range(len(asked))]
    return {
        "prompt_ids": asked,
        "completion_ids": [one.token_ids for one in answers],
        "logprobs": [one.logprobs for one in answers],
    }


def shared_noise(start: Path, seed: int) -> Any:
    """Return an engine that draws the n-th answer to a prompt with the same random numbers in each run of a seed."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agent_gym.policies.transformers import TransformersPolicy
    from agent_gym.rollout import derive_seed

    class SharedNoise(TransformersPolicy):
        asked = Counter[tuple[int, ...]]()

        def submit(self, request: Any) -> None:
            prompt = tuple(request.prompt_ids)
            request.params = replace(request.params, seed=derive_seed(seed, self.asked[prompt], *prompt))
            self.asked[prompt] += 1
            super().submit(request)

    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    return SharedNoise(model, [tokenizer.eos_token_id], tokenizer.pad_token_id, tokenizer.decode)


def success(model: Path, kwargs: dict[str, Any]) -> list[float]:
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
            specs = make_specs(ENV, kwargs, split="test", group_size=samples)
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
