"""Earlier turns of a conversation, for chat templates that count over the whole of it.

Command-A numbers the calls of a conversation, and DeepSeek V3 opens the block of answers once. What such a template
writes behind a turn depends on the turns before it. Their words do not matter, so that each is one letter here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from typing import Any

from agent_gym.call_format import CallFormat, Written, made_up
from agent_gym.errors import ConfigError
from agent_gym.messages import Message, is_answer

_WORDS = "a"


def runs(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Message], list[Message]]]:
    """Yield the runs of a conversation: whether the assistant wrote it, its messages, and those of the next run."""
    groups = [(mine, list(run)) for mine, run in groupby(messages, key=lambda one: one["role"] == "assistant")]
    for (mine, group), (_, following) in zip(groups, [*groups[1:], (False, [])], strict=True):
        yield mine, group, following


def shape_of(
    messages: Sequence[Message], call_format: CallFormat, observed: Callable[[Sequence[Message]], list[Message]]
) -> list[Message]:
    """Return a conversation of the same shape: calls where calls were answered, and a letter for what was said.

    Args:
        messages: what was said behind the opening.
        call_format: how the template takes calls.
        observed: makes answers of the world into messages that the template takes.
    """
    talk: list[Message] = []
    known = call_format.known and call_format.answer_role == "tool"
    for mine, group, following in runs(messages):
        if not mine:
            talk += observed([{**message, "content": _WORDS} for message in group])
            continue
        talk += [{"role": "assistant", "content": _WORDS} for _ in group]
        if known and (answers := list(takewhile(is_answer, following))):
            talk[-1] = call_format.written.message(made_up(observed(answers), _WORDS))
    return talk


def does_count(
    delta: Callable[..., str], past: Callable[[Sequence[Message]], list[Message]], written: Written, role: str
) -> bool:
    """Whether what a template writes behind a turn depends on the turns before it.

    Args:
        delta: renders what follows a turn.
        past: makes the turns before it.
        written: the form of ids.
        role: of answers to turns without calls.
    """

    def answer(name: str, place: int) -> Message:
        number = written.id_of.format(name=name, place=place)
        return {"role": "tool", "name": name, "tool_call_id": number, "content": _WORDS}

    plain = {"role": role, "content": _WORDS}
    for before, said in ((answer("one", 0), answer("two", 1)), (plain, plain)):
        with suppress(ConfigError):  # a role that the template does not take here
            turns = past([{"role": "assistant", "content": _WORDS}, before])
            prompted = {"add_generation_prompt": True}
            if delta([said], past=turns, **prompted) != delta([said], **prompted):
                return True
    return False


def numbered(messages: Sequence[Message], written: Written, *, unique: bool) -> list[Message]:
    """Give each answer to a call an id that templates take, counted over the conversation, unless it has one.

    Args:
        messages: a conversation.
        written: the form of ids.
        unique: whether an id that the policy has written twice is replaced, too. A template that finds the number of a
            call by its id needs that.
    """
    made: list[Message] = []
    seen: set[Any] = set()
    for message in messages:
        if is_answer(message):
            given = message.get("tool_call_id")
            if not given or (unique and given in seen):
                given = written.id_of.format(name=message.get("name") or "tool", place=len(seen))
            seen.add(given)
            message = {**message, "tool_call_id": given}
        made.append(message)
    return made
