"""The author of each token: the transcript of an episode as segments, spans and one mask.

A segment is written down at the moment its author produces it, together with its source. Everything else in the project
(spans, masks, rows, colours in the viewer) is read off the list of segments: nothing is guessed afterwards from role
names, special tokens or regular expressions. The invariants, each held by a test:

- spans tile the transcript: the first starts at 0, each starts where the last stopped, nothing overlaps;
- an agent segment holds exactly the ids the policy sampled, never ids made by encoding decoded text;
- the tokens that a chat template adds around these ids (role headers, an end-of-turn that the policy did not sample) is
  part of an env segment;
- `action_mask` is True exactly on the ids of agent segments. There is one mask, with one name and one polarity.

A source may name its author. `agent:buyer` and `agent:seller` are two roles that the policy plays; the words of an
opponent or of a customer are the world's, `env:seller` or `user:customer`, and never trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from agent_gym.errors import shown

Kind = Literal["system", "user", "agent", "env"]
Source = str
"""A `Kind`, or a kind with the author's name after a colon: "agent:buyer", "user:customer", "env:buyer"."""
KINDS: tuple[Kind, ...] = get_args(Kind)

PROMPT_STEP = -1
"""The step of everything before the policy's first turn."""


def kind_of(source: Source) -> str:
    """Return the kind of a source without the name: "agent" of "agent:buyer". Tokens of this kind are trained."""
    return source.partition(":")[0]


class Span(NamedTuple):
    """A half-open range `[start, stop)` of one transcript and who wrote it.

    The unit is characters in `Transcript.spans` and tokens in `Transcript.token_spans`. Turn k of the policy and
    the world's answer to it both carry `step == k`; the prompt carries -1.
    """

    start: int
    stop: int
    source: Source
    step: int


class Segment(NamedTuple):
    """One uninterrupted piece of the transcript by one author."""

    source: Source
    step: int  # the turn it belongs to, -1 for the prompt
    text: str  # the words, without any template around them
    # As they are in the context, template included for every kind but `agent`; empty without a tokenizer.
    token_ids: tuple[int, ...] = ()
    first_char: int = 0  # where it begins in the transcript
    first_token: int = 0

    @property
    def span(self) -> Span:
        """Its characters, which may be none."""
        return Span(self.first_char, self.first_char + len(self.text), self.source, self.step)

    @property
    def token_span(self) -> Span:
        """Its tokens, which may be none."""
        return Span(self.first_token, self.first_token + len(self.token_ids), self.source, self.step)


class Sampled(str):
    """An action with the ids that the policy sampled for it: a string, which passes through any wrapper."""

    token_ids: list[int]
    logprobs: list[float]

    def __new__(cls, text: str, token_ids: Sequence[int], logprobs: Sequence[float] = ()) -> Sampled:
        action = super().__new__(cls, text)
        action.token_ids = list(token_ids)
        action.logprobs = list(logprobs)
        return action

    def __getnewargs__(self) -> tuple[Any, ...]:
        # Worker processes get actions through a pipe.
        return str(self), self.token_ids, self.logprobs


def plain_action(action: Any) -> str:
    """Return an action as a plain `str`, lone surrogates replaced; `TypeError` if it is not a text."""
    if not isinstance(action, str):
        raise TypeError(
            f"an action is the policy's text, a str, but step got {shown(action)}; decode token ids and bytes first, "
            "or hand ids over with their text as agent_gym.Sampled"
        )
    return str.encode(action, "utf-8", "replace").decode()


@dataclass(slots=True)
class Transcript:
    """An append-only list of segments, with their lengths together."""

    segments: list[Segment] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)  # what was said behind the opening, as chat messages
    n_chars: int = 0
    n_tokens: int = 0

    def append(self, source: Source, step: int, text: str, token_ids: Sequence[int] = ()) -> Segment:
        segment = Segment(source, step, text, tuple(token_ids), self.n_chars, self.n_tokens)
        self.segments.append(segment)
        self.n_chars += len(text)
        self.n_tokens += len(token_ids)
        return segment

    @property
    def text(self) -> str:
        """All words in order, without template text."""
        return "".join(segment.text for segment in self.segments)

    @property
    def token_ids(self) -> list[int]:
        """All ids in order: the context of an append-only policy, bit for bit."""
        return [i for segment in self.segments for i in segment.token_ids]

    @property
    def spans(self) -> list[Span]:
        """Character spans that tile `text`."""
        return [segment.span for segment in self.segments if segment.text]

    @property
    def token_spans(self) -> list[Span]:
        """Token spans that tile `token_ids`."""
        return [segment.token_span for segment in self.segments if segment.token_ids]

    @property
    def action_mask(self) -> list[bool]:
        """`action_mask` of the whole transcript, one flag per id of `token_ids`."""
        return action_mask(self.token_spans, self.n_tokens)


def action_mask(spans: Sequence[Span], length: int) -> list[bool]:
    """Return (length,) flags, True where the policy sampled the token.

    `spans` are token spans; `ValueError` if they leave a gap, overlap or do not cover the length.
    """
    check_tiling(spans, length)
    mask: list[bool] = []
    for span in spans:
        mask += [kind_of(span.source) == "agent"] * (span.stop - span.start)
    return mask


def check_tiling(spans: Sequence[Span], length: int) -> None:
    """Raise `ValueError` unless the spans cover `[0, length)` in order, without gap or overlap."""
    position = 0
    for span in spans:
        if span.start != position or span.stop < span.start:
            raise ValueError(f"spans do not tile: {span} where the next should start at {position}")
        position = span.stop
    if position != length:
        raise ValueError(f"spans cover {position} of {length} positions")
