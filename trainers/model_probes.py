"""Probes of a model: which work a forward pass over its rows may leave out (forward.py).

Some models carry information from token to token that no mask holds back: the state of a state-space layer, a
convolution, or positions that the model counts by itself. Such a model can neither pack rows nor share prefixes. The
name of a model does not tell this; two passes over random tokens do.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from agent_gym.errors import ConfigError
from agent_gym.renamed import renamed
from agent_gym.trainers.batch import RowImages
from agent_gym.trainers.forward import ROW_ATTENTION, base_model_of

_LONG, _SHORT = 48, 16
_GAIN = 16.0
_FAILURES = (TypeError, ValueError, AttributeError, LookupError, NotImplementedError, RuntimeError)


def check_adapters(model: Any) -> None:
    """Raise `ConfigError` for adapters that move the places of tokens, or add a part to the output layer."""
    for name, config in model.peft_config.items() if is_peft_model(model) else ():
        if config.is_prompt_learning:
            raise ConfigError(
                f"the adapter {name!r} is of the type {config.peft_type}, which puts tokens in front of rows; allowed: "
                "types that change weights, such as LORA"
            )
        if getattr(config, "trainable_token_indices", None) and model.get_base_model().config.tie_word_embeddings:
            raise ConfigError(
                f"the adapter {name!r} has trainable_token_indices, and the embedding is the output layer, too, whose "
                "weight logprobs are computed from: leave them out, or train the whole embedding (modules_to_save and "
                "ensure_weight_tying)"
            )


def check_packing(trainer: Any) -> None:
    """Raise `ConfigError` if a model of a `RowTrainer` does not keep packed rows apart, or takes no positions."""
    # The first row is long enough to reach the second, if anything does.
    lengths = torch.tensor([_LONG, _SHORT])
    for model in _models_of(trainer):
        try:
            pairs = ([random_row(trainer, seed), random_row(trainer, 2)] for seed in (0, 1))
            one, other = (random_scores(trainer, model, pair, lengths) for pair in pairs)
            moved = (one[1] - other[1]).abs().max().item()
            if moved <= tolerance(trainer, model, 0.02):
                continue
            why = f"another first row moves the logprobs of the second by {moved:.2g}"
        except _FAILURES as error:
            why = f"it fails with {type(error).__name__}: {error}"
        config = trainer.accelerator.unwrap_model(model).config
        raise ConfigError(
            f"packing does not work with {config.model_type!r} and attention {config._attn_implementation!r}: {why}. "
            "Leave packing out; micro_batch_tokens keeps padding small. Packed rows need attention that starts anew "
            "where position_ids do: flash_attention_2, sdpa, eager or flex_attention, and no state-space layers"
        )


def can_share_prefixes(trainer: Any) -> bool:
    """Whether the rows of a `RowTrainer` may share their prefixes (`share_prefixes`), which needs `ROW_ATTENTION`.

    Sliding windows need a mask, and the load balance of experts counts tokens by the mask of padded rows. All models
    that read rows have to be able to share.
    """
    return all(_can_share_prefixes(trainer, model) for model in _models_of(trainer))


def _can_share_prefixes(trainer: Any, wrapped: Any) -> bool:
    model = trainer.accelerator.unwrap_model(wrapped)
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    if (
        trainer.vision is not None
        or trainer.args.packing
        or trainer.aux_loss_enabled
        or model.config._attn_implementation not in ("sdpa", ROW_ATTENTION)
        or set(kinds) != {"full_attention"}
    ):
        return False
    prefix, *rests = (random_row(trainer, seed) for seed in range(4))
    rows = [[torch.cat([prefix, rest[:_SHORT]]) for rest in pair] for pair in (rests[:2], [rests[2], rests[1]])]
    lengths = torch.tensor([_LONG + _SHORT] * 2)
    try:
        padded = random_scores(trainer, wrapped, rows[0], lengths, _LONG)
        _set_row_attention(model, trainer.ref_model)
        trainer.shares_prefixes = True
        one, other = (random_scores(trainer, wrapped, pair, lengths, _LONG) for pair in rows)
    except _FAILURES:
        return False
    finally:
        trainer.shares_prefixes = False
    # Another kernel sums in another order, which makes a large difference in half precision. The separation of the rows
    # is exact.
    apart = (one[1] - other[1]).abs().max().item() <= tolerance(trainer, model, 0.02)
    return apart and (one - padded).abs().mean().item() <= tolerance(trainer, model, 0.05)


def probe_fused_head(trainer: Any) -> bool:
    """Whether TRL's fused output layer gives the logprobs of the model's own output layer.

    TRL knows caps and scales of logits by the names of their settings, and takes the last layer for the whole head. The
    two are compared on random tokens, and also on louder hidden states: a cap shows only on large logits, which an
    untrained model does not have.
    """
    return all(_has_fused_head(trainer, model, gain) for model in _models_of(trainer) for gain in (1.0, _GAIN))


def _has_fused_head(trainer: Any, model: Any, gain: float) -> bool:
    rows, lengths = random_rows(trainer, 2)
    found: list[torch.Tensor] = []
    try:
        with _amplified(trainer.accelerator.unwrap_model(model), gain):
            for trainer.fused_lm_head in (False, True):
                found.append(random_scores(trainer, model, rows, lengths)[:, 0])
    except _FAILURES:
        return not found  # the model's own forward pass works
    finally:
        trainer.fused_lm_head = True
    gap = (found[0] - found[1]).abs()
    # In half precision the model rounds its logits, and the fused layer does not.
    exact = tolerance(trainer, model, 1.0) < 1.0
    return not (gap.max() > 1e-4 * gain if exact else gap.mean() > 0.02 * gain)


def probe_router(trainer: Any) -> None:
    """Take the load balance of experts from an output layer that can give it, or leave it out with a warning.

    TRL's output layer knows fewer names of settings than the models' output layers, and some models record no choices
    of their routers.
    """
    if not trainer.aux_loss_enabled:
        return
    rows, lengths = random_rows(trainer, 2)
    chosen, why = trainer.fused_lm_head, ""
    for fused in (chosen, False):
        trainer.fused_lm_head = fused
        try:
            random_scores(trainer, trainer.model_wrapped, rows, lengths, output_router_logits=True)
            return
        except _FAILURES as error:
            why = why or f"{type(error).__name__}: {error}"
    trainer.fused_lm_head, trainer.aux_loss_enabled = chosen, False
    kind = trainer.accelerator.unwrap_model(trainer.model_wrapped).config.model_type
    warnings.warn(
        f"{kind!r} gives no load balance of its experts ({why}): router_aux_loss_coef does nothing", stacklevel=2
    )


@contextlib.contextmanager
def _amplified(model: Any, gain: float) -> Iterator[None]:
    """Multiply the input of a model's output layer."""

    def louder(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * gain
        return output

    hook = base_model_of(model).base_model.register_forward_hook(louder)
    try:
        yield
    finally:
        hook.remove()


def _models_of(trainer: Any) -> list[Any]:
    """The policy, and the models of hooks; a reference model is built like the policy."""
    return [trainer.model_wrapped, *(model for hook in trainer.hooks for model in hook.models)]


def _set_row_attention(*models: Any) -> None:
    """Set the attention of models, and of a critic in them."""
    for part in (part for model in models if model is not None for part in model.modules()):
        if isinstance(part, PreTrainedModel):
            part.set_attn_implementation(ROW_ATTENTION)


@contextlib.contextmanager
def without_gradient(model: Any, *, training: bool = False) -> Iterator[None]:
    """Let a model run without gradient, in evaluation mode or with `training` in training mode; restore its mode."""
    before = model.training
    model.train(training)
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # no backward pass follows, for which it may keep weights
                module.reshard()


def tolerance(trainer: Any, model: Any, half: float) -> float:
    """Return the most that logprobs of two passes, equal in exact arithmetic, may differ; `half` in 16 bits."""
    # Experts take their tokens in groups, and the size of a group changes the last digits.
    dtype = trainer.accelerator.unwrap_model(model).dtype
    return 1e-4 if dtype == torch.float32 and not trainer.accelerator.native_amp else half


def random_rows(trainer: Any, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return rows of random tokens and their lengths (B,), the arguments of `random_scores`."""
    return [random_row(trainer, seed) for seed in range(count)], torch.tensor([_LONG] * count)


def random_row(trainer: Any, seed: int) -> torch.Tensor:
    """Return (_LONG,) random tokens."""
    vocabulary = trainer.accelerator.unwrap_model(trainer.model_wrapped).config.get_text_config().vocab_size
    return torch.randint(vocabulary, (_LONG,), generator=torch.Generator().manual_seed(seed))


def random_scores(
    trainer: Any,
    model: Any,
    rows: list[torch.Tensor],
    lengths: torch.Tensor,
    first: int = 1,
    *,
    training: bool = False,
    **inputs: Any,
) -> torch.Tensor:
    """Score rows of random tokens, sampled from `first` on; return logprobs, followed by the values of a critic.

    The model runs in evaluation mode, or as in training with `training`, and gets the further inputs.
    """
    device, critic = trainer.accelerator.device, None if model is trainer.model_wrapped else False
    ids, places = torch.stack(rows), torch.arange(len(rows[0]))
    attended = places < lengths[:, None]
    sampled = attended & (places >= first)
    columns = {"input_ids": ids, "attention_mask": attended.long(), "action_mask": sampled}
    batch: dict[str, Any] = {name: value.to(device) for name, value in columns.items()}
    if trainer.vision is not None:  # a token of an image has no image here
        batch["read_ids"] = torch.tensor([trainer.vision.readable(row.tolist(), ()) for row in ids], device=device)
        batch["images"] = RowImages([()] * len(rows))
    with without_gradient(model, training=training):
        scores = trainer._forward(model, batch, critic=critic, **inputs)
    if "output_router_logits" in inputs and scores.aux_loss is None:
        raise ValueError("its output has none")
    parts = [scores.logps] if scores.values is None else [scores.logps, scores.values]
    return torch.stack([part.masked_fill(~attended.to(device), 0.0) for part in parts], 1)


__getattr__ = renamed(
    __name__,
    {
        "can_share": "can_share_prefixes",
        "reading": "without_gradient",
        "reading_only": "agent_gym.trainers.forward:logits_at",
        "settle_router": "probe_router",
        "unadapted": "agent_gym.trainers.forward:base_model_of",
    },
)
