"""How good can the control of a speedrun be? Self-imitation from a recorded start, at several rates.

    agent-gym speedrun --preset support --seeds 0,1,2
    python benchmarks/control_rates.py runs/speedrun --preset support --rates 1e-4 3e-4 1e-3

The start and the seconds are those of the runs in the folder, of one seed or of several. A control at a rate that
spoils the policy says nothing about RL: `self_imitation_rate` of presets.toml is the best rate that this finds. Each
rate costs what GRPO did, and the evaluation. Models and other files of the recorded runs are not changed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import _common

from agent_gym.errors import ConfigError
from agent_gym.examples.presets import PRESETS
from agent_gym.examples.speedrun import RL, Speedrun, own_name

DECODINGS = ("greedy", "sampled")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("folder", type=Path, help="what `agent-gym speedrun` has left")
    parser.add_argument("--preset", required=True, help="of these runs")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3, 3e-3], help="peak learning rates")
    options = parser.parse_args()
    facts = _common.provenance(("agent-gym", "vllm", "torch", "trl", "transformers"))
    _common.print_provenance(facts)
    folders = sorted(file.parent for file in options.folder.glob("**/results.json"))
    if not folders:
        raise SystemExit(f"{options.folder} holds no finished run (results.json)")
    rates, seconds = (options.rates[:1], 2.0) if options.quick else (options.rates, None)
    found = [one for folder in folders for one in controls(folder, options.preset, rates, seconds)]
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
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "sft").symlink_to((folder / "sft").resolve())
        run = Speedrun(preset, results["seed"], Path(place), None)
        run.open(str(folder / "sft"))
        for rate in rates:
            tried = replace(preset.controls, self_imitation_rate=rate)
            rounds = run.imitate_itself(tried, seconds or results["used_seconds"][RL])
            reached = {decoding: result.success for name, decoding, result in run.rows[-2:] if name == own_name(tried)}
            name, succeeded = f"self-imitation, {rate:g}", [round(one.succeeded / one.played, 3) for one in rounds]
            found.append({"policy": name, "rounds": succeeded, "folder": str(folder), **reached})
        run.policy.close()
    return found


if __name__ == "__main__":
    main()
