"""Rollouts through a model server by CPU time: agent_gym, the worker of TRL's `AsyncGRPOTrainer`, and verifiers.

    python benchmarks/rollout_async.py           # three workloads, five rounds each; some minutes
    python benchmarks/rollout_async.py --quick
    python benchmarks/rollout_async.py --verifiers PYTHON    # one that has verifiers==0.3.1 and renderers

`AsyncGRPOTrainer` is TRL's best path for tools: its worker starts an episode as soon as another one has ended, and no
episode waits for the slowest, where `GRPOTrainer` (benchmarks/rollout.py) plays in rounds. No model runs here: a server
in another process answers each request after 20 ms with the same turn, a call of one tool, in the form of vLLM's
endpoints. So the CPU time is that of the clients: rendering, encoding, parsing, tools, masks.

Same on both sides: tokenizer (SmolLM2's, after `agent-gym prepare smollm2`) with Qwen3's template, prompts,
the tool and the sleep of each call (uniform on 0 to the latency), the tokens of a turn and of a tool's answer, and
the number of episodes in flight (64). TRL ends an episode with a generation after the last call that it executes, so
it has one generation more than we; CPU time is divided by generations. Each side is a separate process
(_async_sides.py), whose clock starts after the first turn has compiled and imported what it needs. Sides alternate.

The best path of verifiers is `ToolEnv` of its 0.3.1 in one event loop, with the client that renders only new messages
and keeps sampled tokens (_verifiers_side.py): 0.4 has no environments in the process any more, and its plainest
harness starts a Python process for each episode. It ends an episode before the last call is executed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "gymnasium")
SIDES = ("agent_gym", "TRL, async", "verifiers")
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
    parser.add_argument("--verifiers", metavar="PYTHON", help="compare with verifiers, too, which this Python has")
    options = parser.parse_args()
    sides = SIDES if options.verifiers else SIDES[:2]
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    measurements: list[dict[str, Any]] = []
    for one in (Workload("smoke", 8, 2, 32, 64, 0.0),) if options.quick else WORKLOADS:
        workload = replace(one, tokenizer=options.tokenizer)
        runs: list[dict[str, Any]] = []
        for repetition in range(1 if options.quick else options.repeats):
            order = sides if repetition % 2 == 0 else sides[::-1]
            runs += [measure(side, workload, options.verifiers) for side in order]
        report(workload, runs)
        measurements += [{**asdict(workload), **run} for run in runs]
    facts["load_after"] = _common.load()
    _common.write_json(options.json, facts=facts, measurements=measurements)


def measure(side: str, workload: Workload, verifiers: str | None) -> dict[str, Any]:
    """Play a workload by one side against a fresh server, each in a process."""
    words, content = [sys.executable, str(PROGRAM)], json.dumps(asdict(workload))
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*words, "server", content], stdout=subprocess.PIPE, text=True) as server,
    ):
        command = [*words, side, content]
        if side == "verifiers":
            texts = subprocess.run([*words, "tokenizer", content, folder], capture_output=True, text=True, check=True)
            content = json.dumps(asdict(workload) | json.loads(texts.stdout.splitlines()[-1]))
            command = [str(verifiers), str(PROGRAM.with_name("_verifiers_side.py")), content]
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            done = subprocess.run([*command, port], capture_output=True, text=True, timeout=900)
        finally:
            server.kill()
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"side": side, **found}


def report(workload: Workload, runs: list[dict[str, Any]]) -> None:
    """Print the medians of each side, and the others' CPU time per generation over ours, round by round."""
    by_side = {side: [run for run in runs if run["side"] == side] for side in SIDES}
    ours, *others = (same for same in by_side.values() if same)
    print(f"{workload.name}: {workload.episodes} episodes, {workload.turns} turns; medians of {len(ours)}")
    names = ("cpu_ms", "wall", "generations", "context")
    rows = [
        [same[0]["side"], *(_common.median(run[name] for run in same) for name in names)] for same in (ours, *others)
    ]
    _common.print_table(["side", "CPU ms a generation", "wall s", "generations", "tokens of a context"], rows)
    for theirs in others:
        ratios = [other["cpu_ms"] / our["cpu_ms"] for our, other in zip(ours, theirs, strict=True)]
        spread = f"{_common.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {theirs[0]['side']}, CPU time a generation over ours: {spread}")
    print(flush=True)


if __name__ == "__main__":
    main()
