"""The model card of a trained model: a README.md from the files of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model

from agent_gym.errors import write_whole
from agent_gym.evaluate import EvalResult, summarize
from agent_gym.evaluate.cards import versions
from agent_gym.public import public
from agent_gym.registry import ENVS
from agent_gym.rollout import from_record, read_trajectories

MEASURED = ("success", "success_low", "success_high", "reward", "episodes")
"""The numbers of an evaluation that a card shows."""
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
_NUMBERS = ("success", "95% interval", "reward", "episodes")


def model_card(
    name: str,
    base: str | None,
    provenance: Mapping[str, Any],
    evaluations: Mapping[tuple[str, str, str], EvalResult],
    *,
    merged: bool,
) -> str:
    """Return the text of README.md.

    Args:
        name: of the model.
        base: the base model of an adapter, a hub id or a folder; None for a whole model.
        provenance: `read_provenance` of the run; may be empty.
        evaluations: from `read_evaluations`.
        merged: whether the adapter is merged into its base.
    """
    provenance, adapter = public(provenance), base is not None and not merged
    base = str(provenance.get("base_model") or base or "")
    # A folder of the training machine is useless to others.
    if base.count("/") != 1 or base.startswith((".", "/", "~")) or Path(base).exists():
        base = ""
    what = "A LoRA adapter" if adapter else "A language model" + " with a LoRA adapter merged in" * merged
    if base:
        what += f" of [{base}](https://huggingface.co/{base})"
    if provenance:
        estimator = provenance["settings"].get("advantage_estimator")
        what += f", trained by `{provenance['trainer']}` ({estimator}) for {provenance['step']} steps"
    library = "peft" if adapter else "transformers"
    head = _HEAD.format(library=library, base=f"base_model: {base}\n" if base else "")
    parts = [head, f"# {name}\n", f"{what}, with agent-gym.\n"]
    if provenance:
        columns = ("environment", "task", "split", "tasks", "data", "arguments")
        parts += ["## Environments\n", _table(columns, *map(_environment, provenance["environments"]))]
        parts += ["The number at the end of an environment's id is its version.\n"]
    log = provenance.get("evaluations", [])
    if evaluations or log:
        parts += ["## Evaluation\n"]
    if evaluations:
        measured = [(*key, *_result(r.success, r.low, r.high, r.reward, r.episodes)) for key, r in evaluations.items()]
        parts += [_table(("policy", "environment", "split", *_NUMBERS), *measured)]
    if log:
        named = ("tasks",) if any("tasks" in entry for entry in log) else ()  # of several sets
        when = [[str(entry["step"]), *(entry.get(name, "") for name in named)] for entry in log]
        course = [(*one, *_result(*(entry[name] for name in MEASURED))) for one, entry in zip(when, log, strict=True)]
        parts += ["During training:\n"] * bool(evaluations) + [_table(("step", *named, *_NUMBERS), *course)]
    if provenance:
        settings = [(key, f"`{json.dumps(value)}`") for key, value in provenance["settings"].items()]
        parts += ["## Settings\n", _table(("setting", "value"), *settings)]
    used = provenance.get("versions") or versions()
    return "\n".join([*parts, "## Versions\n", _table(("package", "version"), *used.items())])


def write_card(trainer: Any, about: Mapping[str, Any], folder: Path | None = None) -> None:
    """Write README.md for a trainer, from the `provenance` of its run (may be empty); by default into its folder."""
    run, peft = Path(str(trainer.args.output_dir)), is_peft_model(trainer.model)
    config = trainer.model.peft_config["default"] if peft else None
    base = str(config.base_model_name_or_path) if config else None
    folder = run if folder is None else folder
    write_whole(folder / "README.md", model_card(run.resolve().name, base, about, {}, merged=False))


def read_evaluations(paths: Sequence[str | Path]) -> dict[tuple[str, str, str], EvalResult]:
    """Summarize the episodes that `agent-gym eval --output` wrote, by policy, environment and split."""
    episodes: dict[tuple[str, str, str], list[Any]] = {}
    for record in chain.from_iterable(map(read_trajectories, paths)):
        spec = record["spec"]
        key = str(record.get("policy", "policy")), spec["env_id"], str(spec["split"])
        episodes.setdefault(key, []).append(from_record(record))
    return {key: summarize(part) for key, part in episodes.items()}


def _environment(env: Mapping[str, Any]) -> tuple[str, ...]:
    entry, arguments = next((one for one in ENVS if one.id == env["env_id"]), None), dict(env["env_kwargs"])
    data = arguments.pop("data", "embedded" if entry else "")
    summary = entry.summary if entry else ""
    return env["env_id"], summary, env["split"], str(env["tasks"]), str(data), f"`{json.dumps(arguments)}`"


def _result(success: float, low: float, high: float, reward: float, episodes: int) -> tuple[str, str, str, str]:
    return f"{success:.1%}", f"{low:.1%} to {high:.1%}", f"{reward:.3f}", str(episodes)


def _table(columns: Sequence[str], *rows: Sequence[str]) -> str:
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ["---"] * len(columns), *cells))
