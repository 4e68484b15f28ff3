"""Put the policy of a speedrun's folder into the package, where `--model trained:NAME` finds it.

agent-gym speedrun --preset bisect --seed 40 --output_dir runs/bisect
python benchmarks/pack_policy.py runs/bisect bisect
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import _common

from agent_gym.registry.trained import FOLDER

PARTS = ("config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
FIELDS = ("decoding", "episodes", "prompts", "success", "low", "high")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a speedrun")
    parser.add_argument("name", help="the preset, which is the name of the policy")
    options = parser.parse_args()
    pack(options.run, options.name)


def pack(run: Path, name: str) -> Path:
    """Copy a policy and write trained.json. Returns the folder.

    A model is copied with its tokenizer, and its numbers are the speedrun's. A LoRA of SmolLM2 is copied in bfloat16,
    and evaluated as that.
    """
    from agent_gym.speedrun.presets import PRESETS

    results, preset = json.loads((run / "results.json").read_text()), PRESETS[name]
    seed = results["seed"]
    made = FOLDER / name
    made.mkdir(parents=True, exist_ok=True)
    if preset.lora is None:
        weights = made / WEIGHTS
        for part in (*PARTS, WEIGHTS):
            shutil.copyfile(run / "grpo" / part, made / part)
        rows = [{field: row[field] for field in FIELDS} for row in results["results"] if row["policy"] == "GRPO policy"]
    else:
        weights = copy_adapter(run / "grpo", made)
        rows = [_evaluated(made, preset.env_id, decoding) for decoding in ("greedy", "sampled")]
    facts = {
        "env_id": preset.env_id,
        "env_kwargs": dict(preset.env_kwargs),
        "seed": seed,
        "command": f"agent-gym speedrun --preset {name} --seed {seed}",
        "split": preset.test_split,
        "results": rows,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    (made / "trained.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return made


def copy_adapter(trained: Path, made: Path) -> Path:
    """Copy an adapter in bfloat16, without the path of its base. Returns the file of its weights."""
    from safetensors.torch import load_file, save_file

    config = json.loads((trained / "adapter_config.json").read_text())
    config = {key: value for key, value in config.items() if value not in (None, {}, [], False)}
    config["base_model_name_or_path"] = "smollm2"
    (made / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    weights = load_file(trained / "adapter_model.safetensors")
    save_file({key: weight.bfloat16() for key, weight in weights.items()}, made / "adapter_model.safetensors")
    (made / "adapter_model.safetensors").chmod(0o644)
    return made / "adapter_model.safetensors"


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


if __name__ == "__main__":
    main()
