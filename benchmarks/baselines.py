"""Baselines of the cards: random play, the best cheap attack, a script that knows the world, the expert, models.

    python benchmarks/baselines.py                  # two minutes of CPU time
    python benchmarks/baselines.py --model smollm2  # a model, greedily and as it is, with turns of up to 128 tokens

writes registry/baselines.json, which `agent-gym info` and the site show. The first plays `agent-gym certify ID --checks
attacks` for each id, with the script of tests/attacks that is written for its world; the rows of models stay. The
second plays the same tasks with a model, where the environment shows no images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

from agent_gym.certify import certify
from agent_gym.certify.report import baselines
from agent_gym.registry import ENVS, EnvEntry
from agent_gym.rollout.env_threads import shows_images

sys.path.insert(0, str(Path(__file__).parent))
import _common
import ladder

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {run_path(str(path))["ENV_ID"]: path for path in sorted((ROOT / "tests" / "attacks").glob("*.py"))}


FILE = ROOT / "registry" / "baselines.json"


def main() -> None:
    options = _common.parser(__doc__)
    options.add_argument("--model", help="play with this model, and nothing else")
    arguments = options.parse_args()
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    measure = ladder.model_player(arguments.model) if arguments.model else None
    for entry in ENVS:
        if entry.needs:
            continue
        if measure is None:
            found[entry.id] = scripts(entry) | {"models": found.get(entry.id, {}).get("models", [])}
        elif entry.id in found and not shows_images(entry.id, {}):
            about = found[entry.id]
            tasks = range(4 if arguments.quick else about["tasks"])
            success, reward = measure(entry.id, {}, [*tasks])
            row = [arguments.model, f"{reward:.3f}", f"{success:.1%}", "greedy, as it is"]
            about["models"] = [*(one for one in about["models"] if one[0] != row[0]), row]
            print(f"{entry.id}: {row}", flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def scripts(entry: EnvEntry) -> dict[str, Any]:
    """Return what scripts reach, and on which tasks."""
    script = SCRIPTS.get(entry.id)
    (record,) = certify(entry.id, checks=["attacks"], script=str(script) if script else None)
    print(f"{entry.id}: {record.verdict}, {record.text}", flush=True)
    how = {"script": f"tests/attacks/{script.name}" if script else "", "expert": "reads the gold answer"}
    rows = [[who, reward, success, how.get(who, "")] for who, reward, success in baselines([record])]
    return {"split": record.text.rpartition(" of ")[2], "tasks": int(record.numbers["tasks"]), "rows": rows}


if __name__ == "__main__":
    main()
