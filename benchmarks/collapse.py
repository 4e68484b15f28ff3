"""Does a long run collapse, and does the monitor see it before the reward falls?

    python benchmarks/collapse.py                            # 600 steps at each rate, half an hour on two cores
    python benchmarks/collapse.py --rates 3e-3 --seeds 1

Search-R1 (arXiv:2503.09516) and RAGEN (arXiv:2504.20073) report runs whose reward rises and later falls for good. This
trains the start of _bisect24.py six times as long as its 104 steps, at its own rate and at higher ones, with
the probe for input dependence every 10 steps, and prints what the monitor of trainers/hooks/echo_trap.py watches.

The reward has fallen at the first rollout from which the mean of 10 rollouts is below `KEPT` of the best such mean
before it, and stays there to the end of the run: what recovers is no collapse. A warning is early if it is of an
earlier step than this one.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

import _common
from algorithms import PACKAGES, Seed

WINDOW, KEPT = 10, 0.8
WATCHED = {
    "reward": "reward",
    "spread": "reward_std",
    "entropy": "entropy",
    "grad norm": "grad_norm",
    "information": "probe/mutual_information",
}


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 6e-3], metavar="LR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--rollouts", type=int, default=150, metavar="N", help="of 256 episodes, four steps on each")
    parser.add_argument("--out", type=Path, default=Path("runs/collapse"), metavar="FOLDER")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    results = []
    for seed in options.seeds:
        runs = Seed(seed, options.out, options.rollouts, quick=options.quick)
        start = runs.start()
        for rate in options.rates:
            changes = {"learning_rate": rate, "probe_steps": 10 if not options.quick else 2, "echo_trap": "warn"}
            result = {"seed": seed, "rate": rate, **runs.variant(f"rate {rate:g}", start, changes)}
            results.append(result)
            report(result)
    _common.write_json(options.json, facts=facts, results=results)


def report(result: dict[str, Any]) -> None:
    """Print one run: its course in tenths, the first warnings, and where the reward fell."""
    logs = result["logs"]
    length = max(1, logs[-1]["step"] // 10)
    print(f"seed {result['seed']}, rate {result['rate']:g}, means over {length} steps:")
    parts = {
        first: [log for log in logs if first <= log["step"] < first + length]
        for first in range(1, logs[-1]["step"], length)
    }
    rows = [[first, *(average(part, key) for key in WATCHED.values())] for first, part in parts.items()]
    _common.print_table(["from step", *WATCHED], rows)
    levels = {key for log in logs for key in log if key.startswith("echo_trap/")}
    first = {key: next((log["step"] for log in logs if log.get(key)), None) for key in sorted(levels)}
    warned = ", ".join(f"{key.removeprefix('echo_trap/')} at step {step}" for key, step in first.items() if step)
    print(f"first warnings: {warned or 'none'}")
    fell = fallen(logs)
    print("the reward never fell for good" if fell is None else f"the reward fell for good at step {fell}")
    print(
        f"success greedy {result['before']['greedy']:.1%} -> {result['after']['greedy']:.1%}, sampled "
        f"{result['before']['sampled']:.1%} -> {result['after']['sampled']:.1%}\n",
        flush=True,
    )


def average(logs: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean of what was logged, None if nothing was."""
    found = [log[key] for log in logs if key in log]
    return statistics.fmean(found) if found else None


def fallen(logs: list[dict[str, Any]]) -> int | None:
    """Return the step from which the reward is below `KEPT` of its best to the end; None if it is not."""
    played = [log for log in logs if "reward" in log]
    means = [statistics.fmean(log["reward"] for log in played[i : i + WINDOW]) for i in range(len(played) - WINDOW + 1)]
    low = [mean < KEPT * max(means[: i + 1]) for i, mean in enumerate(means)]
    lost = len(low) - next((i for i, one in enumerate(reversed(low)) if not one), len(low))
    return played[lost]["step"] if lost < len(low) else None


if __name__ == "__main__":
    main()
