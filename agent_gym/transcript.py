"""Who wrote what: the transcript of an episode as segments, spans and one mask.

Every training bug of the kind "the loss saw the search engine's words" starts with text whose author was
guessed afterwards, from role names, special tokens or regular expressions. Nothing is guessed here. A segment
is written down at the moment its author produces it, together with its source, and everything else in the
project (spans, masks, rows, colours in the viewer) is read off the list of segments.

The invariants, each held by a test:

- spans tile the transcript: the first starts at 0, each starts where the last stopped, nothing overlaps;
- an agent segment holds exactly the ids the policy sampled, never ids made by encoding decoded text;
- what a chat template adds around those ids (role headers, an end-of-turn that the policy did not sample) is part
  of an env segment;
- `action_mask` is True exactly on the ids of agent segments. There is one mask, with one name and one polarity.

Left out on purpose: rendering (chat.py), rewards, anything that needs a tokenizer or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Source = Literal["system", "user", "agent", "env"]

PROMPT_STEP = -1
"""The step of everything that stands before the policy's first turn."""


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
    """One uninterrupted piece of the transcript by one author.

    Attributes:
        source: who wrote it.
        step: the turn it belongs to, -1 for the prompt.
        text: the words, without any template around them.
        token_ids: the ids as they stand in the context, template included for every source but `agent`.
            Empty when the environment runs without a tokenizer.
        logprobs: one per token of an `agent` segment when the policy reported them, else empty.
    """

    source: Source
    step: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class Opening(NamedTuple):
    """What stands before the policy's first turn: the system's words, if there are any, then the user's.

    A chat template renders both as one, so that the ids cannot be split between them without guessing: all of them
    stand in the user's segment. None of them is the policy's.
    """

    system: str
    user: str
    token_ids: tuple[int, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """One or two segments."""
        user = Segment("user", PROMPT_STEP, self.user, self.token_ids)
        return (Segment("system", PROMPT_STEP, self.system), user) if self.system else (user,)

    @property
    def spans(self) -> list[Span]:
        """The character span of each segment; the user's may be empty."""
        middle = len(self.system)
        user = Span(middle, middle + len(self.user), "user", PROMPT_STEP)
        return [Span(0, middle, "system", PROMPT_STEP), user] if self.system else [user]

    @property
    def token_spans(self) -> list[Span]:
        """One span, of all ids."""
        return [Span(0, len(self.token_ids), "user", PROMPT_STEP)]


class Turn(NamedTuple):
    """An action and the world's answer to it: two segments that stand one after the other.

    Attributes:
        step: which turn it is, 0 for the first.
        action: the policy's words.
        answer: the world's.
        action_ids: the ids that the policy sampled; empty without a tokenizer, as `answer_ids`.
        logprobs: one per id of the action when the policy reported them, else empty.
        answer_ids: the answer's ids, template included.
        start: how many characters stand before the turn.
        first_token: how many tokens do.
    """

    step: int
    action: str
    answer: str
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    answer_ids: tuple[int, ...]
    start: int
    first_token: int

    @property
    def segments(self) -> tuple[Segment, Segment]:
        """Both segments."""
        step, action, answer, action_ids, logprobs, answer_ids, _, _ = self
        agent = _new(Segment, ("agent", step, action, action_ids, logprobs))
        return agent, _new(Segment, ("env", step, answer, answer_ids, ()))

    @property
    def spans(self) -> list[Span]:
        """Their character spans, either of which may be empty."""
        return self._spans(self.start, len(self.action), len(self.answer))

    @property
    def token_spans(self) -> list[Span]:
        """Their token spans, either of which may be empty."""
        return self._spans(self.first_token, len(self.action_ids), len(self.answer_ids))

    def _spans(self, start: int, action: int, answer: int) -> list[Span]:
        step, middle = self.step, start + action
        agent = _new(Span, (start, middle, "agent", step))
        return [agent, _new(Span, (middle, middle + answer, "env", step))]


OpeningFields: TypeAlias = tuple[str, str, tuple[int, ...]]
TurnFields: TypeAlias = tuple[int, str, str, tuple[int, ...], tuple[float, ...], tuple[int, ...], int, int]
# An info has four segments or spans, and calling their classes would take twice as long.
_new = tuple.__new__


@dataclass(slots=True)
class Transcript:
    """The opening and the turns of an episode, with running lengths, so that the newest spans cost O(new)."""

    n_chars: int = 0
    n_tokens: int = 0
    # They become segments when somebody reads them, which in most episodes of a vector environment nobody does. Until
    # then they are plain tuples of texts and numbers, which the garbage collector lets alone.
    _opening: OpeningFields | None = None
    _turns: list[TurnFields] = field(default_factory=list)

    @property
    def segments(self) -> list[Segment]:
        """All segments in order."""
        opening = Opening(*self._opening).segments if self._opening else ()
        return [*opening, *(segment for turn in self._turns for segment in Turn(*turn).segments)]

    def open(self, system: str, user: str, token_ids: tuple[int, ...] = ()) -> OpeningFields:
        """Begin with these words; `system` is "" where there is no such message. Returns what `Opening` takes."""
        self.n_chars = len(system) + len(user)
        self.n_tokens = len(token_ids)
        self._opening = opening = system, user, token_ids
        return opening

    def append_turn(
        self,
        step: int,
        action: str,
        answer: str,
        action_ids: tuple[int, ...] = (),
        logprobs: tuple[float, ...] = (),
        answer_ids: tuple[int, ...] = (),
    ) -> TurnFields:
        """Add the policy's segment and the world's; see `Turn`, which takes what this returns.

        Raises:
            ValueError: if there are logprobs that cannot be matched to ids.
        """
        if logprobs and len(logprobs) != len(action_ids):
            raise ValueError(f"{len(logprobs)} logprobs for {len(action_ids)} token ids")
        start, first_token = self.n_chars, self.n_tokens
        turn = step, action, answer, action_ids, logprobs, answer_ids, start, first_token
        self._turns.append(turn)
        self.n_chars = start + len(action) + len(answer)
        if action_ids or answer_ids:
            self.n_tokens = first_token + len(action_ids) + len(answer_ids)
        return turn

    @property
    def text(self) -> str:
        """All words in order, without template text."""
        return "".join(segment.text for segment in self.segments)

    @property
    def token_ids(self) -> list[int]:
        """All ids in order: what an append-only policy has in its context, bit for bit."""
        return [i for segment in self.segments for i in segment.token_ids]

    @property
    def spans(self) -> list[Span]:
        """Character spans that tile `text`."""
        return _tile((len(segment.text), segment) for segment in self.segments)

    @property
    def token_spans(self) -> list[Span]:
        """Token spans that tile `token_ids`."""
        return _tile((len(segment.token_ids), segment) for segment in self.segments)

    @property
    def action_mask(self) -> list[bool]:
        """`action_mask` of the whole transcript, one flag per id of `token_ids`."""
        return action_mask(self.token_spans, self.n_tokens)


def _tile(sized: Iterable[tuple[int, Segment]]) -> list[Span]:
    spans, start = [], 0
    for length, segment in sized:
        if length:
            spans.append(Span(start, start + length, segment.source, segment.step))
            start += length
    return spans


def action_mask(spans: Sequence[Span], length: int) -> list[bool]:
    """Mark the tokens that the policy sampled.

    Args:
        spans: token spans that tile `[0, length)`.
        length: number of tokens, T.

    Returns:
        (T,) flags, True where the policy sampled the token.

    Raises:
        ValueError: if the spans leave a gap, overlap or do not cover the length. A mask with a silent hole is how
            tool text gets into a loss, so this is checked every time.
    """
    check_tiling(spans, length)
    mask: list[bool] = []
    for span in spans:
        mask += [span.source == "agent"] * (span.stop - span.start)
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
