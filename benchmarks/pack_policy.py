"""Put the policy of a speedrun's folder into the package, where `--model trained:NAME` finds it.

agent-gym speedrun --preset bisect --seed 40 --output_dir runs/bisect
python benchmarks/pack_policy.py runs/bisect bisect
python benchmarks/pack_policy.py runs/sums sums --adapter      # of the command in the folder's run.json, on smollm2
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import _common

from agent_gym.registry.trained import FOLDER

PARTS = ("config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a speedrun")
    parser.add_argument("name", help="the preset, which is the name of the policy")
    parser.add_argument("--adapter", action="store_true", help="a LoRA adapter of SmolLM2, by agent-gym grpo")
    options = parser.parse_args()
    (pack_adapter if options.adapter else pack)(options.run, options.name)


def pack_adapter(run: Path, name: str) -> Path:
    """Copy an adapter in bfloat16, evaluate it on the test split, and write trained.json. Returns the folder."""
    from safetensors.torch import load_file, save_file

    made = FOLDER / name
    made.mkdir(parents=True, exist_ok=True)
    config = json.loads((run / "adapter_config.json").read_text())
    config = {key: value for key, value in config.items() if value not in (None, {}, [], False)}
    config["base_model_name_or_path"] = "smollm2"
    (made / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    weights = load_file(run / "adapter_model.safetensors")
    save_file({key: weight.bfloat16() for key, weight in weights.items()}, made / "adapter_model.safetensors")
    (made / "adapter_model.safetensors").chmod(0o644)
    record = json.loads((run / "run.json").read_text())
    words = record["argv"]
    at = words.index("--output_dir")
    facts = {
        "env_id": record["env"],
        "env_kwargs": {},
        "seed": int(words[words.index("--seed") + 1]),
        "command": shlex.join(["agent-gym", record["command"], *words[:at], *words[at + 2 :]]),
        "split": "test",
        "results": [_evaluated(made, record["env"], decoding) for decoding in ("greedy", "sampled")],
        "sha256": hashlib.sha256((made / "adapter_model.safetensors").read_bytes()).hexdigest(),
    }
    (made / "trained.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return made


def _evaluated(model: Path, env_id: str, decoding: str) -> dict[str, Any]:
    """Play the test split once greedily, or four times as the policy is."""
    from agent_gym.cli.main import main as agent_gym

    words = ["eval", env_id, "--model", str(model), "--split", "test", "--json", "--max_turn_tokens", "12"]
    words += [] if decoding == "greedy" else ["--temperature", "1", "--samples", "4"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert agent_gym([*words, "--engine", "transformers", "--episodes", "200"]) == 0
    (result,) = json.loads(printed.getvalue())["results"]
    success = result["measures"]["episode/success"]
    return {
        "decoding": decoding,
        "episodes": result["episodes"],
        "prompts": result["tasks"],
        "success": success["value"],
        "low": success["low"],
        "high": success["high"],
    }


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
