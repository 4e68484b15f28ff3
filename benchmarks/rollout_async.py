"""Rollouts through a model server: agent_gym beside the worker of TRL's `AsyncGRPOTrainer`, by CPU time.

    python benchmarks/rollout_async.py           # three workloads, five pairs each; some minutes
    python benchmarks/rollout_async.py --quick

`AsyncGRPOTrainer` is TRL's best path for tools: its worker starts an episode as soon as another one has ended, and no
episode waits for the slowest, where `GRPOTrainer` (benchmarks/rollout.py) plays in rounds. No model runs here: a server
in another process answers each request after 20 ms with the same turn, a call of one tool, in the form of vLLM's
endpoints. So the CPU time is that of the clients: rendering, encoding, parsing, tools, masks.

Same on both sides: tokenizer (SmolLM2's, after `agent-gym prepare smollm2`) with Qwen3's template, prompts,
the tool and the sleep of each call (uniform on 0 to the latency), the tokens of a turn and of a tool's answer, and
the number of episodes in flight (64). TRL ends an episode with a generation after the last call that it executes, so
it has one generation more than we; CPU time is divided by generations. Each side is a separate process
(_async_sides.py), whose clock starts after the first turn has compiled and imported what it needs. Sides alternate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "gymnasium")
SIDES = ("agent_gym", "TRL, async")
PROGRAM = Path(__file__).with_name("_async_sides.py")


@dataclass(frozen=True)
class Workload:
    """Episodes to play, and the tokens of their turns."""

    name: str
    episodes: int
    turns: int
    sampled: int  # tokens of a turn
    observed: int  # tokens of a tool's answer
    latency: float  # seconds that a tool sleeps at most
    tokenizer: str = "smollm2"


WORKLOADS = (
    Workload("short contexts", 192, 3, 32, 64, 0.0),
    Workload("short contexts, tools of 0 to 200 ms", 192, 3, 32, 64, 0.2),
    Workload("contexts up to 11,000 tokens", 24, 10, 64, 1024, 0.0),
)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument(
        "--tokenizer", default="smollm2", metavar="MODEL", help="a model whose tokenizer both sides use"
    )
    options = parser.parse_args()
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    measurements: list[dict[str, Any]] = []
    for one in (Workload("smoke", 8, 2, 32, 64, 0.0),) if options.quick else WORKLOADS:
        workload = replace(one, tokenizer=options.tokenizer)
        runs: list[dict[str, Any]] = []
        for repetition in range(1 if options.quick else options.repeats):
            order = SIDES if repetition % 2 == 0 else SIDES[::-1]
            runs += [measure(side, workload) for side in order]
        report(workload, runs)
        measurements += [{**asdict(workload), **run} for run in runs]
    facts["load_after"] = _common.load()
    _common.write_json(options.json, facts=facts, measurements=measurements)


def measure(side: str, workload: Workload) -> dict[str, Any]:
    """Play a workload by one side against a fresh server, each in a process."""
    words = [sys.executable, str(PROGRAM)]
    content = json.dumps(asdict(workload))
    with subprocess.Popen([*words, "server", content], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            done = subprocess.run([*words, side, content, port], capture_output=True, text=True, timeout=900)
        finally:
            server.kill()
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"side": side, **found}


def report(workload: Workload, runs: list[dict[str, Any]]) -> None:
    """Print the medians of both sides, and TRL's CPU time per generation over ours, pair by pair."""
    print(f"{workload.name}: {workload.episodes} episodes, {workload.turns} turns; medians of {len(runs) // 2}")
    by_side = {side: [run for run in runs if run["side"] == side] for side in SIDES}
    names = ("cpu_ms", "wall", "generations", "context")
    rows = [[side, *(_common.median(run[name] for run in same) for name in names)] for side, same in by_side.items()]
    _common.print_table(["side", "CPU ms a generation", "wall s", "generations", "tokens of a context"], rows)
    pairs = zip(by_side[SIDES[0]], by_side[SIDES[1]], strict=True)
    ratios = [theirs["cpu_ms"] / ours["cpu_ms"] for ours, theirs in pairs]
    spread = f"{_common.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  TRL's CPU time a generation over ours: {spread}\n", flush=True)


if __name__ == "__main__":
    main()
