"""Turns that were interrupted while the policy wrote them, and are written to their ends later, by newer weights.

What was sampled stays sampled: the rest of the turn is asked for with the beginning as part of the prompt, and each
token keeps the logprob and the version of the weights that sampled it. So a turn is drawn as the policy draws it, token
by token; that the policy changes underway is what importance sampling is for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_gym.policies.base import Generation


def joined(begun: Generation, rest: Generation) -> Generation:
    """Put the beginning of a turn and what followed it together."""
    return Generation(
        rest.id,
        begun.token_ids + rest.token_ids,
        begun.logprobs + rest.logprobs,
        rest.finish_reason,
        begun.versions + rest.versions,
    )


def cut_at_stop(generation: Generation, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Generation:
    """End a turn at a stop string that stands across an interruption.

    An engine looks for stop strings in what it samples itself, and so misses one whose beginning was sampled before.
    Dropping what came behind it gives the turn that would have come out in one piece: tokens do not depend on later
    ones.

    Args:
        generation: a turn of one or several pieces.
        stop: the strings that end it.
        decode: ids to text, with special tokens.
    """
    # A token is at least one byte of text, so this many tokens on each side of a seam hold any stop string across it.
    window = max((len(string.encode()) for string in stop), default=0)
    ids, seam = generation.token_ids, 0
    for _, count in generation.versions[:-1]:
        seam += count
        for length in range(seam + 1, min(seam + window, len(ids)) + 1):
            text = decode(ids[max(0, seam - window) : length])
            if any(string in text for string in stop):
                return _first(generation, length)
    return generation


def _first(generation: Generation, length: int) -> Generation:
    """Return the first `length` tokens, as a turn that a stop string has ended."""
    versions, left = [], length
    for version, count in generation.versions:
        if left > 0:
            versions.append((version, min(count, left)))
        left -= count
    return Generation(
        generation.id, generation.token_ids[:length], generation.logprobs[:length], "stop_string", versions
    )
