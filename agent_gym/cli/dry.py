"""`--print_config` and `--dry_run` of the training commands: the settings as they are used, and the actions of a run.

The output is yaml that `--config` reads again. Defaults of TRL and transformers that are unchanged are left out;
`--help-all` has them.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from agent_gym.cli.engine import spoken_by
from agent_gym.cli.flags import COMMON, TRAINING, mapping
from agent_gym.models import adapter_base, adapter_folder
from agent_gym.public import MASK, public, public_text
from agent_gym.trainers.settings import Default


def config_text(command: str, parsed: Sequence[Any], given: Mapping[str, Any], launch: Sequence[str]) -> str:
    """Return the settings of a run as yaml: ours, the ones that every run needs, and the given ones.

    Args:
        command: grpo, ppo or sft.
        parsed: the dataclasses that the parser has filled: environment, trainer, model.
        given: the settings of the command line and the yaml file, by name (early.py).
        launch: arguments of `accelerate launch`.
    """
    env, args, model = parsed
    own = {one.name for kind in TRAINING[command].own for one in dataclasses.fields(kind)}
    settings = {one.name: getattr(env, one.name) for one in dataclasses.fields(env)}
    settings |= {name: mapping(name, settings[name]) for name in ("env_kwargs", "styles") if name in settings}
    for source in (args, model):
        for one in dataclasses.fields(source):
            if one.name in own or one.name in COMMON or one.name in given:
                settings.setdefault(one.name, getattr(source, one.name))
    grows = {name: value for name, value in settings.items() if isinstance(value, Default)}
    shown = {name: value for name, value in settings.items() if value is not None and name not in grows}
    text = yaml.safe_dump(public(_plain(shown)), sort_keys=False, allow_unicode=True, width=110)
    # Written as a setting it would be one, and would not grow any more.
    text += "".join(f"# {name}: {int(value)}, or more where an opening does not fit\n" for name, value in grows.items())
    if MASK in text:
        text += f"# {MASK} is a secret: put it in, or give it on the command line, before --config reads this\n"
    return text + (f"# with accelerate launch {' '.join(public(launch))}\n" if launch else "")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    kind = next((one for one in (bool, int, float) if isinstance(value, one)), str)
    return kind(value)  # yaml does not write subclasses


def plan_text(command: str, parsed: Sequence[Any], datasets: Sequence[Any], launch: Sequence[str]) -> str:
    """Return a run's actions and files, from its settings and tasks (none for sft, whose expert plays first)."""
    _, args, model = parsed
    lines: list[tuple[str, str]] = [("model", str(model.model_name_or_path or "a tiny one, made on the spot"))]
    if model.model_name_or_path and (told := spoken_by(str(model.model_name_or_path))):
        lines.append(("calls", told))
    folder = adapter_folder(str(model.model_name_or_path)) if model.model_name_or_path else None
    if folder is not None:
        lines.append(("trained", f"its adapter, on {adapter_base(folder)}"))
    if model.use_peft:
        lines.append(("trained", f"LoRA adapters of rank {model.lora_r}"))
    lines.append(("processes", f"accelerate launch {' '.join(public(launch))}" if launch else "1, this one"))
    if command != "sft":
        train, evaluated = datasets
        sources = Counter(train["env_id"])
        lines.append(("tasks", ", ".join(f"{count:,} of {name}" for name, count in sources.items())))
        each, group = args.generation_batch_size, args.num_generations
        used = f"trained on in {args.rollout_steps:g} optimizer steps"
        lines.append(("a rollout", f"{each} episodes ({args.batch_tasks} tasks x {group} attempts), {used}"))
        per_epoch = math.floor(len(train) / args.batch_tasks) * args.rollout_steps
        steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
        lines.append(("steps", f"{steps:,.0f}, {steps / args.rollout_steps * each:,.0f} episodes"))
        if evaluated is not None:
            when = f"each {args.eval_steps:g} steps" if args.eval_strategy == "steps" else "at the end of epochs"
            lines.append(("evaluation", f"{len(evaluated):,} tasks x {args.num_generations_eval}, {when}"))
        lines.append(("memory", f"agent-gym plan --model {shlex.quote(lines[0][1])} --gpus N estimates it"))
    elif args.max_steps > 0:
        lines.append(("steps", f"{args.max_steps:,} of {args.per_device_train_batch_size} demonstrations per process"))
    run = Path(str(args.output_dir))
    written = ["the model, README.md and run.json"]
    if args.save_strategy != "no":
        written.append(f"checkpoint-N each {args.save_steps:g} steps")
    written.append("card.json")
    if command != "sft":
        written.append("log.jsonl, curve.html and agent_gym.json")
        if args.trajectories_per_step:
            written.append(f"trajectories ({args.trajectories_per_step} episodes a rollout and process)")
    trackers = [name for name in args.report_to if name != "none"]
    lines += [("writes", f"{run}: {', '.join(written)}"), ("reports to", ", ".join(trackers) or "nothing else")]
    return public_text("".join(f"# {name:<11}{text}\n" for name, text in lines))
