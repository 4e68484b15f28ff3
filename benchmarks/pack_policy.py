"""Put the policy of a speedrun's folder into the package, where `--model trained:NAME` finds it.

agent-gym speedrun --preset bisect --seed 40 --output_dir runs/bisect
python benchmarks/pack_policy.py runs/bisect bisect
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import _common

from agent_gym.registry.trained import FOLDER

PARTS = ("config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a speedrun")
    parser.add_argument("name", help="the preset, which is the name of the policy")
    options = parser.parse_args()
    pack(options.run, options.name)


def pack(run: Path, name: str) -> Path:
    """Copy weights, tokenizer and settings, and write trained.json. Returns the folder."""
    from agent_gym.speedrun.presets import PRESETS

    results = json.loads((run / "results.json").read_text())
    seed = results["seed"]
    made = FOLDER / name
    made.mkdir(parents=True, exist_ok=True)
    for part in (*PARTS, WEIGHTS):
        shutil.copyfile(run / "grpo" / part, made / part)
    fields = ("decoding", "episodes", "prompts", "success", "low", "high")
    rows = [row for row in results["results"] if row["policy"] == "GRPO policy"]
    facts = {
        "env_id": PRESETS[name].env_id,
        "env_kwargs": dict(PRESETS[name].env_kwargs),
        "seed": seed,
        "command": f"agent-gym speedrun --preset {name} --seed {seed}",
        "split": PRESETS[name].test_split,
        "results": [{field: row[field] for field in fields} for row in rows],
        "sha256": hashlib.sha256((made / WEIGHTS).read_bytes()).hexdigest(),
    }
    (made / "trained.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return made


if __name__ == "__main__":
    main()
