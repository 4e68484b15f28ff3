"""Where a success says little: GRPO, PPO and RAFT++ from one start, in worlds that pay by chance while they train.

    python benchmarks/luck.py ragen --seeds 30 31 32 33 34    # taken up where it stopped
    python benchmarks/luck.py --table                         # what benchmarks/history holds

    ragen     the payments of RAGEN's bandit (arXiv:2504.20073): a risky arm pays 1 in a quarter of the pulls, a steady
              one always pays 0.1; the start has imitated a player who takes the steady one in seven of ten
    noisy     the risky arm pays 1 in 0.8 of the pulls, the other one in 0.6
    deals     the preset `bargain`, in which any deal is a success; its reward is the share of the pool that one gets
    bisect    the preset `bisect512`, in which half of the failed searches are paid like those that find the commit

What a training episode pays is its reward, and its success is any payment. Validation and test have no luck: success
there is the better arm, the commit that was found, or a deal as good as Nash's solution, on tasks that training does
not have. `raft` is RAFT++ (arXiv:2504.11343), which raises the likelihood of each paid episode, whatever it was paid.
`grpo` centres the payment in its group and divides it by the group's spread, `dr_grpo` does not divide. `ppo` has a
critic, and as many episodes of distinct tasks in a rollout. Members of a group have the environment's seed in common,
so they have the same luck.

Further arms shape the rollout of 256 episodes that GRPO has as 32 tasks of 8: `32x8` is `dr_grpo` again, on their
machine, `128x2` and `8x32` have more tasks or larger groups, `1update` and `8updates` take so many from each rollout
instead of 4, at as many episodes in all. They divide by no spread. The rate is the preset's for all arms; `CHOSEN_ON`
are the seeds on which the worlds were tried.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
from rivals import HISTORY, PACKAGES, ROWS, percent, spread

ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"scale_rewards": "none"},
    "ppo": {},
    "raft": {"advantage_estimator": "raft_pp"},
    "32x8": {"scale_rewards": "none"},
    "128x2": {"scale_rewards": "none", "num_generations": 2},
    "8x32": {"scale_rewards": "none", "num_generations": 32},
    "1update": {
        "scale_rewards": "none",
        "steps_per_generation": 1,
        "per_device_train_batch_size": 256,
        "max_steps": 60,
        "eval_steps": 5,
    },
    "8updates": {"scale_rewards": "none", "num_iterations": 2, "max_steps": 480, "eval_steps": 40},
}
"""What each arm changes in the settings of the trainer."""
WORLDS: dict[str, dict[str, Any]] = {
    "ragen": {"chances": [0.25, 1.0], "pays": [1.0, 0.1]},
    "noisy": {"chances": [0.8, 0.6], "pays": [1.0, 1.0]},
}
CHOSEN_ON = (0, 1)


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("world", nargs="?", choices=(*WORLDS, "bisect", "deals"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["grpo", "dr_grpo", "ppo", "raft"], metavar="NAME")
    parser.add_argument("--rate", type=float, metavar="R", help="a trial of this learning rate, kept in --out alone")
    parser.add_argument("--out", type=Path, default=Path("runs/luck"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if not options.table:
        for seed in options.seeds:
            for arm in options.arms:
                run(options.world, seed, arm, options.out, options.rate)
    print(table([json.loads(file.read_text()) for file in sorted(HISTORY.glob("luck.*.json"))]))


def preset_of(world: str, arm: str, rate: float | None, start: Path | None) -> Any:
    """Return the preset of a world with an arm's algorithm, from a model that has imitated; None to imitate."""
    from agent_gym.speedrun.presets import PRESETS, trained_by

    base = PRESETS["bisect512"]
    if world == "deals":
        changed = {"max_steps": 160, "max_turn_tokens": 16, "max_episode_tokens": 320, "learning_rate": 5e-4}
        made = replace(PRESETS["bargain"], env_id="_luck_worlds:AnyDeal-v0", grpo={**base.grpo, **changed})
    elif world == "bisect":
        made = replace(base, env_id="_luck_worlds:LuckyBisect-v0", grpo={**base.grpo, "max_steps": 240})
    else:
        from agent_gym.envs.ragen.embedded.trades import TRADES

        names = " ".join(TRADES["train"]).split()
        frames = [*names, "1: ", ", 2: ", "<answer>", "</answer>", "1", "2"]
        decay = {**base.imitation[0].settings["lr_scheduler_kwargs"], "num_decay_steps": 400}
        copied = {**base.imitation[0].settings, "learning_rate": 2e-3, "lr_scheduler_kwargs": decay}
        phase = replace(base.imitation[0], steps=2400, episodes=4800, styles={"cautious": 1.0}, settings=copied)
        changed = {"max_steps": 240, "max_turn_tokens": 8, "max_episode_tokens": 64, "eval_steps": 20}
        made = replace(
            base,
            env_id="_luck_worlds:LuckyBandit-v0",
            env_kwargs={"system_prompt": "", **WORLDS[world]},
            tiny={"width": 64, "vocab_size": 420, "frames": frames},
            imitation=(phase,),
            dev_tasks=160,
            grpo={**base.grpo, **changed},
        )
    made = replace(made, controls=None, patience=None)
    if start is None:
        return replace(made, grpo={**made.grpo, "max_steps": 1})
    made = replace(made, model=str(start), tiny={}, imitation=())
    made = trained_by(made, "ppo") if arm == "ppo" else made
    settings = dict(ARMS[arm])
    if rate:
        settings |= {"learning_rate": rate} | ({"critic_learning_rate": rate} if arm == "ppo" else {})
    return replace(made, grpo={**made.grpo, **settings})


def run(world: str, seed: int, arm: str, out: Path, rate: float | None) -> None:
    """Train one arm on one seed, unless its JSON is there."""
    from agent_gym.policies.vllm import set_environment

    set_environment()
    import torch

    torch.set_num_threads(1)
    from agent_gym.speedrun.run import run_speedrun

    name = f"luck.{world}.{arm}.seed{seed}"
    folder = out / (name if rate is None else f"{name}.rate{rate:g}")
    file = HISTORY / f"{name}.json" if rate is None else folder / "found.json"
    if file.is_file():
        return
    kind = world if world in ("bisect", "deals") else "bandit"
    imitated = out / f"start.{kind}.seed{seed}"
    if not (imitated / "results.json").is_file():
        run_speedrun(preset_of(world, arm, rate, None), seed, imitated)
    begin, cpu = time.perf_counter(), time.process_time()
    found = run_speedrun(preset_of(world, arm, rate, imitated / "sft"), seed, folder)
    found |= {"preset": world, "arm": arm, "facts": _common.provenance(PACKAGES)}
    found["settings"]["model"] = f"{imitated.name}/sft"  # and no path of this machine
    found |= {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - begin}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table(runs: list[dict[str, Any]]) -> str:
    """One line per world, arm and seed, means over the seeds that chose nothing, and differences paired by seed."""
    from agent_gym.speedrun.tables import over

    heads = ("world", "arm", "seed", "start, greedy", "sampled", "end, greedy", "sampled", "CPU s")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for world in dict.fromkeys(run["preset"] for run in runs):
        ends: dict[str, dict[int, list[float]]] = {}
        for arm in ARMS:
            mine = [run for run in runs if (run["preset"], run["arm"]) == (world, arm) and run["seed"] not in CHOSEN_ON]
            for one in sorted(mine, key=lambda run: run["seed"]):
                shares = [percent(one, row) for row in ROWS]
                lines.append(f"| {world} | {arm} | {one['seed']} | {' | '.join(shares)} | {one['cpu_seconds']:.0f} |")
            ends[arm] = {run["seed"]: [run["results"][row]["success"] for row in ROWS] for run in mine}
            if len(mine) > 1:
                means = [spread(over(column, "success")) for column in zip(*ends[arm].values(), strict=True)]
                lines.append(f"| {world} | {arm} | mean of {len(mine)} | {' | '.join(means)} | |")
        lines.append("")
        pairs = [(arm, "raft") for arm in list(ARMS)[:3]] + [(arm, "32x8") for arm in list(ARMS)[5:]]
        for arm, other in pairs:
            both = sorted(ends[arm].keys() & ends[other].keys())
            if len(both) > 1:
                found = [over([ends[arm][seed][i] - ends[other][seed][i] for seed in both]) for i in (2, 3)]
                lines.append(f"{world}: {arm} minus {other}, {len(both)} seeds: {', '.join(map(spread, found))}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
