"""The forward pass that leaves out work: the same numbers as `RowTrainer.plain_forward`, in less time and memory.

    logits that no loss reads    `logits_at`, for any model
    the logits, all at once      TRL's fused output layer, unless the model's own differs (`probe_fused_head`)
    padding                      `pack_rows`, after `check_packing`
    common prefixes of rows      `share_prefixes`, if `can_share_prefixes`

model_probes.py decides which of them a model can do. A `Layout` says how the model reads the rows of a micro-batch:

    pad_rows         a a a b b b      pack_rows   a a a b b b a a a c c a a a d d d
                     a a a c c .                  0 1 2 3 4 5 0 1 2 3 4 0 1 2 3 4 5    position_ids
                     a a a d d d

    share_prefixes   a a a b b b c c d d d
                     0 1 2 3 4 5 3 4 3 4 5    position_ids

The rows of a group begin with the same tokens: the task, the tools, the system prompt, and the turns that are alike. A
model computes a token from the tokens before it, so one copy of a common prefix serves all rows. Only attention
separates the rows again (`ROW_ATTENTION`). The gradient of a token is the sum over its rows, and the loss is that of
padded rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from accelerate.utils import is_peft_model
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_gym.policies.processors import image_inputs
from agent_gym.trainers.batch import Batch
from agent_gym.trainers.losses import logprobs_and_entropy

ROW_ATTENTION = "rows"
"""The name of the attention with which a model reads `share_prefixes`; it reads any other input as `sdpa` does."""


class Scores(NamedTuple):
    """The result of one forward pass over a batch of rows."""

    logps: torch.Tensor
    """(B, T) logprob of each sampled token, 0 elsewhere."""
    entropy: torch.Tensor | None = None
    """(B, T) entropy of the distribution that each token was sampled from, 0 elsewhere; None from a reference model."""
    aux_loss: torch.Tensor | None = None
    """The loss of a mixture of experts for the balance of its load."""
    values: torch.Tensor | None = None
    """(B, T) the critic's value of the state *after* each token."""


def fast_forward(trainer: Any, model: Any, batch: Batch, *, critic: bool = False, **kwargs: Any) -> Scores:
    """Run a model over the rows of a `RowTrainer` and score the sampled tokens; with `critic`, give values, too.

    The output layer reads only the places before sampled tokens. The environment's tokens have no logprobs that a loss
    could use by mistake, and no logits are computed for them.
    """
    layout, mask = layout_of(trainer, batch), batch["action_mask"]
    places = layout.place[batch["attention_mask"] > 0]
    for hook in trainer.hooks:
        hook.after_forward(places)
    targets, labels = layout.place[:, :-1][mask[:, 1:]], batch["input_ids"][mask]
    if not len(targets):  # only dummies, whose zero gradient other processes wait for
        targets = labels = mask.new_zeros(1, dtype=torch.long)
    # Rows that share a place and the token that was sampled there share its logits, too.
    (targets, labels), same = torch.stack([targets, labels]).unique(dim=1, return_inverse=True)
    fused = trainer.fused_lm_head
    head = {"shift_labels": labels[None], "fused_lm_head": True} if fused else {"use_cache": False}
    inputs = {**layout.inputs, **head, **({"critic": True} if critic else {}), **kwargs}
    with trainer.accelerator.autocast(), logits_at(trainer.accelerator.unwrap_model(model), targets):
        output = model(**inputs)
    output, values = output if critic else (output, None)
    if fused:
        logps, entropy = output.log_probs, output.entropy
    else:
        logps, entropy = logprobs_and_entropy(output.logits, labels[None], trainer.temperature)

    def in_rows(numbers: Any) -> Any:
        return None if numbers is None else numbers.new_zeros(mask.shape).masked_scatter(mask, numbers[0, same])

    values = None if values is None else values.flatten()[layout.place]
    return Scores(in_rows(logps), in_rows(entropy), aux_loss_of(output), values)


def aux_loss_of(output: Any) -> torch.Tensor | None:
    """Return the load balance of experts in a model's output; it is the number 0 where no router was recorded."""
    aux_loss = getattr(output, "aux_loss", None)
    return aux_loss if isinstance(aux_loss, torch.Tensor) else None


def base_model_of(model: Any) -> Any:
    """Return the model that PEFT has wrapped, or the model itself."""
    return model.get_base_model() if is_peft_model(model) else model


@contextlib.contextmanager
def logits_at(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Let the output layer of a model read only these places (M,) of its flattened hidden states."""

    def select(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[places][None]
        return output

    hook = base_model_of(model).base_model.register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()


class Layout(NamedTuple):
    """The rows of a micro-batch as the model reads them."""

    inputs: dict[str, Any]  # arguments of the model, (L, N): padded rows have no position_ids, packed rows no mask
    place: torch.Tensor  # (B, T) position of each token of a row among the L * N; undefined in padding


def layout_of(trainer: Any, batch: Batch) -> Layout:
    """Lay out rows in the way that the settings and the model of a `RowTrainer` allow."""
    if trainer.args.packing:
        return pack_rows(batch)
    return share_prefixes(batch) if trainer.shares_prefixes else padded_layout(trainer, batch)


def padded_layout(trainer: Any, batch: Batch) -> Layout:
    """Write each row of a `RowTrainer` in a line, with its images if the model reads some."""
    if trainer.vision is None:
        return pad_rows(batch)
    images = image_inputs(trainer.vision, batch["read_ids"], batch["images"].flat)
    return pad_rows({**batch, "input_ids": batch["read_ids"]}, **images)


def pad_rows(batch: Batch, **inputs: Any) -> Layout:
    """Write each row in a line; `inputs` are further arguments of the model, such as images."""
    ids = batch["input_ids"]
    place = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    return Layout({"input_ids": ids, "attention_mask": batch["attention_mask"], **inputs}, place)


def pack_rows(batch: Batch) -> Layout:
    """Write all rows in one line. Without a mask, transformers starts attention anew where the positions start anew."""
    kept = batch["attention_mask"].bool()
    place = (kept.flatten().cumsum(0) - 1).clamp(min=0).view_as(kept)
    positions = (kept.cumsum(1) - 1)[kept][None]
    return Layout(
        {"input_ids": batch["input_ids"][kept][None], "position_ids": positions, "attention_mask": None}, place
    )


def share_prefixes(batch: Batch) -> Layout:
    """Write all rows in one line, without padding, and each common prefix once; only `ROW_ATTENTION` can read it.

    A row shares the tokens that it has in common with the row before it, so rows should be in lexicographic order.
    """
    ids, attended = batch["input_ids"], batch["attention_mask"].bool()
    columns, rows = torch.arange(ids.size(1), device=ids.device), torch.arange(len(ids), device=ids.device)
    alike = (ids[1:] == ids[:-1]) & attended[1:] & attended[:-1]
    common = pad(alike.long().cumprod(1).sum(1), (1, 0))  # (B,) tokens that were written for an earlier row
    written = columns >= common[:, None]
    own = written & attended
    owner = torch.where(written, rows[:, None], 0).cummax(0).values  # the row for which a token is written
    place = (own.flatten().cumsum(0) - 1).view_as(ids).gather(0, owner)
    inputs = {"input_ids": ids[own][None], "position_ids": columns.expand_as(ids)[own][None]}
    return Layout({**inputs, "attention_mask": place[None, None]}, place)


def first_token_at(place: torch.Tensor, count: int) -> torch.Tensor:
    """Return (count,) the first token of the flattened rows at each place, from the places (B, T) of all tokens."""
    numbers = torch.arange(place.numel(), device=place.device)
    return numbers.new_full((count,), len(numbers)).scatter_reduce(0, place.flatten(), numbers, "amin")


def _row_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Attend as `sdpa` does; with the places (1, 1, B, T) of `share_prefixes` as mask, each row to its tokens only.

    The keys and values of a common prefix are copied to each of its rows here, so no mask has to separate the rows.
    The queries of a common prefix are computed for each row, and the result of the first row is taken.
    """
    if mask is None or mask.dtype != torch.long:
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    place = mask[0, 0]

    def in_rows(states: torch.Tensor) -> torch.Tensor:  # (1, heads, N, D) to (B, heads, T, D)
        return states[0].transpose(0, 1).index_select(0, place.flatten()).unflatten(0, place.shape).transpose(1, 2)

    output, _ = sdpa_attention_forward(module, in_rows(query), in_rows(key), in_rows(value), None, **kwargs)
    return output.flatten(0, 1).index_select(0, first_token_at(place, query.size(2)))[None], None


AttentionInterface.register(ROW_ATTENTION, _row_attention)
AttentionMaskInterface.register(ROW_ATTENTION, sdpa_mask)
