"""Does the mask matter? The preset `bisect` with and without it, where the world writes little and much.

    python benchmarks/masks.py --seeds 30 31 32 33 34    # taken up where it stopped
    python benchmarks/masks.py --table                   # what benchmarks/history holds

The rungs differ in the words of a log that follow each answer of the world. `ratio` is the number of tokens that the
world writes in an episode after the opening, divided by the number that the policy writes. Each rung imitates from the
start, since it is another world.

    masked       only sampled tokens are trained on
    unmasked     the world's tokens between two turns get the advantage of the turn before them
    observation  the world's tokens are predicted, too: their advantage is `COEFFICIENT`, whatever the turn is worth

The rule was fixed before the runs: five fresh seeds, 100 updates of 256 episodes in four, the preset's rate, success on
192 held-out tasks of 64 prompts, and the difference to `masked` paired by seed, with Student's interval.
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
from algorithms import leaky
from rivals import HISTORY, PACKAGES, ROWS, percent, spread

WORDS = {"short": 0, "long": 40}
"""The words of the log on each rung."""
ARMS = ("masked", "unmasked", "observation")
COEFFICIENT = 0.1


def main() -> None:
    parser = _common.plain_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--rungs", nargs="+", choices=WORDS, default=[*WORDS], metavar="NAME")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/masks"), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if not options.table:
        for seed in options.seeds:
            for rung in options.rungs:
                for arm in options.arms:
                    run(rung, arm, seed, options.out)
    print(table([json.loads(file.read_text()) for file in sorted(HISTORY.glob("masks.*.json"))]))


def observing(base: Any) -> Any:
    """Return a trainer that also raises the likelihood of the world's tokens between two turns."""
    import torch

    class Observing(leaky(base)):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            constant = torch.full_like(batch["advantages"], COEFFICIENT)
            advantages = torch.where(self.sampled, batch["advantages"], constant)
            batch["advantages"] = advantages * batch["action_mask"]
            return batch

    return Observing


def run(rung: str, arm: str, seed: int, out: Path) -> None:
    """Train one arm on one rung and seed, unless its JSON is there."""
    from agent_gym.policies.vllm import set_environment

    set_environment()
    import torch

    torch.set_num_threads(1)
    from agent_gym.speedrun import run as speedrun
    from agent_gym.speedrun.presets import PRESETS
    from agent_gym.trainers.grpo import AgentGRPOTrainer

    file = HISTORY / f"masks.{rung}.{arm}.seed{seed}.json"
    if file.is_file():
        return
    base = PRESETS["bisect"]
    settings = {**base.grpo, "max_steps": 100, "eval_steps": 20, "max_episode_tokens": 200 + 12 * WORDS[rung]}
    world = {"env_id": "_luck_worlds:WordyBisect-v0", "env_kwargs": {**base.env_kwargs, "words": WORDS[rung]}}
    preset = replace(base, controls=None, patience=None, grpo=settings, **world)
    imitated = out / f"start.{rung}.seed{seed}"
    if not (imitated / "results.json").is_file():
        speedrun.run_speedrun(replace(preset, grpo={**settings, "max_steps": 1}), seed, imitated)
    if arm != "masked":  # there is no engine's logprob for what the engine did not sample; the two agree to 1e-5 here
        settings = {**settings, "vllm_importance_sampling_correction": False}
    preset = replace(preset, model=str(imitated / "sft"), tiny={}, imitation=(), grpo=settings)
    changes = {"masked": lambda base: base, "unmasked": leaky, "observation": observing}
    speedrun.AgentGRPOTrainer = changes[arm](AgentGRPOTrainer)  # type: ignore[attr-defined]
    begin = time.process_time()
    try:
        found = speedrun.run_speedrun(preset, seed, out / f"masks.{rung}.{arm}.seed{seed}")
    finally:
        speedrun.AgentGRPOTrainer = AgentGRPOTrainer  # type: ignore[attr-defined]
    found["settings"]["model"] = f"{imitated.name}/sft"  # and no path of this machine
    found |= {"rung": rung, "arm": arm, "facts": _common.provenance(PACKAGES), "ratio": ratio(imitated / "sft", rung)}
    found["cpu_seconds"] = time.process_time() - begin
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def ratio(model: Path, rung: str) -> float:
    """Return how many tokens the world writes for each one of the policy, in episodes of the expert."""
    from transformers import AutoTokenizer

    from agent_gym.trainers.sft import expert_episodes

    kwargs = {"system_prompt": "", "size": 512, "bad_commits": 3, "words": WORDS[rung]}
    tokenizer = AutoTokenizer.from_pretrained(model)
    played = expert_episodes("_luck_worlds:WordyBisect-v0", kwargs, tokenizer, episodes=32)
    spans = [span for episode in played for row in episode.rows for span in row.spans]
    wrote = {
        source: sum(span.stop - span.start for span in spans if span.source == source) for source in ("agent", "env")
    }
    return wrote["env"] / wrote["agent"]


def table(runs: list[dict[str, Any]]) -> str:
    """One line per rung, arm and seed, means over the seeds, and differences to `masked` paired by seed."""
    from agent_gym.speedrun.tables import over

    heads = ("rung", "ratio", "arm", "seed", "start, greedy", "sampled", "end, greedy", "sampled", "CPU s")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for rung in WORDS:
        ends: dict[str, dict[int, list[float]]] = {}
        for arm in ARMS:
            mine = [run for run in runs if (run["rung"], run["arm"]) == (rung, arm)]
            mine.sort(key=lambda run: run["seed"])
            ends[arm] = {run["seed"]: [run["results"][row]["success"] for row in ROWS] for run in mine}
            for one in mine:
                cells = [rung, f"{one['ratio']:.1f}", arm, str(one["seed"]), *(percent(one, row) for row in ROWS)]
                lines.append(f"| {' | '.join(cells)} | {one['cpu_seconds']:.0f} |")
            if len(mine) > 1:
                means = [spread(over(column, "success")) for column in zip(*ends[arm].values(), strict=True)]
                lines.append(f"| {rung} | | {arm} | mean of {len(mine)} | {' | '.join(means)} | |")
        lines.append("")
        for arm in ARMS[1:]:
            both = sorted(ends[arm].keys() & ends["masked"].keys())
            if len(both) > 1:
                found = [over([ends[arm][seed][i] - ends["masked"][seed][i] for seed in both]) for i in (2, 3)]
                lines.append(f"{rung}: {arm} minus masked, {len(both)} seeds: {', '.join(map(spread, found))}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
