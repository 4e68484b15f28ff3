"""Segments, spans and the mask: the tiling, and what refuses to be tiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym import Span, Transcript, action_mask
from agent_gym.transcript import Segment, check_tiling

segments = st.lists(
    st.builds(
        Segment,
        source=st.sampled_from(["system", "user", "agent", "env"]),
        step=st.integers(-1, 5),
        text=st.text(max_size=6),
        token_ids=st.lists(st.integers(0, 99), max_size=6).map(tuple),
        logprobs=st.just(()),
    ),
    max_size=12,
)


@given(segments)
def test_spans_tile_and_the_mask_marks_exactly_the_agent(parts: list[Segment]) -> None:
    transcript = Transcript()
    reported = [(transcript.append(*part), *transcript.newest_token_spans(1)) for part in parts]
    assert transcript.newest_token_spans(len(parts)) == [tokens for _, tokens in reported]
    assert transcript.segments == parts and all(type(part) is Segment for part in transcript.segments)
    assert transcript.text == "".join(part.text for part in parts)
    assert transcript.token_ids == [i for part in parts for i in part.token_ids]
    check_tiling(transcript.spans, transcript.n_chars)
    check_tiling(transcript.token_spans, transcript.n_tokens)
    assert all(span.stop > span.start for span in transcript.spans + transcript.token_spans)
    # What `append` returned tiles too, empty spans included, and cuts out each part's own text and ids.
    for part, (chars, tokens) in zip(parts, reported, strict=True):
        assert transcript.text[chars.start : chars.stop] == part.text
        assert tuple(transcript.token_ids[tokens.start : tokens.stop]) == part.token_ids
        assert (chars.source, chars.step) == (tokens.source, tokens.step) == (part.source, part.step)
    expected = [part.source == "agent" for part in parts for _ in part.token_ids]
    assert transcript.action_mask == expected
    assert action_mask([tokens for _, tokens in reported], transcript.n_tokens) == expected


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([Span(0, 2, "user", -1), Span(3, 4, "agent", 0)], 4),  # a gap
        ([Span(0, 3, "user", -1), Span(2, 4, "agent", 0)], 4),  # an overlap
        ([Span(1, 4, "user", -1)], 4),  # a late start
        ([Span(0, 3, "agent", 0)], 4),  # too short
        ([Span(0, 5, "agent", 0)], 4),  # too long
        ([Span(0, 4, "user", -1), Span(4, 2, "agent", 0), Span(2, 4, "env", 0)], 4),  # backwards
        ([Span(2, 4, "agent", 0), Span(0, 2, "user", -1)], 4),  # out of order
        ([], 1),
    ],
)
def test_mask_refuses_spans_that_do_not_tile(spans: list[Span], length: int) -> None:
    with pytest.raises(ValueError, match="spans"):
        action_mask(spans, length)


def test_empty_transcript() -> None:
    assert action_mask([], 0) == []
    empty = Transcript()
    assert (empty.text, empty.token_ids, empty.spans, empty.action_mask) == ("", [], [], [])


def test_logprobs_must_match_the_ids() -> None:
    transcript = Transcript()
    transcript.append("agent", 0, "ab", [1, 2], [-0.1, -0.2])
    transcript.append("agent", 0, "ab", (1, 2))
    with pytest.raises(ValueError, match="1 logprobs for 2"):
        transcript.append("agent", 0, "ab", (1, 2), (-0.1,))
    assert transcript.n_tokens == 4
