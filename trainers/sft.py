"""Warm start: an environment's expert plays, and the policy imitates it.

Demonstrations are ordinary episodes of a scripted policy, so that supervised fine-tuning sees token for token the text
that the policy will see when it plays. The training itself is done by `trl.SFTTrainer`.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from datasets import Dataset
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, one_of
from agent_gym.evaluate import make_specs
from agent_gym.evaluate.room import with_room
from agent_gym.images import Vision
from agent_gym.policies import ScriptedPolicy
from agent_gym.policies.processors import image_inputs
from agent_gym.registry import EnvLike
from agent_gym.rollout import Budget, Episode, Row, Runner, warn_of_expert
from agent_gym.threads import use_cores
from agent_gym.trainers.checkpoints import WholeCheckpoints
from agent_gym.trainers.common import check_sft
from agent_gym.trainers.engine import warn_of_rounding
from agent_gym.trainers.forward import logits_at
from agent_gym.trainers.model_probes import check_adapters
from agent_gym.trainers.policy_model import policy_model
from agent_gym.trainers.public_arguments import reported

TRAIN_ON = ("policy", "all")


def expert_episodes(
    env_id: EnvLike,
    env_kwargs: Mapping[str, Any] | None,
    tokenizer: Any,
    *,
    split: str = "train",
    episodes: int | None = None,
    seed: int = 0,
    styles: Mapping[str, float] | None = None,
    budget: Budget | None = None,
    on_end: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Let the expert of an environment play the first `episodes` tasks of a split, or all.

    Returns the episodes that the expert solved in its default style, and all episodes of other styles, which may show
    mistakes. `styles` maps each style, which the environment names, to its share of the episodes. `seed` decides which
    episode has which style. `tokenizer` may be a tokenizer, a processor or a `ChatRenderer`. `on_end` is called with
    every episode as it ends, including episodes that are not returned. Raises `ConfigError` if the environment has no
    expert or does not know a style, or the shares are not positive.
    """
    styles = dict(styles or {"default": 1.0})
    if min(styles.values()) < 0 or sum(styles.values()) <= 0:
        raise ConfigError(f"styles is {styles}; shares must be positive numbers, for example {{'default': 1.0}}")
    specs = make_specs(env_id, env_kwargs, split=split, episodes=episodes, seed=seed)
    # The style is chosen by the number of the task, which is played once.
    style_of = random.Random(seed).choices(list(styles), weights=list(styles.values()), k=len(specs))

    def act(episode: Any) -> str:
        env, style = episode.env.unwrapped, style_of[episode.spec.index]
        if style == "default":
            return env.expert_action()
        if not inspect.signature(env.expert_action).parameters:
            raise ConfigError(f"the expert of {type(env).__name__} has no style {style!r}; known: default")
        return env.expert_action(style)

    renderer = ChatRenderer.of(tokenizer)
    if budget is None:
        budget, line = with_room(Budget(), specs, renderer)
        if line:
            warnings.warn(line, RuntimeWarning, stacklevel=2)
    with contextlib.closing(Runner(ScriptedPolicy(act, renderer.encode_action), renderer, budget, workers=4)) as runner:
        played = runner.run(specs, on_end=on_end)
    default = [style == "default" for style in style_of]
    warn_of_expert(list(itertools.compress(played, default)))
    return [e for e, own in zip(played, default, strict=True) if not e.failure and (e.success or not own)]


def sft_dataset(rows: Sequence[Row], train_on: str = "policy") -> Dataset:
    """Turn rows into the form that `trl.SFTTrainer` takes as it is: `input_ids`, `labels`, and the row's number `row`.

    With `train_on` "policy" the policy's tokens have labels. With "all" questions and observations have labels, too,
    which teaches an untrained model to copy numbers sooner. Tokens of images never have labels. Raises `ConfigError`
    for another `train_on`, or no rows.
    """
    one_of("train_on", train_on, TRAIN_ON)
    if not rows:
        raise ConfigError("there are no demonstrations to train on: the expert solved none of its episodes")
    examples = []
    for number, row in enumerate(rows):
        masked = zip(row.token_ids, row.action_mask, strict=True)
        labels = [i if mine or train_on == "all" else -100 for i, mine in masked]
        for _, start, stop in row.images:
            labels[start:stop] = [-100] * (stop - start)
        examples.append({"input_ids": row.token_ids, "labels": labels, "row": number})
    return Dataset.from_list(examples)


def _collate(
    rows: Sequence[Row], vision: Vision, pad_token_id: int, examples: Sequence[Mapping[str, Any]]
) -> dict[str, torch.Tensor]:
    """Make a batch of examples, which name their row by number; TRL supports images only as files."""
    chosen = [rows[example["row"]] for example in examples]
    read = [torch.tensor(vision.readable(row.token_ids, row.images)) for row in chosen]
    labels = [torch.tensor(example["labels"]) for example in examples]
    ids = pad_sequence(read, batch_first=True, padding_value=pad_token_id)
    return {
        "input_ids": ids,
        "attention_mask": pad_sequence([torch.ones_like(one) for one in read], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        **image_inputs(vision, ids, [image for row in chosen for image, *_ in row.images]),
    }


class _LabelledTokens(WholeCheckpoints, SFTTrainer):
    """TRL's trainer, with an output layer that reads only the places before labels (TRL's does so only with Triton).

    This project writes its model card and its checkpoints.
    """

    def _about(self) -> dict[str, Any]:
        return {}

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.label_smoother is not None or self.compute_loss_func is not None:  # both read all logits
            return super().compute_loss(model, inputs, *args, **kwargs)
        labels = inputs["labels"][:, 1:]
        places = pad(labels != -100, (0, 1)).flatten().nonzero()[:, 0]
        inputs = {**inputs, "shift_labels": labels[labels != -100][None]}
        with logits_at(self.accelerator.unwrap_model(model), places):
            return super().compute_loss(model, inputs, *args, **kwargs)


def train_sft(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    args: SFTConfig,
    *,
    train_on: str = "policy",
    resume: str | bool | None = None,
    **kwargs: Any,
) -> SFTTrainer:
    """Imitate the rows and return the trainer, trained.

    `model` is an id, a folder (also of an adapter), the name of a prepared model, or a loaded model. `tokenizer` may be
    the processor of a model that reads images. `resume` is a checkpoint to continue from, True for the last one.
    `kwargs` are passed to `trl.SFTTrainer`. Raises `ConfigError` for `args.packing` and other settings that have no
    effect here, and if a demonstration is longer than `args.max_length` or than the model's context. A demonstration is
    never cut, because the end of an episode is its answer.
    """
    check_sft(args)
    if args.packing:  # packing is part of the preparation that is skipped below
        raise ConfigError(
            "packing is True, and demonstrations are not packed: leave it out. padding_free leaves out padding, and "
            "per_device_train_batch_size sets how many rows a step has"
        )
    longest = max((len(row.token_ids) for row in rows), default=0)
    if args.max_length is not None and longest > args.max_length:
        raise ConfigError(
            f"the longest demonstration has {longest} tokens, max_length is {args.max_length}: raise it, or let it "
            "be None, for no limit but the model's"
        )
    dataset = sft_dataset(rows, train_on)
    # The rows are already ids and labels; TRL's preparation would only read them all again.
    args.dataset_kwargs = {**cast(dict[str, Any], args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    vision = ChatRenderer.of(tokenizer).vision
    if vision is not None:
        kwargs["data_collator"] = partial(_collate, rows, vision, tokenizer.tokenizer.pad_token_id)
        args.remove_unused_columns = False  # the collator reads the number of the row
    kwargs |= {"args": reported(args), "train_dataset": dataset, "processing_class": tokenizer}
    with policy_model(model, args, kwargs) as weights:
        trainer = _LabelledTokens(model=weights, **kwargs)
    check_adapters(trainer.model)
    warn_of_rounding(trainer)
    use_cores(trainer.model)
    context = getattr(cast(Any, trainer.model).config.get_text_config(), "max_position_embeddings", None)
    if context is not None and longest > context:
        raise ConfigError(
            f"the longest demonstration has {longest} tokens, and the model reads {context}: take a model with a "
            "longer context, or an environment that writes less"
        )
    if kwargs.get("callbacks"):
        trainer.remove_callback(PrinterCallback)  # a caller with callbacks prints its lines itself
    trainer.train(**({} if resume is None else {"resume_from_checkpoint": resume}))
    return trainer
