"""Where a success says little: GRPO, PPO and RAFT++ from one start, in worlds that pay by chance while they train.

    python benchmarks/luck.py ragen --seeds 30 31 32 33 34    # taken up where it stopped
    python benchmarks/luck.py --table                         # what benchmarks/history holds

    ragen     the payments of RAGEN's bandit (arXiv:2504.20073): a risky arm pays 1 in a quarter of the pulls, a steady
              one always pays 0.1; the start has imitated a player who takes the steady one in seven of ten
    noisy     the risky arm pays 1 in 0.8 of the pulls, the other one in 0.6
    deals     the preset `bargain`, in which any deal is a success; its reward is the share of the pool that one gets
    long      a corridor of 8 rooms with two doors each, 20 turns: the last room pays 1, a wrong door leads back
    bisect    the preset `bisect`, in which half of the failed searches are paid like those that find the commit

What a training episode pays is its reward, and its success is any payment. Validation and test have no luck: success
there is the better arm, the commit that was found, or a deal as good as Nash's solution, on tasks that training does
not have. `raft` is RAFT++ (arXiv:2504.11343), which raises the likelihood of each paid episode, whatever it was paid.
`grpo` centres the payment in its group and divides it by the group's spread, `dr_grpo` does not divide. `ppo` has a
critic, and as many episodes of distinct tasks in a rollout. Members of a group have the environment's seed in common,
so they have the same luck. The other arms are estimators of docs/algorithms.md. Each difference to GRPO and to RAFT++
has the p value of its sampled success, adjusted by Holm for all of them.

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

STEPS = {"importance_sampling_level": "step", "loss_normalization": "step"}
CRITICS = ("ppo", "step_gae", "starpo_s")
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"scale_rewards": "none"},
    "ppo": {},
    "step_gae": {"advantage_estimator": "step_gae", "step_lam": 0.95, "step_gamma": 0.95, **STEPS},
    "starpo_s": {"advantage_estimator": "bilevel_gae", "num_generations": 8, "keep_groups": 0.5, "step_lam": 0.95},
    "rloo": {"advantage_estimator": "rloo"},
    "gigpo": {"advantage_estimator": "gigpo", "step_gamma": 0.95},
    "reinforce": {"advantage_estimator": "reinforce"},
    "reinforce_pp": {"advantage_estimator": "reinforce_pp"},
    "reinforce_pp_baseline": {"advantage_estimator": "reinforce_pp_baseline"},
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
ALGORITHMS = [*ARMS][: [*ARMS].index("raft") + 1]
AGAINST = {"grpo": ALGORITHMS[1:], "raft": ALGORITHMS[:-1], "32x8": [*ARMS][len(ALGORITHMS) + 1 :]}
"""The differences of the table: to GRPO, to RAFT++, and of the shapes of a rollout to the first one."""
WORLDS: dict[str, dict[str, Any]] = {
    "ragen": {"chances": [0.25, 1.0], "pays": [1.0, 0.1]},
    "noisy": {"chances": [0.8, 0.6], "pays": [1.0, 1.0]},
}
CHOSEN_ON = (0, 1)


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("world", nargs="?", choices=(*WORLDS, "long", "bisect", "deals"))
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
    from _luck_worlds import Corridor

    from agent_gym.speedrun.presets import PRESETS, trained_by

    base = PRESETS["bisect"]
    if world == "deals":
        changed = {"max_steps": 160, "max_turn_tokens": 16, "max_episode_tokens": 320, "learning_rate": 5e-4}
        made = replace(PRESETS["bargain"], env_id="_luck_worlds:AnyDeal-v0", grpo={**base.grpo, **changed})
    elif world == "bisect":
        made = replace(base, env_id="_luck_worlds:LuckyBisect-v0", grpo={**base.grpo, "max_steps": 240})
    else:
        from agent_gym.envs.ragen.embedded.trades import TRADES

        names = " ".join(TRADES["train"]).split()
        frames = [*names, "1: ", ", 2: ", "<answer>", "</answer>", "1", "2"]
        steps, turns = (300, Corridor.TURNS) if world == "long" else (2400, 1)  # of imitation, in an episode
        decay = {**base.imitation[0].settings["lr_scheduler_kwargs"], "num_decay_steps": steps // 6}
        copied = {**base.imitation[0].settings, "learning_rate": 2e-3, "lr_scheduler_kwargs": decay}
        phase = replace(base.imitation[0], steps=steps, episodes=2 * steps, styles={"cautious": 1.0}, settings=copied)
        changed = {"max_steps": 240, "max_turn_tokens": 8, "max_episode_tokens": max(64, 24 * turns), "eval_steps": 20}
        if world == "long":
            # Rollouts of 128 episodes; after 160 updates all arms of seed 0 had the same success.
            changed |= {"max_steps": 80, "per_device_train_batch_size": 32, "learning_rate": 5e-4}
        made = replace(
            base,
            env_id=f"_luck_worlds:{'Corridor' if world == 'long' else 'LuckyBandit'}-v0",
            env_kwargs={"system_prompt": "", **WORLDS.get(world, {})},
            tiny={"width": 64, "vocab_size": 420, "frames": frames},
            imitation=(phase,),
            dev_tasks=160,
            grpo={**base.grpo, **changed},
        )
    made = replace(made, controls=None, patience=None)
    if start is None:
        return replace(made, grpo={**made.grpo, "max_steps": 1})
    made = replace(made, model=str(start), tiny={}, imitation=())
    made = trained_by(made, "ppo") if arm in CRITICS else made
    settings = dict(ARMS[arm])
    if rate:
        settings |= {"learning_rate": rate} | ({"critic_learning_rate": rate} if arm in CRITICS else {})
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
        run_speedrun(preset_of("ragen" if kind == "bandit" else world, arm, rate, None), seed, imitated)
    if world == "long":  # who knows the trades walks the corridor
        known, imitated = imitated, out / f"start.long.seed{seed}"
        if not (imitated / "results.json").is_file():
            begun = replace(preset_of(world, arm, rate, None), model=str(known / "sft"), tiny={})
            run_speedrun(begun, seed, imitated)
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
        for other, arms in AGAINST.items():
            paired = {
                arm: [[ends[arm][seed][i] - ends[other][seed][i] for seed in both] for i in (2, 3)]
                for arm in arms
                if len(both := sorted(ends[arm].keys() & ends[other].keys())) > 1
            }
            adjusted = holm({arm: sampled for arm, (_, sampled) in paired.items()})
            for arm, sides in paired.items():
                points = ", ".join(spread(over(side)) for side in sides)
                lines.append(f"{world}: {arm} minus {other}, {len(sides[0])} seeds: {points}; p {adjusted[arm]:.3f}")
        lines.append("")
    return "\n".join(lines)


def holm(differences: dict[str, list[float]]) -> dict[str, float]:
    """Return the p values of paired t tests, adjusted by Holm for as many comparisons as there are."""
    from scipy.stats import ttest_1samp

    found = {
        name: 1.0 if len({*one}) == 1 else float(ttest_1samp(one, 0.0).pvalue) for name, one in differences.items()
    }
    adjusted, least = dict[str, float](), 0.0
    for place, name in enumerate(sorted(found, key=found.__getitem__)):
        least = adjusted[name] = min(1.0, max(least, (len(found) - place) * found[name]))
    return adjusted


if __name__ == "__main__":
    main()
