"""How a model of transformers is advanced token by token, and which way of doing it is right for it.

Models keep their state in different places: keys and values of attention, the state of a recurrence, a window of a
convolution. Left padding flows through some of these, a row cannot be taken out of others, and a few keep nothing that
can be handed back. Names of models do not tell; a few steps over random tokens do, compared with one whole pass over
each row, which is how the loss reads it. `right_way` takes the first of `WAYS` whose numbers agree:

    padded   prompts of unequal length share a batch, padded on the left; else a batch has prompts of one length
    alone    a batch has one row, for models that read several wrongly
    select   rows that have ended leave the batch; else they stay in it until all have
    cached   the model's own cache is used; else each token costs a pass over the whole row
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, cast

import torch

_CACHES = ("past_key_values", "cache_params", "state", "past_buckets_states", "mems")
"""The names under which models of transformers take and return the state of the tokens before."""
_PROMPTS, _STEPS, _LEAVES = (11, 5, 8), 5, 2
_FAILURES = (TypeError, ValueError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError)


class Way(NamedTuple):
    """How the rows of a batch are advanced, see the head of this file."""

    padded: bool = True
    select: bool = True
    alone: bool = False
    cached: bool = True

    @property
    def described(self) -> str:
        """The reason for which it is slower than the first way."""
        if not self.cached:
            return "by a pass over the whole row for each token, since no cache of the model gives the same numbers"
        if self.alone:
            return "one row after the other"
        parts = [
            "with prompts of one length in a batch" * (not self.padded),
            "with rows that have ended kept in the batch" * (not self.select),
        ]
        return " and ".join(filter(None, parts))


WAYS = (
    Way(),
    Way(select=False),
    Way(padded=False),
    Way(padded=False, select=False),
    Way(padded=False, alone=True),
    Way(cached=False),
)


class Cached:
    """The rows of a batch, whose state the model keeps in its own kind of cache."""

    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, None
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        takes = inspect.signature(type(base).forward).parameters
        self._name = next((name for name in _CACHES if name in takes), _CACHES[0])
        any_name = any(one.kind is one.VAR_KEYWORD for one in takes.values())
        self._unknown = set() if any_name else {"position_ids", "logits_to_keep"} - set(takes)

    def step(self, ids: torch.Tensor, mask: Any, positions: torch.Tensor, **inputs: Any) -> torch.Tensor:
        """Read the next tokens (N, T) and return the logits (N, V) after the last of them.

        `mask` (N, all tokens so far) has 0 for padding; `positions` are of the next tokens.
        """
        if self._cache is not None:
            inputs[self._name] = self._cache
            # A recurrence alone would take the mask of all tokens for that of the next: none of these is padding.
            mask = mask if self._name == _CACHES[0] else None
        inputs |= {"position_ids": positions, "logits_to_keep": 1}
        known = {name: value for name, value in inputs.items() if name not in self._unknown}
        output = self._model(input_ids=ids, attention_mask=mask, use_cache=True, **known)
        self._cache = getattr(output, self._name, None)
        if self._cache is None:
            raise TypeError(f"{type(self._model).__name__} returns no {self._name}")
        return output.logits[:, -1]

    def keep(self, rows: torch.Tensor) -> None:
        """Continue with these rows (M,) of the batch only."""
        self._cache = _selected(self._cache, rows)


class Recomputed:
    """The rows of a batch, which are read as a whole for each token, padded on the right as the loss pads them."""

    def __init__(self, model: Any) -> None:
        self._model, self._ids = model, torch.empty(0)

    def step(self, ids: torch.Tensor, mask: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        """As `Cached.step`; positions are left to the model, as in the loss."""
        self._ids = torch.cat([self._ids, ids], 1) if len(self._ids) else ids
        order = mask.argsort(dim=1, descending=True, stable=True)
        output = self._model(
            input_ids=self._ids.gather(1, order), attention_mask=mask.gather(1, order), use_cache=False
        )
        return output.logits[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]

    def keep(self, rows: torch.Tensor) -> None:
        """Continue with these rows (M,) of the batch only."""
        self._ids = self._ids[rows]


def past_of(model: Any, way: Way) -> Cached | Recomputed:
    """Begin a batch."""
    return Cached(model) if way.cached else Recomputed(model)


def _selected(state: Any, rows: torch.Tensor) -> Any:
    from transformers.cache_utils import Cache

    if isinstance(state, Cache):
        # Layers with both attention and a recurrence inherit a `batch_select_indices` of the attention alone, and
        # layers with a recurrence alone have none, so that the general method is not used. A cache may have its own
        # method.
        if type(state).batch_select_indices is not Cache.batch_select_indices:
            state.batch_select_indices(rows)
        else:
            state.reorder_cache(cast(Any, rows))
        return state
    if isinstance(state, torch.Tensor):
        return state.index_select(0, rows)
    if isinstance(state, list | tuple):
        return type(state)(_selected(part, rows) for part in state)
    if isinstance(state, dict):
        return {name: _selected(part, rows) for name, part in state.items()}
    if state is None:
        return None
    raise TypeError(f"rows of {type(state).__name__} cannot be selected")


def right_way(model: Any, pad_token_id: int, context: int | None = None) -> Way:
    """Return the first way that agrees with a pass over each whole row; the last way if none is known to.

    The model is in evaluation mode, and no gradient is wanted. One that cannot be asked, because its context is shorter
    than the rows or a whole pass fails, is taken to go the first way.
    """
    if context is not None and context < max(_PROMPTS) + _STEPS:
        return WAYS[0]
    device, rows = next(model.parameters()).device, _random_rows(model)
    try:
        whole = [_whole(model, row[None].to(device)) for row in rows]
    except _FAILURES:
        return WAYS[0]
    exact = whole[0].dtype == torch.float32 and model.dtype == torch.float32
    for way in WAYS[:-1]:
        try:
            gap = _gap(model, way, rows, whole, pad_token_id, exact)
        except _FAILURES:
            continue
        # Half precision rounds a token after a cache otherwise than in a whole row, and kernels of recurrences bound
        # their steps otherwise. A wrong history is far beyond.
        if gap <= (0.01 if exact else 0.05):
            return way
    return WAYS[-1]


def _whole(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logprobs (T, V) of one pass over a row (1, T), as the loss makes it."""
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].log_softmax(-1)


def _gap(
    model: Any, way: Way, rows: list[torch.Tensor], whole: list[torch.Tensor], pad_token_id: int, exact: bool
) -> float:
    """Advance rows whose continuation is given, of which the first leaves; return the difference of logprobs in nats.

    The largest is taken where numbers are `exact`, otherwise the mean.
    """
    groups = [[0, 1, 2]] if way.padded else [[k] * (1 if way.alone else 2) for k in range(len(rows))]
    gaps = []
    for group in groups:
        past, prompts = past_of(model, way), [_PROMPTS[number] for number in group]
        width, device = max(prompts), whole[0].device
        padded = [
            torch.cat([torch.full((width - n,), pad_token_id), rows[k][:n]])
            for n, k in zip(prompts, group, strict=True)
        ]
        ids = torch.stack(padded).to(device)
        mask = torch.tensor([[0] * (width - n) + [1] * n for n in prompts], device=device)
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        live = list(range(len(group)))
        for step in range(_STEPS):
            logprobs = past.step(ids, mask, positions).log_softmax(-1)
            there = torch.stack([whole[group[i]][prompts[i] - 1 + step] for i in live])
            gaps.append((logprobs[range(len(live))] if way.select else logprobs[live]).sub(there).abs())
            ids = torch.stack([rows[group[i]][prompts[i] + step] for i in range(len(group))])[:, None].to(device)
            positions = positions[:, -1:] + 1
            if step + 1 >= _LEAVES and not way.alone:
                if step + 1 == _LEAVES:
                    live = live[1:]
                    if way.select:
                        keep = torch.tensor(live, device=device)
                        past.keep(keep)
                        mask, positions = mask[keep], positions[keep]
                ids = ids[live] if way.select else ids
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    joined = torch.cat([gap.flatten() for gap in gaps]).float()
    return float(joined.max() if exact else joined.mean())


def _random_rows(model: Any) -> list[torch.Tensor]:
    """Random tokens, among them no image and no end, by a separate stream."""
    config = model.config.get_text_config()
    named = {**model.config.to_dict(), **config.to_dict()}
    special = {value for name, value in named.items() if "_token_i" in name and isinstance(value, int)}
    common = torch.tensor([token for token in range(config.vocab_size) if token not in special][:100_000])
    stream = torch.Generator().manual_seed(0)
    return [common[torch.randint(len(common), (length + _STEPS,), generator=stream)] for length in _PROMPTS]
