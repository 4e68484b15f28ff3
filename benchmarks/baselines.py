"""Baselines of the cards: random play, the best cheap attack, a script that knows the world, the expert, models.

    python benchmarks/baselines.py                  # four minutes of CPU time; or of these: AgentR1/Sums-v0 ...
    python benchmarks/baselines.py --model smollm2  # a model, greedily and as it is, with turns of up to 128 tokens
    python benchmarks/baselines.py --records        # SmolLM2 by the records of the leaderboard, where it has no row yet
    python benchmarks/baselines.py --runs runs/speedrun --preset webshop --section "A second start"  # recorded runs

writes registry/baselines.json, which `agent-gym info` and the site show. The first plays `agent-gym certify ID --checks
attacks` for each id, with the script of tests/attacks that is written for its world; the rows of models stay. The
second plays the same tasks with a model, where the environment shows no images. The third plays nothing: it takes what
`agent-gym speedrun` has left in a folder, of one seed or several, and replaces the rows of that preset. `--section` is
the heading of benchmarks/RESULTS.md that tells of these runs, or its beginning.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from runpy import run_path
from typing import Any

from agent_gym.certify import certify
from agent_gym.certify.report import baselines
from agent_gym.errors import ConfigError
from agent_gym.evaluate.cards import read_cards
from agent_gym.registry import ENVS, EnvEntry, make
from agent_gym.rollout.env_threads import shows_images
from agent_gym.speedrun.figure import read_runs
from agent_gym.speedrun.presets import PRESETS

sys.path.insert(0, str(Path(__file__).parent))
import ladder

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {run_path(str(path))["ENV_ID"]: path for path in sorted((ROOT / "tests" / "attacks").glob("*.py"))}


FILE = ROOT / "registry" / "baselines.json"
# The expert of these finds out what there is to know, as a policy has to.
EXPERTS = {
    "AgentR1/Bisect-v0": "halves what is left, and reads no gold answer",
    "AgentR1/Sokoban-v0": "searches the board, and reads no gold answer",
    "AgentR1/FrozenLake-v0": "value iteration, and reads no gold answer",
    "AgentR1/Countdown-v0": "searches all expressions, and reads no gold answer",
}
# What a run calls a policy, to what the card calls it; the controls stay in RESULTS.md.
POLICIES = {"imitation": "imitation", "expert imitation": "imitation", "GRPO policy": "after GRPO"}


def main() -> None:
    # Not that of `_common`: it writes the cards' own file, in which numbers of a smoke run must not stand.
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ids", nargs="*", metavar="ID", help="of these environments; default: all")
    options.add_argument("--records", action="store_true", help="take the rows of the leaderboard, and play nothing")
    options.add_argument("--model", help="play with this model, and nothing else")
    options.add_argument("--runs", metavar="FOLDER", help="take what a speedrun left there, and play nothing")
    options.add_argument("--preset", help="of these runs")
    options.add_argument("--section", help="of benchmarks/RESULTS.md that tells of these runs")
    arguments = options.parse_args()
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    if arguments.runs:
        env_id, rows = recipe(arguments.runs, arguments.preset, arguments.section)
        others = [row for row in found[env_id].get("recipes", []) if row[0] != arguments.preset]
        found[env_id]["recipes"] = [*others, *rows]
        return write(found)
    chosen = [entry for entry in ENVS if entry.id in (arguments.ids or {one.id for one in ENVS})]
    if arguments.records:
        for entry in chosen:
            if entry.id in found and not found[entry.id]["models"]:
                found[entry.id]["models"] = of_records(entry)
        return write(found)
    measure = ladder.model_player(arguments.model) if arguments.model else None
    for entry in chosen:
        if entry.needs and not is_there(entry):
            continue
        if measure is None:
            before = found.get(entry.id, {})
            kept = {"recipes": before["recipes"]} if "recipes" in before else {}
            found[entry.id] = scripts(entry) | {"models": before.get("models", [])} | kept
        elif entry.id in found and not shows_images(entry.id, {}):
            about = found[entry.id]
            success, reward = measure(entry.id, settings(entry), [*range(about["tasks"])])
            row = [arguments.model, f"{reward:.3f}", f"{success:.1%}", "greedy, as it is"]
            about["models"] = [*(one for one in about["models"] if one[0] != row[0]), row]
            print(f"{entry.id}: {row}", flush=True)
    write(found)


def of_records(entry: EnvEntry) -> list[list[str]]:
    """Return the row of the model in a cell of the leaderboard that has the arguments of the row of scripts."""
    name, wanted = entry.id.removeprefix("AgentR1/"), settings(entry)
    for file in sorted((ROOT / "benchmarks" / "history" / "leaderboard").glob(f"{name}.*.card.json")):
        for card in read_cards(file):
            if card["model"] and card["environment"]["kwargs"] == wanted:
                success, reward, formed = (
                    card["measures"].get(measure, {}).get("value", 0.0)
                    for measure in ("episode/success", "reward", "reward/format")
                )
                panel = card["panel"]["name"].partition(".")[2]
                return [[card["policy"], f"{reward - formed:.3f}", f"{success:.1%}", f"greedy, panel {panel}"]]
    return []


def settings(entry: EnvEntry) -> dict[str, Any]:
    """Return the arguments of the environment: those for which its script is written."""
    return run_path(str(SCRIPTS[entry.id])).get("ENV_KWARGS", {}) if entry.id in SCRIPTS and entry.needs else {}


def is_there(entry: EnvEntry) -> bool:
    """Whether there is a script for the world, and the data that it needs are prepared."""
    try:
        return entry.id in SCRIPTS and bool(make(entry.id, **settings(entry)))
    except ConfigError:
        return False


def write(found: Mapping[str, Any]) -> None:
    """Write the file, a line for each id."""
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def scripts(entry: EnvEntry) -> dict[str, Any]:
    """Return what scripts reach, and on which tasks."""
    script = SCRIPTS.get(entry.id)
    (record,) = certify(entry.id, settings(entry), checks=["attacks"], script=str(script) if script else None)
    print(f"{entry.id}: {record.verdict}, {record.text}", flush=True)
    expert = EXPERTS.get(entry.id, "reads the gold answer")
    how = {"script": f"tests/attacks/{script.name}" if script else "", "expert": expert}
    rows = [[who, reward, success, how.get(who, "")] for who, reward, success in baselines([record])]
    split = record.text.rpartition(" of ")[2] + "".join(f", {k}={v}" for k, v in settings(entry).items())
    return {"split": split, "tasks": int(record.numbers["tasks"]), "rows": rows}


def recipe(folder: str, preset: str, section: str) -> tuple[str, list[list[str]]]:
    """Return the id that a preset trains on, and a row for each policy that its runs in a folder have evaluated.

    Raises:
        ConfigError: for an unknown preset or section, or runs that are missing or of another environment.
    """
    runs, titles = read_runs(folder), (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").split("\n## ")
    title = next((one.partition("\n")[0] for one in titles if one.startswith(section or "\n")), None)
    if preset not in PRESETS or title is None:
        raise ConfigError(f"preset is {preset!r} and section {section!r}; give a preset, and a heading of RESULTS.md")
    env_id = PRESETS[preset].env_id
    if other := {run["preset"] for run in runs} - {env_id}:
        raise ConfigError(f"{folder} has runs on {', '.join(sorted(other))}; the preset {preset} trains on {env_id}")
    model, seeds = PRESETS[preset].model or "tiny model", ", ".join(str(run["seed"]) for run in runs)
    rows, played = list[list[str]](), dict.fromkeys(row["policy"] for row in runs[0]["results"])
    for policy in [name for name in played if name in POLICIES]:
        made = " from a made start" if policy == "GRPO policy" and "SFT policy" in played else ""
        values: dict[str, list[str]] = {"greedy": [], "sampled": []}
        for row in (row for run in runs for row in run["results"] if row["policy"] == policy):
            values[row["decoding"]].append(f"{row['success'] * 100:.1f}")
        tasks = min(row["episodes"] for row in runs[0]["results"])  # sampled, each is played several times
        who = f"{model}, {POLICIES[policy]}{made}"
        rows.append([preset, who, *map(", ".join, values.values()), str(tasks), seeds, title])
    return env_id, rows


if __name__ == "__main__":
    main()
