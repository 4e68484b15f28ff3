"""The interface of policies: token ids in, sampled ids with logprobs out; and `ScriptedPolicy`, the simplest one.

Requests go in at any time, `poll` advances the engine once and returns the finished generations. A policy neither
decodes to build a prompt nor encodes one: decoding and encoding again does not always give the same ids back, and the
gradient would then be taken at tokens that the policy never chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from agent_gym.errors import ConfigError
from agent_gym.images import Shown
from agent_gym.renamed import renamed
from agent_gym.transcript import plain_action

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "stop_string", "length", "abort"]

# vLLM raises any smaller temperature to this one (vllm/sampling_params.py, _MAX_TEMP): the logprobs would then be the
# ones of another distribution.
MIN_TEMPERATURE = 0.01


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one turn. Top-p and top-k do not exist here: the trainer scores the full distribution."""

    max_tokens: int  # most tokens to sample, at least 1; the policy's context may end the turn earlier
    temperature: float = 1.0  # divides the logits; 0 takes the most likely token, otherwise at least `MIN_TEMPERATURE`
    stop: tuple[str, ...] = ()  # strings that end the turn once the text of the new tokens contains one of them
    # From 0 to 2**63 - 1. Makes the sampled tokens reproducible, whatever runs at the same time. None takes the next
    # seed of the policy's own stream, so the tokens depend on the order of the requests.
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (self.temperature == 0.0 or MIN_TEMPERATURE <= self.temperature < math.inf):
            raise ConfigError(f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, got {self.temperature}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ConfigError(f"stop must be a tuple of non-empty strings, got {self.stop!r}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must lie in [0, 2**63), got {self.seed}")


@dataclass(slots=True)
class Request:
    """One turn to sample."""

    id: int  # the caller's name for the request, unique among the pending ones
    prompt_ids: list[int]  # everything the policy sees, as token ids; not empty
    params: SamplingParams
    episode: object | None = None  # the live episode, for scripted policies
    # Called with each token as soon as it is sampled, in `poll`; vLLM servers ignore it. Its errors are raised in
    # `poll`; the request is then to be aborted.
    on_token: Callable[[int], None] | None = None
    images: Sequence[Shown] = ()  # the images of the prompt, in order; no image token lies outside of them


@dataclass(slots=True)
class Generation:
    """The tokens that a policy sampled for a request."""

    id: int  # of the request
    # (n,) n >= 1. The last is an end of turn that was sampled, or the token that completed a stop string, kept whole.
    token_ids: list[int]
    # (n,) natural logarithm of each token's probability under the distribution it was drawn from, that is after the
    # temperature; with greedy decoding, under the temperature of 1.
    logprobs: list[float]
    # "stop": an end of turn was sampled; "stop_string": the text holds one of the request's stop strings; "length": the
    # budget of tokens is used up; "abort": see `Interruptible`.
    finish_reason: FinishReason
    # Which weights sampled the tokens, as runs of (version, number of tokens). The rollout writes it.
    versions: list[tuple[int, int]] = field(default_factory=list)
    # Why there is nothing, with the reason "abort": only where a request that fails ends its own episode alone.
    error: Exception | None = None

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} token ids and {len(self.logprobs)} logprobs")

    def joined(self, rest: Generation) -> Generation:
        ids, logprobs = self.token_ids + rest.token_ids, self.logprobs + rest.logprobs
        return Generation(rest.id, ids, logprobs, rest.finish_reason, self.versions + rest.versions)


@runtime_checkable
class Policy(Protocol):
    """Something that writes the agent's turns. Not thread-safe: one thread submits, polls and aborts."""

    continuous: bool
    """Whether a request may join while others are being decoded. Where not, `poll` runs its batch to the end, so that
    the caller should submit as many requests as it can first."""

    @property
    def pending(self) -> int:
        """Requests submitted and neither returned nor aborted."""

    def submit(self, request: Request) -> None:
        """Queue a request; `ConfigError` if it can never be served, for instance because it fills the context."""

    def poll(self) -> list[Generation]:
        """Advance once and return the finished generations, possibly none. Blocks only on its own computing."""

    def abort(self, request_id: int) -> None:
        """Drop a pending request; an id that is not pending is ignored, since it may just have finished."""

    def close(self) -> None:
        """Free the policy's resources. Calling it twice does no harm."""


@runtime_checkable
class Interruptible(Policy, Protocol):
    """A policy that can stop in the middle of turns and return the tokens sampled so far."""

    def interrupt(self) -> list[Generation]:
        """Abort all pending requests; return each one's sampled tokens, if there are any, with the reason "abort".

        A request that has ended by itself meanwhile is returned as `poll` would.
        """


@runtime_checkable
class Engine(Policy, Protocol):
    """A policy with weights, which a trainer can replace between rollouts."""

    def sync(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over the trainer's weights, under the names of the checkpoint. No request may be pending."""

    def wake(self) -> None:
        """Take back the device memory given up by `sleep`."""

    def sleep(self) -> None:
        """Give up as much device memory as the engine can while the trainer works. Call `sync` afterwards."""


@runtime_checkable
class Measured(Policy, Protocol):
    """A policy that knows how full it was."""

    def take_load(self) -> dict[str, float]:
        """Return metrics of its cache since the last call, see `policies/vllm/load.py`."""


def check_request(request: Request, pending: Container[int], context: int | None = None, *, sees: bool = False) -> None:
    """Raise `ConfigError` for a request beyond this `context`, or with images for an engine that reads none."""
    if request.images and not sees:
        raise ConfigError(
            "the prompt shows images, and this engine reads none: sample with transformers, or with vLLM in this "
            "process, and hand them the `vision` of the processor's ChatRenderer"
        )
    if request.id in pending:
        raise ConfigError(f"request id {request.id} is already pending; ids must be unique")
    if not request.prompt_ids:
        raise ConfigError(f"request {request.id} has an empty prompt; a policy needs at least one token")
    if context is not None and len(request.prompt_ids) >= context:
        raise ConfigError(
            f"request {request.id} has a prompt of {len(request.prompt_ids)} tokens, which leaves no room in a context "
            f"of {context}; lower the episode's token budget or give the policy a longer context"
        )


def cut_at_stop(turn: Generation, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Generation:
    """End a turn at a stop string that an interruption divides.

    An engine looks for stop strings in the tokens that it samples itself, and misses one whose beginning was sampled
    before. The text after the string is dropped, since tokens do not depend on later ones.
    """
    # A token is at least one byte of text, so this many tokens on each side of a seam hold any stop string across it.
    window = max((len(string.encode()) for string in stop), default=0)
    ids, seam = turn.token_ids, 0
    for _, count in turn.versions[:-1]:
        seam += count
        for length in range(seam + 1, min(seam + window, len(ids)) + 1):
            text = decode(ids[max(0, seam - window) : length])
            if any(string in text for string in stop):
                versions, left = [], length
                for version, n in turn.versions:
                    if left > 0:
                        versions.append((version, min(n, left)))
                    left -= n
                return Generation(turn.id, ids[:length], turn.logprobs[:length], "stop_string", versions)
    return turn


def truncate_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Cut a text after the first stop string; returns whether there is one."""
    ends = [text.find(word) + len(word) for word in stop if word in text]
    return (text[: min(ends)], True) if ends else (text, False)


class ScriptedPolicy:
    """A policy that is a plain function: experts, test doubles, a person at the keyboard.

    Args:
        act: called with the live episode (`Request.episode`) in its environment's thread, returns the turn's text.
        encode: turns text into ids and appends the end of turn (the chat renderer's `encode_action`). Where it takes
            `after`, it is given the ids of the context.

    The logprobs are 0.0. `max_tokens` and stop strings hold for a script as they do for a model.
    """

    continuous = True

    def __init__(self, act: Callable[[object], str], encode: Callable[..., Sequence[int]]) -> None:
        self._act, self._encode = act, encode
        self._sees = "after" in signature(encode).parameters
        self._queue: dict[int, Request] = {}

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, request: Request) -> None:
        check_request(request, self._queue, sees=True)
        self._queue[request.id] = request

    def poll(self) -> list[Generation]:
        """Answer every pending request. An error of `act` is raised here, and drops that request."""
        return [self._write(self._queue.pop(number)) for number in list(self._queue)]

    def abort(self, request_id: int) -> None:
        self._queue.pop(request_id, None)

    def close(self) -> None:
        self._queue.clear()

    def _write(self, request: Request) -> Generation:
        # A script calls the environment in the environment's thread.
        in_thread = getattr(request.episode, "in_thread", None)
        text = in_thread(partial(self._act, request.episode)) if in_thread else self._act(request.episode)
        text, stopped = truncate_at_stop(plain_action(text), request.params.stop)
        reason: FinishReason = "stop_string" if stopped else "stop"
        ids = list(self._encode(text, **({"after": request.prompt_ids} if self._sees else {})))
        if stopped:  # a model that is stopped by a string never samples its end of turn
            ids = ids[: len(ids) - len(self._encode(""))]
        if len(ids) > request.params.max_tokens:
            reason = "length"
            ids = ids[: request.params.max_tokens]
        if request.on_token:
            for token in ids:
                request.on_token(token)
        return Generation(request.id, ids, [0.0] * len(ids), reason)


__getattr__ = renamed(__name__, {"until": "truncate_at_stop"})
