"""The model card: what was trained on what, how, and what came out, from what the run has written down itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.evaluate import EvalResult, summarize
from agent_gym.registry import ENVS
from agent_gym.rollout import from_record, read_trajectories
from agent_gym.trainers.checkpoints import versions
from agent_gym.trainers.export.checkpoint import Checkpoint

_HEAD = """\
---
library_name: {library}
pipeline_tag: text-generation
{base}tags:
- agent-gym
- reinforcement-learning
- tool-use
# license: yours to fill in; those of the base model and of the training data bind you
---
"""


def model_card(
    name: str,
    checkpoint: Checkpoint,
    provenance: Mapping[str, Any],
    evaluations: Mapping[tuple[str, str, str], EvalResult],
    *,
    merged: bool,
) -> str:
    """Return the text of README.md.

    Args:
        name: of the model.
        checkpoint: where it is from.
        provenance: what the run says (`provenance.py`); may be empty.
        evaluations: by policy, environment and split, from `read_evaluations`.
        merged: whether an adapter was merged.
    """
    base = str(provenance.get("base_model") or checkpoint.base or "")
    adapter = checkpoint.base is not None and not merged
    # A folder of the machine it was trained on says nothing to others.
    is_hub_id = base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists()
    head = _HEAD.format(
        library="peft" if adapter else "transformers", base=f"base_model: {base}\n" if is_hub_id else ""
    )
    parts = [head, f"# {name}\n", _summary(provenance, base if is_hub_id else "", adapter, merged)]
    if provenance:
        parts += ["## Environments\n", _environments(provenance["environments"])]
    if evaluations or provenance.get("evaluations"):
        parts += ["## Evaluation\n", _evaluations(evaluations, provenance.get("evaluations", []))]
    if provenance:
        rows = [(key, f"`{json.dumps(value)}`") for key, value in provenance["settings"].items()]
        parts += ["## Settings\n", _table(("setting", "value"), rows)]
    used = provenance.get("versions") or versions()
    parts += ["## Versions\n", _table(("package", "version"), list(used.items()))]
    return "\n".join(parts)


def read_evaluations(paths: Sequence[str | Path]) -> dict[tuple[str, str, str], EvalResult]:
    """Condense the episodes that `agent-gym eval --output` wrote, by policy, environment and split.

    Raises:
        ConfigError: for a file that is no trajectory file.
    """
    episodes: dict[tuple[str, str, str], list[Any]] = {}
    for path in paths:
        for record in read_trajectories(path):
            spec = record["spec"]
            key = str(record.get("policy", "policy")), spec["env_id"], str(spec["split"])
            episodes.setdefault(key, []).append(from_record(record))
    return {key: summarize(part) for key, part in episodes.items()}


def _summary(provenance: Mapping[str, Any], base: str, adapter: bool, merged: bool) -> str:
    what = (
        "A LoRA adapter"
        if adapter
        else "A language model with a LoRA adapter merged in"
        if merged
        else "A language model"
    )
    of = f" of [{base}](https://huggingface.co/{base})" if base else ""
    how = ""
    if provenance:
        estimator = provenance["settings"].get("advantage_estimator")
        how = f", trained by `{provenance['trainer']}` ({estimator}) for {provenance['step']} steps"
    return f"{what}{of}{how}, with agent-gym.\n"


def _environments(environments: Sequence[Mapping[str, Any]]) -> str:
    about = {entry.id: entry for entry in ENVS}
    rows = []
    for env in environments:
        entry = about.get(env["env_id"])
        data = env["env_kwargs"].get("data", "embedded") if entry else env["env_kwargs"].get("data", "")
        arguments = {key: value for key, value in env["env_kwargs"].items() if key != "data"}
        summary = entry.summary if entry else ""
        rows.append((env["env_id"], summary, env["split"], str(env["tasks"]), str(data), f"`{json.dumps(arguments)}`"))
    text = _table(("environment", "task", "split", "tasks", "data", "arguments"), rows)
    return text + "\nThe number at the end of an environment's id is its version.\n"


def _evaluations(evaluations: Mapping[tuple[str, str, str], EvalResult], log: Sequence[Mapping[str, Any]]) -> str:
    columns = ("policy", "environment", "split", "success", "95% interval", "reward", "episodes")
    rows = [
        (policy, env, split, f"{r.success:.1%}", f"{r.low:.1%} to {r.high:.1%}", f"{r.reward:.3f}", str(r.episodes))
        for (policy, env, split), r in evaluations.items()
    ]
    text = _table(columns, rows) if rows else ""
    if not log:
        return text
    steps = [
        (
            str(entry["step"]),
            f"{entry['success']:.1%}",
            f"{entry['success_low']:.1%} to {entry['success_high']:.1%}",
            f"{entry['reward']:.3f}",
            str(entry["episodes"]),
        )
        for entry in log
    ]
    course = _table(("step", "success", "95% interval", "reward", "episodes"), steps)
    return f"{text}\nDuring training:\n\n{course}" if text else course


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)]) + "\n"
