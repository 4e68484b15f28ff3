"""Teachers: the logprobs of another model for each token that the policy wrote (on-policy distillation).

    rows of the policy -> (a hint is put in) -> the teacher reads them -> log p_teacher of the policy's own tokens

    A_t = reward_coef A_t(rewards) + teacher_coef sum_k teacher_gamma^(k-t) (log p_teacher(y_k) - log p_policy(y_k))

The sum is over the policy's tokens k from t on. The policy samples y_k, so that the mean of the difference is minus the
reverse KL, KL(policy || teacher), in the contexts that the policy itself comes into. The policy learns from the teacher
how to act after its own mistakes, which no demonstration shows (GKD, arXiv:2306.13649; MiniLLM, arXiv:2306.08543). This
estimate (k1) is a number without a gradient. It takes the way of every advantage: through the ratio, its clip and the
weights of the loss. With `teacher_gamma` 0 each token counts for itself alone, as in "On-Policy Distillation" (K. Lu,
Thinking Machines Lab, 2025). The gradient is then the gradient of the KL of this token, without the noise of all later
tokens. It leaves out that a token also decides in which contexts the later tokens are written.

A teacher may be the policy itself, given more to read: the answer, or the turns of an expert (on-policy
self-distillation, arXiv:2601.18734; of agents, arXiv:2602.04942). Tokens of the environment are read and never scored.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np
import torch
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head

from agent_gym.distributed import barrier_on_error
from agent_gym.errors import ConfigError
from agent_gym.policies.loading import load_whole
from agent_gym.policies.processors import load_encoder
from agent_gym.policies.scores import ServedScores, other_vocabulary, vocabulary_hash
from agent_gym.rollout import Episode, make_env
from agent_gym.testing import play, policy_texts
from agent_gym.trainers.batch import NOT_SAMPLED, Batch, Hint, TrainingEpisode, TrainingRow, collate
from agent_gym.trainers.credit import Estimate, Timeline, returns_to_go
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.losses import CLAMP
from agent_gym.trainers.model_probes import without_gradient

HintWriter = Callable[[Episode], str]
"""Writes the additional text that the teacher reads for a finished episode; the text may tell the episode's outcome."""


class Teacher(Hook):
    """The teacher of a trainer's `args`, with the writer of its hints, if it has any.

    Attributes:
        model: the teacher's frozen model; None where the teacher is the policy or a server.

    Raises:
        ConfigError: if the teacher cannot be loaded or reached, has another vocabulary than the policy, or does not go
            with the settings.
    """

    def __init__(self, trainer: Any, hint: HintWriter | None = None) -> None:
        args, name = trainer.args, trainer.args.teacher
        self.trainer, self.model, self._server = trainer, None, None
        self._write = TaskHint(args.teacher_hint) if args.teacher_hint else hint
        self._in_tokens = functools.lru_cache(maxsize=1024)(self._render_hint)  # a group shares its opening
        if args.teacher_hint and hint:
            raise ConfigError("teacher_hint and hint= both say what the teacher reads: give one of them")
        if self._write and trainer.vision is not None:
            raise ConfigError("hints do not know the images of rows: leave them out for a model that reads images")
        if name == "self" and not self._write:
            raise ConfigError("teacher 'self' reads what the policy reads, and finds what it finds: give teacher_hint")
        if name.startswith(("http://", "https://")):
            if trainer.vision is not None:
                raise ConfigError(f"teacher {name!r} is a server, which is not sent the images of rows: name a model")
            if trainer.temperature != 1.0:
                raise ConfigError(
                    f"temperature is {trainer.temperature}, and a server gives logprobs at 1: set temperature to 1, "
                    "or name a model as teacher"
                )
            self._server = ServedScores(name, trainer._tokenizer, args.max_episode_tokens)
        elif name == "initial" and not _keeps_its_start(trainer.model):
            if is_deepspeed_zero3_enabled():
                raise ConfigError("teacher 'initial' cannot copy weights in shares: name the policy's folder or id")
            self.model = self._prepared(copy.deepcopy(trainer.model))
        elif name not in ("self", "initial"):
            self.model = self._prepared(self._load(name))
        self.models = [] if self.model is None else [self.model]

    needs_old_logps = True

    def on_episode(self, kept: TrainingEpisode, episode: Episode) -> None:
        kept.hint = self.hint(episode)

    def after_score(self, rollout: RolloutBatch) -> None:
        rollout.batch["teacher_logps"] = self.score(rollout.batch, rollout.share)

    def on_estimate(self, estimate: Estimate, batch: Batch, timeline: Timeline) -> Estimate:
        return self.mix(estimate, batch, timeline)

    def _load(self, name: str) -> Any:
        trainer = self.trainer
        options = {"dtype": "auto", "trust_remote_code": trainer.args.trust_remote_code}
        try:
            model, encoder = load_whole(name, **options), load_encoder(name)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"teacher is {name!r}, which cannot be loaded: {error}; allowed: a model's folder, id or prepared "
                "name, a server's address, self, initial"
            ) from error
        _check_vocabulary(name, getattr(encoder, "tokenizer", encoder), trainer._tokenizer)
        rows, needed = (one.get_input_embeddings().num_embeddings for one in (model, trainer.model))
        if rows < needed:  # tables are padded, and a policy may sample an id without a token
            raise ConfigError(f"teacher {name!r} knows {rows} ids, the policy {needed}: take one with as many or more")
        add_fused_lm_head(
            model, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
        )
        return model

    def _prepared(self, model: Any) -> Any:
        """Freeze a model, and shard it as TRL shards a reference model."""
        trainer = self.trainer
        model.requires_grad_(False).eval()
        if trainer.is_deepspeed_enabled:
            return prepare_deepspeed(model, trainer.accelerator)
        if trainer.is_fsdp_enabled:
            return prepare_fsdp(model, trainer.accelerator)
        return trainer.accelerator.prepare_model(model, evaluation_mode=True)

    def hint(self, episode: Episode) -> Hint | None:
        """Return the teacher's text of an episode's opening; None without hints.

        The hint is added at the end of the last message of the opening.
        """
        text = self._write(episode) if self._write else ""
        if not text:
            return None
        opening = json.dumps(episode.initial_messages)
        for tools in (episode.tools, []):  # a template gets the tools only if it asks for their format
            found = self._in_tokens(opening, json.dumps(tools), text)
            if all(tuple(row.token_ids[: len(found.before)]) == found.before for row in episode.rows):
                return found
        raise ConfigError(
            f"a hint is put in after the opening, and the context {self.trainer.args.context!r} of "
            f"{episode.spec.env_id} has rows that begin otherwise: use append, window or budget, or no hint"
        )

    def _render_hint(self, opening: str, tools: str, text: str) -> Hint:
        *before, last = json.loads(opening)
        renderer = self.trainer.renderer
        plain, hinted = (
            renderer.prompt([*before, {**last, "content": content}], json.loads(tools))
            for content in (last["content"], f"{last['content']}\n\n{text}")
        )
        start = len(commonprefix([plain, hinted]))
        # Both prompts end alike after the hint: with the end of the message, and the header of the policy's turn.
        behind = len(commonprefix([plain[start:][::-1], hinted[start:][::-1]]))
        return Hint(tuple(plain[: len(plain) - behind]), tuple(hinted[: len(hinted) - behind]))

    def score(self, batch: Batch, episodes: Sequence[TrainingEpisode]) -> torch.Tensor:
        """Return (B, T) the teacher's logprob of each sampled token of a batch, 0 elsewhere, without gradient.

        The mean gap to the policy, an estimate of the reverse KL, is logged as `teacher/kl`. `episodes` are the
        episodes of which the batch was made. All processes take part, each with its own rows.
        """
        read: Batch = {name: batch[name] for name in _READ if name in batch}
        if any(episode.hint for episode in episodes):
            hinted = [dataclasses.replace(e, rows=[_hinted(row, e.hint) for row in e.rows]) for e in episodes]
            read = collate(hinted, len(batch["input_ids"]), self.trainer._tokenizer.pad_token_id)
        if self._server is not None:
            with barrier_on_error():
                found = self._ask(self._server, read)
        else:
            found = self._read(read)
        # Both batches have the same tokens in the same order; only their places in the rows differ.
        mask = batch["action_mask"]
        logps = found.new_zeros(mask.shape).masked_scatter(mask, found[read["action_mask"]])
        gap = (batch["old_logps"] - logps).clamp(-CLAMP, CLAMP)
        self.trainer._means.add("teacher/kl", gap, batch["weights"] > 0)
        return logps

    def _read(self, batch: Batch) -> torch.Tensor:
        trainer = self.trainer
        if self.model is not None:
            return trainer._score(self.model, batch, critic=False).logps
        initial = trainer.args.teacher == "initial"
        with trainer.initial_adapter() if initial else contextlib.nullcontext(), without_gradient(trainer.model):
            return trainer._score(trainer.model, batch, critic=False).logps

    @staticmethod
    def _ask(server: ServedScores, batch: Batch) -> torch.Tensor:
        asked = batch["action_mask"].any(1).nonzero().view(-1).tolist()
        lengths = batch["attention_mask"].sum(1).tolist()
        found = torch.zeros(batch["input_ids"].shape)
        logps = server.logprobs([batch["input_ids"][row, : lengths[row]].tolist() for row in asked])
        for row, scores in zip(asked, logps, strict=True):
            found[row, : len(scores)] = torch.tensor(scores)
        return found

    def mix(self, estimate: Estimate, batch: Batch, timeline: Timeline) -> Estimate:
        """Add the teacher's advantages to the advantages from rewards, by the formula above."""
        args = self.trainer.args
        gap = timeline.read((batch["teacher_logps"] - batch["old_logps"]).clamp(-CLAMP, CLAMP))
        own = returns_to_go(gap, args.teacher_gamma)
        mixed = args.reward_coef * estimate.advantages + args.teacher_coef * own
        return dataclasses.replace(estimate, advantages=mixed)


_READ = ("input_ids", "attention_mask", "action_mask", "episode_of", "read_ids", "images")


def _keeps_its_start(model: Any) -> bool:
    """Whether a model keeps the weights that training begins with: under its new adapter, or in TRL's copy."""
    if not hasattr(model, "peft_config"):
        return False
    # PEFT begins one factor of each delta with zeros, unless the adapter was trained before.
    zero = [weight for name, weight in model.named_parameters() if "lora_B" in name or "lora_embedding_A" in name]
    return "ref" in model.peft_config or not any(weight.any() for weight in zero)


def _check_vocabulary(name: str, teacher: Any, policy: Any) -> None:
    def spelled(tokenizer: Any) -> list[str]:
        tokens = {number: token for token, number in tokenizer.get_vocab().items()}
        return [tokens.get(number, "") for number in range(max(tokens) + 1)]

    theirs, mine = (vocabulary_hash(spelled(tokenizer)) for tokenizer in (teacher, policy))
    if theirs != mine:
        raise other_vocabulary(name, theirs, mine)


def _hinted(row: TrainingRow, hint: Hint | None) -> TrainingRow:
    """Return a row as the teacher reads it; its logprobs are zeros, since the teacher does not use them."""
    if hint is None:
        return row
    stop, ids = len(hint.before), np.array(hint.after, np.int32)
    steps = np.concatenate([np.full(len(ids), NOT_SAMPLED, np.int32), row.step_of[stop:]])
    return TrainingRow(np.concatenate([ids, row.token_ids[stop:]]), steps, np.zeros(len(steps), np.float32))


class TaskHint:
    """Fills a text with facts of the task: {gold} is its gold answer, and {plan} is the turns of the expert."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._env = functools.cache(lambda env_id, env_kwargs: make_env(env_id, json.loads(env_kwargs)))
        self._of = functools.lru_cache(maxsize=4096)(self._fill)

    def __call__(self, episode: Episode) -> str:
        spec = episode.spec
        return self._of(spec.env_id, json.dumps(dict(spec.env_kwargs)), spec.split, spec.index, spec.seed, spec.role)

    def _fill(self, env_id: str, env_kwargs: str, split: str, index: int, seed: int | None, role: str) -> str:
        env: Any = self._env(env_id, env_kwargs)
        text = self._text
        if "{gold}" in text:
            gold = env.unwrapped.gold(env.unwrapped.tasks[split][index])
            text = text.replace("{gold}", gold if isinstance(gold, str) else json.dumps(gold))
        if "{plan}" in text:
            actions = iter(env.unwrapped.expert_action, None)
            opened, *turns = play(env, actions, seed=seed, options={"split": split, "index": index})
            if role:  # an episode of self-play has the turns of all roles
                turns = [turn for turn in turns if turn[-1]["spans"][0].source == f"agent:{role}"]
            text = text.replace("{plan}", "\n".join(policy_texts([opened, *turns])))
        return text


def check_given(args: Any, hint: HintWriter | None = None, **_: Any) -> None:
    """Raise `ConfigError` for a hint without a teacher."""
    if hint is not None and args.teacher is None:
        raise ConfigError("hint= is what a teacher reads, and there is none: name one (teacher=...)")


def attach(trainer: Any) -> None:
    """Attach with `teacher`."""
    if trainer.args.teacher is not None:
        trainer.add_callback(Teacher(trainer, trainer.hint))
