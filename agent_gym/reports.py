"""What a reset and a step report in `info`: noted down when it happens, written out when somebody wants to read it.

A `Note` is a call that can be made later: one of the functions here and what it is given. `TextEnv` makes it at once,
so that `info` is an ordinary dict. A vector environment keeps the notes of its environments until somebody looks
(vector/lazy.py). Nothing is asked of the environment then, which will have gone on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from agent_gym.transcript import Opening, OpeningFields, Turn, TurnFields

if TYPE_CHECKING:
    from agent_gym.chat import Message
    from agent_gym.parsing import ToolCall

Note: TypeAlias = tuple[Any, ...]
"""`reset_info` or `step_info`, then its arguments. A plain tuple: the cheapest thing to make that Python has."""


def write(note: Note) -> dict[str, Any]:
    """Make the `info`. Do it once: the lists and dicts of a note are not copied."""
    function, *arguments = note
    return function(*arguments)


def reset_info(
    fields: OpeningFields,
    messages: list[Message] | None,
    tools: Sequence[dict[str, Any]],
    stop: Sequence[str],
    task_id: str,
    categories: dict[str, str],
    tokens: bool,
) -> dict[str, Any]:
    """Write the `info` of `TextEnv.reset`.

    Args:
        fields: of the `Opening`, what stands before the first turn.
        messages: the same as messages; None if they have the same words.
        tools: the schemas of the tools.
        stop: strings after which a turn is complete.
        task_id: which task it is.
        categories: what kinds it is of.
        tokens: whether there is a tokenizer, and ids to be told.
    """
    opening = Opening(*fields)
    if messages is None:
        messages = [{"role": segment.source, "content": segment.text} for segment in opening.segments]
    info: dict[str, Any] = {
        "messages": messages,
        "tools": [*tools],
        "stop": [*stop],
        "task_id": task_id,
        "categories": categories,
        "spans": opening.spans,
    }
    if tokens:
        info["token_ids"], info["token_spans"] = [*opening.token_ids], opening.token_spans
    return info


def step_info(
    fields: TurnFields,
    answers: list[Message] | None,
    tool_calls: Sequence[ToolCall],
    tools: Sequence[dict[str, Any]],
    terms: dict[str, float],
    process_reward: float,
    metrics: dict[str, float],
    error: str | None,
    is_success: bool | None,
    tokens: bool,
) -> dict[str, Any]:
    """Write the `info` of `TextEnv.step`.

    Args:
        fields: of the `Turn`, the action and the world's answer.
        answers: that answer as messages; None if they are the answers of the calls and nothing else.
        tool_calls: the calls that ran.
        tools: the schemas of the tools.
        terms: weighted reward terms by name.
        process_reward: the part of their sum that judges the way and not the outcome.
        metrics: numbers for the log.
        error: what the policy did wrong, if anything.
        is_success: whether the task was solved; None while the episode goes on.
        tokens: whether there is a tokenizer, and ids to be told.
    """
    turn = Turn(*fields)
    if answers is None:
        answers = call_messages(tool_calls, tools)
    info: dict[str, Any] = {
        "messages": [{"role": "assistant", "content": turn.action}, *answers],
        "spans": turn.spans,
        "reward_terms": terms,
        "process_reward": float(process_reward),
        "tool_calls": [call.record for call in tool_calls],
        "metrics": metrics,
        "error": error,
    }
    if is_success is not None:
        info["is_success"] = is_success
    if tokens:
        info["token_ids"] = [*turn.action_ids, *turn.answer_ids]
        info["token_spans"] = turn.token_spans if turn.answer_ids else turn.token_spans[:1]
    return info


def call_messages(calls: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Write the answers of calls as one message each."""
    known = [tool["function"]["name"] for tool in tools]
    # A name that the policy made up stays out of the template, which would print it as it stands.
    return [
        {"role": "tool", "name": call.name if call.name in known else "error", "content": call.answer} for call in calls
    ]
