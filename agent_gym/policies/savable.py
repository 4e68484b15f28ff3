"""Generation configs that transformers reads and refuses to write, such as settings of sampling without `do_sample`.

Many models of the hub have one (transformers #29665). Nothing here samples by them: fields that cannot be saved are
left out.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

_FIRST = {"do_sample": 0, "num_beams": 1}  # on these the others depend
_NO_FIELDS = ("transformers_version", "_from_model_config", "save_pretrained")


def write_generation_config(config: Any, folder: Path) -> list[str]:
    """Write `generation_config.json`, without fields that transformers refuses to save, and return their names."""
    try:
        config.save_pretrained(str(folder))
        return []
    except OSError:
        raise
    except Exception:  # whatever a validator or JSON finds
        trial, lost = savable(config)
    trial.save_pretrained(str(folder))
    return lost


def repair(model: Any) -> list[str]:
    """Drop the fields of an unwrapped model's generation config that cannot be saved, and return their names."""
    base = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    config = getattr(base, "generation_config", None)
    if config is None:
        return []
    try:
        config.validate(strict=True)
        json.loads(config.to_json_string())
        return []
    except Exception:  # whatever a validator or JSON finds
        base.generation_config, lost = savable(config)
        return lost


def savable(config: Any) -> tuple[Any, list[str]]:
    """Return a generation config with as many fields of another as can be saved, and the names of the others."""
    kept, lost = type(config)(), list[str]()
    for name, value in sorted(vars(config).items(), key=lambda one: (_FIRST.get(one[0], 2), one[0])):
        before = vars(kept).get(name)
        if name in _NO_FIELDS or (type(value) is type(before) and value == before):
            continue
        trial = copy.copy(kept)
        vars(trial)[name] = value
        try:
            trial.validate(strict=True)
            json.loads(trial.to_json_string())
            kept = trial
        except Exception:  # as above
            lost.append(name)
    return kept, sorted(lost)
