"""The commands `grpo`, `ppo` and `sft`: read the arguments, find the cheap mistakes, train, save.

Several environments with weights (`AgentR1/GSM8K-v0=2,AgentR1/GSM8K-NoTool-v0=1`) become one mixture. The weights
hold in training. Evaluation plays as many tasks of each environment, in one set: one rollout fills the engine,
`eval_success` stays one number to choose a checkpoint by, and the metrics of each environment follow under its id.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import Trainer, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from trl import ModelConfig, SFTConfig, TrlParser, get_peft_config, get_quantization_config

from agent_gym import trainers
from agent_gym.cli.engine import load_tokenizer
from agent_gym.cli.flags import (
    TRAINING,
    RLArguments,
    SFTArguments,
    add_launcher,
    kwargs_by_env,
    layout,
    mapping,
    preset_file,
    split_command,
)
from agent_gym.cli.gateway import use_agent
from agent_gym.cli.parser import as_text, nearest, one_line, read_settings, read_yaml
from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError, one_of
from agent_gym.evaluate import make_specs
from agent_gym.evaluate.cards import Meter
from agent_gym.judges import Judge
from agent_gym.models import check_model
from agent_gym.rollout import Episode
from agent_gym.rollout.env_threads import shows_images
from agent_gym.speedrun.dashboard import reporters, watch
from agent_gym.speedrun.tiny import make_tiny_model, make_tiny_vision_model
from agent_gym.trainers.checkpoints import refuse_used, resume_hint, resume_point
from agent_gym.trainers.common import check_sft
from agent_gym.trainers.config import FIXED, AgentGRPOConfig, AgentPPOConfig
from agent_gym.trainers.estimators import ESTIMATORS
from agent_gym.trainers.hooks.judging import check_judge
from agent_gym.trainers.policy_model import check_adapter
from agent_gym.trainers.resumed import check_checkpoint
from agent_gym.trainers.tasks import mix_datasets, parse_mixture

_TINY_CONTEXT = 4096  # tokens; positions cost nothing, and any environment's demonstrations fit


class TrainingParser(TrlParser):
    """TRL's parser, with errors of one line, that parts our arguments from the launcher's."""

    def __init__(self, command: str) -> None:
        self.command = command
        config = {"grpo": AgentGRPOConfig, "ppo": AgentPPOConfig, "sft": SFTConfig}[command]
        kinds: list[Any] = [TRAINING[command].arguments, config, ModelConfig]
        super().__init__(kinds, **layout(command))
        self.set_defaults(logging_steps=1.0)  # a rollout takes seconds to minutes: a line for each is not too much
        if command == "sft":
            # TRL would cut rows of more than 1,024 tokens. Demonstrations are never cut, and the ones of shops and of
            # searches for papers have 2,400, so that the model's own limit is the one that counts.
            self.set_defaults(max_length=None)
        add_launcher(self)
        for action in self._actions:
            if command != "sft" and action.dest in FIXED:
                action.help = argparse.SUPPRESS  # it may hold one value only
            # The help must not depend on the machine.
            if action.dest in ("bf16", "dataloader_pin_memory", "gradient_checkpointing") and action.help:
                action.help = f"{action.help} Without a GPU it is off."

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
        TrlParser._parse_dataclass_field(parser, field)
        action = next(one for one in parser._actions if one.dest == field.name)
        if action.choices and "group" in field.metadata:  # a setting of ours, which explains a wrong choice better
            action.choices, action.type = None, str

    def read(self, argv: Sequence[str]) -> tuple[list[Any], list[str]]:
        """Read the command line over its yaml file, if any: the dataclasses, and arguments of `accelerate launch`."""
        if not torch.cuda.is_available():
            # TRL's default is bf16 everywhere, which transformers then refuses on a CPU; torch warns of pinned memory
            # at the beginning of each epoch; and a CPU lacks speed sooner than memory.
            self.set_defaults(bf16=False, dataloader_pin_memory=False, gradient_checkpointing=False)
        preset, path, arguments = split_command(argv)
        launch: list[str] = []
        if path is not None:
            content = read_yaml(path)
            preset = preset or content.pop("accelerate_config", None)
            launch += self._launcher_keys(path, content)
            arguments = ["--config", path, *arguments]
        try:
            *parsed, _, extra = self.parse_args_and_config(
                arguments, return_remaining_strings=True, separate_remaining_strings=True
            )
        except ValueError as error:  # settings that contradict each other, found by TRL's dataclasses
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.command}: {one_line(error)}") from error
        known = _launcher_flags() if extra else {}
        for word in extra:
            if word.startswith("-") and word.partition("=")[0] not in known:
                flags = [*self._option_string_actions, *known]
                raise ConfigError(f"{self.command}: unknown argument {word!r}; {nearest(word, flags)}")
        if preset is not None:
            launch = ["--config_file", preset_file(preset), *launch]
        # After the three dataclasses comes a namespace with --config, which is in none of them.
        return parsed[:3], launch + extra

    def set_defaults_with_config(self, **content: Any) -> list[str]:
        """Take the values of the yaml file as texts, so that their types are checked as on the command line."""
        plain = (bool, int, float, date)
        texts = {key: as_text(value) if isinstance(value, plain) else value for key, value in content.items()}
        # `eval_strategy: no` is the usual spelling, and yaml makes False of it.
        texts |= {key: "no" for key, value in content.items() if value is False and key.endswith("_strategy")}
        return super().set_defaults_with_config(**texts)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.command}: {message} (see {self.prog} --help)")

    def _launcher_keys(self, path: str, content: dict[str, Any]) -> list[str]:
        """Turn the yaml keys that are not ours into arguments of `accelerate launch`."""
        ours = {action.dest for action in self._actions}
        foreign = {key: value for key, value in content.items() if key not in ours}
        if not isinstance(foreign.pop("env", {}), dict):
            raise ConfigError(f"{path}: `env` sets environment variables (a mapping); the task is `env_id`")
        launch: list[str] = []
        known = _launcher_flags() if foreign else {}
        for key, value in foreign.items():
            if f"--{key}" not in known:
                names = [*ours, *(flag.lstrip("-") for flag in known)]
                raise ConfigError(f"{path}: unknown key {key!r}; {nearest(key, names)}")
            if known[f"--{key}"].nargs == 0:  # a switch has no value on the command line
                launch += [f"--{key}"] if one_of(f"{path}: {key}", value, (True, False)) else []
            else:
                launch += [f"--{key}", as_text(value)]
        return launch


def _launcher_flags() -> dict[str, Any]:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()._option_string_actions


def _check_rl(critic: bool, env: RLArguments, args: Any, model: ModelConfig) -> tuple[Dataset, Dataset | None]:
    _check_run(args, model)
    if args.estimator.needs_critic != critic:  # the trainer would find it when the model is loaded
        mine = ", ".join(name for name, known in ESTIMATORS.items() if known.needs_critic == critic)
        why, other = ("makes no use of", "grpo") if critic else ("needs", "ppo")
        raise ConfigError(
            f"advantage_estimator {args.advantage_estimator!r} {why} a critic: use agent-gym {other}, or one of {mine}"
        )
    if env.judge is not None:
        check_judge(Judge.of(read_settings(env.judge)), args)
    return task_datasets(env, args)


def _train_rl(trainer_name: str, env: RLArguments, args: Any, model: ModelConfig) -> None:
    name = str(model.model_name_or_path)
    train_dataset, eval_dataset = task_datasets(env, args)
    trainer = getattr(trainers, trainer_name)(
        name,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=load_tokenizer(name),
        judge=None if env.judge is None else Judge.of(read_settings(env.judge)),
        **_use_model(args, model),
    )
    with _resume_hint(args), watch(trainer):
        trainer.train(resume_from_checkpoint=resume_point(args))
    _finish(trainer, args)


def task_datasets(env: RLArguments, args: Any) -> tuple[Dataset, Dataset | None]:
    """Return the tasks to train on, and the tasks to evaluate on if an evaluation is wanted."""
    weights = dict(parse_mixture(env.env_id)) if env.env_id else {}
    env_ids, kwargs_of_all = use_agent(list(weights), env.kwargs, env)
    kwargs = kwargs_by_env(env_ids, kwargs_of_all)

    def mixed(split: str, tasks: int | None) -> Dataset:
        common: dict[str, Any] = {"split": split, "tasks": tasks, "seed": args.seed}
        parts = [trainers.task_dataset(env_id, kwargs[env_id], **common) for env_id in env_ids]
        return mix_datasets(parts, list(weights.values())) if len(parts) > 1 else parts[0]

    evaluated = args.eval_strategy != "no" or args.eval_on_start
    return mixed(env.train_split, env.train_tasks), mixed(env.eval_split, env.eval_tasks) if evaluated else None


def _check_sft(env: SFTArguments, args: SFTConfig, model: ModelConfig) -> tuple[()]:
    from agent_gym.trainers.sft import TRAIN_ON

    one_of("train_on", env.train_on, TRAIN_ON)
    if env.tiny and model.model_name_or_path is not None:
        raise ConfigError("--tiny makes a new model, so that --model_name_or_path has no use; give one of them")
    check_sft(args)
    for name, off in (("eval_strategy", "no"), ("eval_on_start", False), ("load_best_model_at_end", False)):
        value = getattr(args, name)
        if getattr(value, "value", value) != off:
            raise ConfigError(
                f"{name} is {value}, and sft evaluates nothing: leave it out; agent-gym eval plays a model"
            )
    _check_run(args, None if env.tiny else model)
    mapping("styles", env.styles)
    make_specs(env.env_id, env.kwargs, split=env.train_split, episodes=env.train_tasks, seed=args.seed)
    return ()


def _train_sft(env: SFTArguments, args: SFTConfig, model: ModelConfig) -> None:
    from agent_gym.trainers.hooks.run_card import write_imitation_card
    from agent_gym.trainers.sft import expert_episodes, train_sft

    name, meter, shown = model.model_name_or_path, Meter(), Counter[str]()
    if name is None:  # --tiny
        name = str(Path(str(args.output_dir)) / "tiny")
        with PartialState().main_process_first():
            if PartialState().is_main_process:
                make = make_tiny_vision_model if shows_images(env.env_id, env.kwargs) else make_tiny_model
                context = max(_TINY_CONTEXT, args.max_length or 0)
                make(name, env.env_id, env.kwargs, seed=args.seed, context=context)
    tokenizer = load_tokenizer(name)
    tasks: dict[str, Any] = {"split": env.train_split, "episodes": env.train_tasks, "seed": args.seed}
    styles = mapping("styles", env.styles) or None  # None for the expert's default

    def count(episode: Episode) -> None:
        shown.update(asked=1, failed=bool(episode.failure), played=not episode.failure)

    episodes = expert_episodes(env.env_id, env.kwargs, tokenizer, styles=styles, on_end=count, **tasks)
    rows = [row for episode in episodes for row in episode.rows]
    shown.update(shown=len(episodes), shown_tokens=sum(episode.sampled_tokens for episode in episodes))
    with _resume_hint(args), reporters(args) as callbacks:
        args.disable_tqdm = True  # the reporters show the episodes
        if resume := resume_point(args):
            check_checkpoint(Path(resume))
        model_args = {**_use_model(args, model), "callbacks": callbacks}
        trained = train_sft(name, tokenizer, rows, args, train_on=env.train_on, resume=resume, **model_args)
    of_expert = {"env_id": env.env_id, "env_kwargs": env.kwargs, "split": env.train_split, "styles": styles}
    write_imitation_card(trained, of_expert | {"tasks": shown["asked"]}, shown, meter)
    _finish(trained, args)


# The checks that find cheap mistakes of a command before models are loaded; and the functions that train.
COMMANDS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "grpo": (partial(_check_rl, False), partial(_train_rl, "AgentGRPOTrainer")),
    "ppo": (partial(_check_rl, True), partial(_train_rl, "AgentPPOTrainer")),
    "sft": (_check_sft, _train_sft),
}


def _use_model(args: Any, model: ModelConfig) -> dict[str, Any]:
    """Complete `args.model_init_kwargs`, whose own values win, and return the trainer's LoRA and quantization."""
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    return {"peft_config": get_peft_config(model), "quantization_config": get_quantization_config(model)}


def _check_run(args: Any, model: ModelConfig | None) -> None:
    """Find mistakes that would end the run late: no model, a used folder, trackers, the optimizer."""
    if model is not None:
        check_model(model.model_name_or_path)
        check_adapter(str(model.model_name_or_path), model.use_peft)
    if resume_point(args) is None and args.resume_from_checkpoint != "auto":
        refuse_used(args.output_dir)
    for name in args.report_to:
        try:
            (callback,) = get_reporting_integration_callbacks([name])
            if name != "codecarbon":  # which begins to measure when it is made
                callback()
        except ValueError as error:
            raise ConfigError(f"report_to: {one_line(error)}") from error
        except (ImportError, RuntimeError) as error:
            cure = f"{install_command('trackers')}, or --report_to none"
            raise ConfigError(f"report_to {name}: {one_line(error)}; {cure}") from error
    _check_optimizer(args)


def _check_optimizer(args: Any) -> None:
    """Make the optimizer and its schedule for one weight."""
    if not args.optim.startswith(("adamw_torch", "sgd", "adagrad", "rmsprop")):
        return  # others want the whole model
    steps = args.max_steps if args.max_steps > 0 else 10**6
    try:
        make, settings = Trainer.get_optimizer_cls_and_kwargs(args)
        get_scheduler(
            args.lr_scheduler_type,
            make([torch.nn.Parameter(torch.zeros(1))], **settings),
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the optimizer cannot be made of these settings: {one_line(error)}") from error


@contextmanager
def _resume_hint(args: Any) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if args.process_index == 0:
            print(f"agent-gym: {resume_hint(args.output_dir)}", file=sys.stderr)
        raise


def _finish(trainer: Any, args: Any) -> None:
    """Save the model with its card, push it if asked to, and leave the group of processes."""
    trainer.save_model(args.output_dir)
    trainer.create_model_card()
    trainer.accelerator.print(f"model: {args.output_dir}")
    if args.push_to_hub:
        trainer.push_to_hub()
    # Left to the end of the interpreter, the process group sometimes aborts the process, and the launcher reports a
    # failure after all is done.
    trainer.accelerator.end_training()
