"""How good can the control of a speedrun be, and GRPO itself? Both from a recorded start, at other rates.

    agent-gym speedrun --preset support --seeds 0,1,2
    python benchmarks/control_rates.py runs/speedrun --preset support --rates 1e-4 3e-4 1e-3
    python benchmarks/control_rates.py runs/speedrun --preset support --grpo '{"learning_rate": 1e-3}' --rates

The start, the engine and the seconds are those of the runs in the folder, of one seed or of several. A control at a
rate that spoils the policy says nothing about RL: `self_imitation_rate` of presets.toml is the best rate that this
finds. Each rate costs what GRPO did, and the evaluation. GRPO is tried with its own number of steps and other
settings, and its seconds stand in the JSON. Models and other files of the recorded runs are not changed.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import _common

from agent_gym.errors import ConfigError
from agent_gym.speedrun.presets import PRESETS, Preset
from agent_gym.speedrun.run import Speedrun, own_name

RL, DECODINGS = "GRPO policy", ("greedy", "sampled")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("folder", type=Path, help="what `agent-gym speedrun` has left")
    parser.add_argument("--preset", required=True, help="of these runs")
    rates = [1e-4, 3e-4, 1e-3, 3e-3]
    parser.add_argument("--rates", type=float, nargs="*", default=rates, help="peak learning rates of self-imitation")
    parser.add_argument("--grpo", nargs="*", default=[], metavar="JSON", help="settings of AgentGRPOConfig to try")
    options = parser.parse_args()
    facts = _common.provenance(("agent-gym", "vllm", "torch", "trl", "transformers"))
    _common.print_provenance(facts)
    folders = sorted(file.parent for file in options.folder.glob("**/results.json"))
    if not folders:
        raise SystemExit(f"{options.folder} holds no finished run (results.json)")
    rates, seconds, grpo = options.rates, None, [json.loads(text) for text in options.grpo]
    if options.quick:
        rates, seconds, grpo = rates[:1], 2.0, [{**settings, "max_steps": 1} for settings in grpo[:1]]
    found = []
    for folder in folders:
        found += controls(folder, options.preset, rates, seconds)
        found += [trained(folder, options.preset, settings) for settings in grpo]
    rows = []
    for name in dict.fromkeys(record["policy"] for record in found):
        for decoding in DECODINGS:
            shown = [100 * record[decoding] for record in found if record["policy"] == name]
            rows.append([name, decoding, *(f"{value:.1f}" for value in shown), f"{statistics.fmean(shown):.1f}"])
    print()
    _common.print_table(["policy", "decoding", *(folder.name for folder in folders), "mean"], rows)
    _common.write_json(options.json, **facts, results=found)


def controls(folder: Path, preset_name: str, rates: list[float], seconds: float | None) -> list[dict[str, Any]]:
    """Return what GRPO reached in a recorded run, and what self-imitation reaches from its start at each rate."""
    results, preset = json.loads((folder / "results.json").read_text(encoding="utf-8")), PRESETS[preset_name]
    if results["preset"] != preset.env_id or preset.controls is None:
        raise ConfigError(
            f"{folder} is a run of {results['preset']}, and not of a preset {preset_name!r} with controls"
        )
    recorded = {
        (row["policy"], row["decoding"]): row["success"] for row in results["results"] if row["decoding"] in DECODINGS
    }
    found: list[dict[str, Any]] = [{"policy": RL, **{decoding: recorded[RL, decoding] for decoding in DECODINGS}}]
    if not rates:
        return found
    with begun(folder, preset) as run:
        for rate in rates:
            tried = replace(preset.controls, self_imitation_rate=rate)
            rounds = run.imitate_itself(tried, seconds or results["used_seconds"][RL])
            succeeded = [round(one.succeeded / max(1, one.played), 3) for one in rounds]
            record = {"policy": f"self-imitation, {rate:g}", "rounds": succeeded, "folder": str(folder)}
            found.append(record | reached(run, own_name(tried)))
    return found


def trained(folder: Path, preset_name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what GRPO with other settings reaches from the start of a recorded run."""
    preset = PRESETS[preset_name]
    with begun(folder, replace(preset, grpo={**preset.grpo, **settings})) as run:
        run.dev |= {"decoding": "greedy", "start": "the recorded start"}
        seconds = run.train()
        name = f"{RL}, {json.dumps(settings)}"
        return {"policy": name, "seconds": seconds, "folder": str(folder), **reached(run, RL)}


@contextlib.contextmanager
def begun(folder: Path, preset: Preset) -> Iterator[Speedrun]:
    """A speedrun in a temporary folder, at the start of a recorded run."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "sft").symlink_to((folder / "sft").resolve())
        run = Speedrun(preset, results["seed"], Path(place), results["engine"] == "vllm")
        run.open(str(folder / "sft"))
        yield run
        run.policy.close()


def reached(run: Speedrun, policy: str) -> dict[str, float]:
    """Success of a policy in its last evaluation, by decoding."""
    return {decoding: result.success for name, decoding, result in run.rows[-2:] if name == policy}


if __name__ == "__main__":
    main()
