"""The engine that needs nothing but transformers: batched decoding with a key/value cache, and how tokens are drawn.

It shares the live model, so no weights have to be pushed and no second copy in memory. It is the fallback where vLLM
cannot be installed, and the reference for vLLM in the tests. A request that arrives while a batch is being decoded
waits for the batch, and no prefix is kept between turns.

Each request owns its randomness. It brings its own generator and spends one uniform number per token, which inverts the
cumulative distribution, so its tokens depend on its seed and its logits alone (up to the rounding of the logits, which
does depend a little on the batch). vLLM on a CPU shares this code and draws the same tokens.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from agent_gym.errors import ConfigError
from agent_gym.policies.base import FinishReason, Generation, Request, SamplingParams, check_request
from agent_gym.policies.processors import image_inputs, rotary_positions
from agent_gym.policies.stepping import WAYS, Way, past_of, right_way
from agent_gym.policies.vocabulary import embedding_rows, end_tokens
from agent_gym.threads import use_cores

if TYPE_CHECKING:
    from agent_gym.images import Vision


def seed_of(params: SamplingParams, stream: torch.Generator) -> int:
    """Return the seed of a request; one without a seed takes the next of the policy's stream."""
    if params.seed is not None:
        return params.seed
    return int(torch.randint(2**63 - 1, (), generator=stream))


def draw_uniforms(generators: Sequence[torch.Generator | None]) -> torch.Tensor:
    """Take the next number of each CPU generator: (N,) float64 in [0, 1), 0 without a generator."""
    uniforms = torch.zeros(len(generators), dtype=torch.float64)
    for row, generator in zip(uniforms, generators, strict=True):
        if generator is not None:
            row.uniform_(generator=generator)
    return uniforms


def sample_tokens(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distributions (N, V) at numbers (N,) in [0, 1): (N,) int64 token ids."""
    # In float32 the running sum over a vocabulary of 150 000 tokens is off by more than many of its terms.
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    # Scaling by the last sum instead of 1 keeps the draw inside the row; with right=True the first entry *above* the
    # threshold is taken, and such an entry has a probability above 0.
    thresholds = uniforms.to(probs.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return tokens.clamp_(max=probs.shape[-1] - 1)


@dataclass(slots=True)
class _Row:
    """A request while it is being decoded."""

    request: Request
    generator: torch.Generator | None
    limit: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None


class TransformersPolicy:
    """Samples from a causal language model of transformers, in the process that trains it.

    Args:
        model: shared and not copied. Its weights must be whole on this process: a model sharded by FSDP or ZeRO-3
            gathers them anew for each token, and hangs when the ranks sample unequal numbers of tokens.
        pad_token_id: any valid token; it fills the left edge of shorter prompts and is masked.
        decode: ids to text with special tokens kept; needed only for requests with stop strings.
        vision: of the processor's `ChatRenderer`; needed only for requests that show images.
        max_batch_tokens: bound on rows times (longest prompt + longest answer) of one batch, that is on the size of the
            key/value cache. A request larger than that is decoded alone.
        seed: of the stream that serves requests without their own seed.
        autocast: makes the context in which the model computes, for one that is trained under autocast.
    """

    continuous = False

    def __init__(
        self,
        model: torch.nn.Module,
        eos_token_ids: Collection[int | None],
        pad_token_id: int,
        decode: Callable[[Sequence[int]], str] | None = None,
        *,
        vision: Vision | None = None,
        max_batch_tokens: int = 65_536,
        seed: int = 0,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        ends = end_tokens(eos_token_ids)
        self.model: Any = model
        use_cores(model)
        self.eos_token_ids, self.pad_token_id = ends, pad_token_id
        self.max_batch_tokens, self.vision = max_batch_tokens, vision
        config: Any = model.config
        self.context: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
        self._rows = embedding_rows(model)
        self._decode_text, self._autocast = decode, autocast
        self._seeds = torch.Generator().manual_seed(seed)
        self._queue: dict[int, Request] = {}

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, request: Request) -> None:
        check_request(request, self._queue, self.context, sees=self.vision is not None)
        if request.params.stop and self._decode_text is None:
            raise ConfigError(
                f"request {request.id} has stop strings {request.params.stop}, which only a policy with a "
                "`decode` function can look for"
            )
        if (most := max(request.prompt_ids)) >= self._rows:
            raise ConfigError(
                f"the prompt of request {request.id} has the token {most}, and the embedding of "
                f"{self.model.config.model_type!r} has {self._rows} rows: call model.resize_token_embeddings, or take "
                "the model's own tokenizer"
            )
        if request.images and not self.way.cached:
            raise ConfigError(
                f"the prompt of request {request.id} shows images, and {self.model.config.model_type!r} can only be "
                "sampled by passes over whole rows, which read none: sample with vLLM (use_vllm true)"
            )
        self._queue[request.id] = request

    def poll(self) -> list[Generation]:
        """Decode one batch of pending requests to its end and return all of it."""
        rows = self._next_batch()
        if not rows:
            return []
        # no_grad and not inference_mode: some models refresh their rotary tables during a forward pass, and a table
        # that was made in inference mode would make the trainer's next backward fail.
        with _evaluating(self.model), torch.no_grad(), self._autocast():
            self._decode(list(rows))
        return [Generation(row.request.id, row.ids, row.logprobs, row.reason) for row in rows if row.reason]

    def abort(self, request_id: int) -> None:
        self._queue.pop(request_id, None)

    def close(self) -> None:
        self._queue.clear()
        self.model = None

    def sync(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Do nothing, nor touch `named_weights`: the model that is trained is the model that is sampled."""

    def wake(self) -> None:
        """Do nothing: the weights have no second copy."""

    def sleep(self) -> None:
        """Do nothing, as `wake`."""

    def _next_batch(self) -> list[_Row]:
        # Pending requests, oldest first, until the next one would break the token budget.
        rows: list[_Row] = []
        longest_prompt = longest_answer = 0
        for request in list(self._queue.values()):
            length = len(request.prompt_ids)
            if rows and (self.way.alone or (not self.way.padded and length != longest_prompt)):
                continue
            prompt = max(longest_prompt, length)
            answer = max(longest_answer, request.params.max_tokens)
            if rows and (len(rows) + 1) * (prompt + answer) > self.max_batch_tokens:
                break
            longest_prompt, longest_answer = prompt, answer
            del self._queue[request.id]
            limit = request.params.max_tokens
            if self.context is not None:
                limit = min(limit, self.context - length)
            generator = None
            if request.params.temperature > 0.0:
                generator = torch.Generator().manual_seed(seed_of(request.params, self._seeds))
            rows.append(_Row(request, generator, limit))
        return rows

    @functools.cached_property
    def way(self) -> Way:
        """How the model is advanced token by token, found before the first batch (stepping.py)."""
        with _evaluating(self.model), torch.no_grad(), self._autocast():
            way = right_way(self.model, self.pad_token_id, self.context)
        if way != WAYS[0]:
            kind = self.model.config.model_type
            warnings.warn(
                f"the transformers engine samples from {kind!r} {way.described}: right, and slower. vLLM is faster "
                "where it knows the architecture (use_vllm true)",
                stacklevel=2,
            )
        return way

    def _decode(self, rows: list[_Row]) -> None:
        device = next(self.model.parameters()).device
        width = max(len(row.request.prompt_ids) for row in rows)
        padding = [width - len(row.request.prompt_ids) for row in rows]
        padded = [[self.pad_token_id] * n + row.request.prompt_ids for n, row in zip(padding, rows, strict=True)]
        ids = torch.tensor(padded, device=device)
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in padding], device=device)
        # Rotary positions count real tokens: a prompt is placed as if the padding left of it were not there.
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        images: dict[str, Any] = {}
        if self.vision is not None and any(row.request.images for row in rows):
            shown = [image for row in rows for image, *_ in row.request.images]
            images = image_inputs(self.vision, ids, shown)
            placed = rotary_positions(self.model, ids, mask, images)
            positions = positions if placed is None else placed
        past = past_of(self.model, self.way)
        places = torch.arange(len(rows), device=device)  # of the rows in the batch of the model
        while True:
            logits = past.step(ids, mask, positions, **images)
            images = {}  # they are in the cache now
            tokens = self._sample(logits[places], rows)
            alive = [i for i, row in enumerate(rows) if row.reason is None]
            if not alive:
                return
            if len(alive) < len(rows):
                keep = torch.tensor(alive, device=device)
                rows, tokens, places = [rows[i] for i in alive], tokens[keep], places[keep]
                if self.way.select:
                    past.keep(places)
                    mask, positions = mask[places], positions[..., places, :]
                    places = torch.arange(len(rows), device=device)
            # A row that has ended and cannot leave reads padding, always at its last place.
            ids = ids.new_full((len(mask), 1), self.pad_token_id)
            ids[places, 0] = tokens
            positions = positions[..., -1:].clone()
            positions[..., places, :] += 1
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)

    def _sample(self, logits: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
        # One token per row from logits (N, V): it and its logprob go into the row, and the ids (N,) are returned.
        # Greedy rows keep temperature 1 here: their logprobs are reported under it.
        temperatures = [row.request.params.temperature or 1.0 for row in rows]
        scaled = logits.float() / torch.tensor(temperatures, device=logits.device)[:, None]
        logprobs = scaled.log_softmax(-1)
        generators = [row.generator for row in rows]
        tokens = logits.argmax(-1)
        if any(generators):
            sampled = sample_tokens(logprobs.exp(), draw_uniforms(generators))
            greedy = torch.tensor([generator is None for generator in generators], device=logits.device)
            tokens = torch.where(greedy, tokens, sampled)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        for row, token, logprob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.reason = self._finish_reason(row)
            if row.request.on_token:
                row.request.on_token(token)
        return tokens

    def _finish_reason(self, row: _Row) -> FinishReason | None:
        if row.ids[-1] in self.eos_token_ids:
            return "stop"
        stop = row.request.params.stop
        if stop and self._decode_text is not None:
            # A token is at least one byte of text, so this many of the last ones cover the longest stop string;
            # decoding the whole turn after every token would cost the square of its length.
            window = max(len(string.encode()) for string in stop) + 1
            text = self._decode_text(row.ids[-window:])
            if any(string in text for string in stop):
                return "stop_string"
        return "length" if len(row.ids) >= row.limit else None


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    # Dropout and gradient checkpointing are off meanwhile.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
