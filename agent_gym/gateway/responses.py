"""OpenAI's responses (`POST /v1/responses`), as in openai-python 3.54, without a memory of earlier ones.

Tools that the server itself would run (web search, files) are not offered to the policy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gym.chat import Message
from agent_gym.errors import quoted
from agent_gym.gateway.chat import error, read_message, read_tools
from agent_gym.gateway.exchange import (
    Answer,
    Asked,
    Refused,
    WireProtocol,
    check_shape,
    plain_text,
    result_text,
    sse,
    text_call,
    token_limit,
    tool_message,
)
from agent_gym.untrusted import NONE

_SHAPE = {"input": (str, [dict]), "text?": ({"format?": (dict, NONE)}, NONE)}
_OF_KIND = {
    "function_call": {"name": object, "arguments": object},
    "function_call_output": {"output": object},
    "message": {"role": str},
}
"""The fields of an item of the input."""
_PASSED_ON = ("instructions", "temperature", "top_p", "max_output_tokens", "metadata")


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request."""
    check_shape(body, _SHAPE)
    if body.get("previous_response_id") or body.get("conversation"):
        raise Refused(400, "nothing is stored here: send all of the input, without previous_response_id")
    if (form := ((body.get("text") or {}).get("format") or {}).get("type", "text")) != "text":
        raise Refused(400, f"text.format is {form!r}; only 'text' is allowed: ask for JSON in the prompt")
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": plain_text(body["instructions"])})
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        _add(messages, item)
    return Asked(messages, read_tools(body), (), token_limit(body.get("max_output_tokens")), body.get("temperature"))


def _add(messages: list[Message], item: Mapping[str, Any]) -> None:
    """Add an item; the text and the calls of one turn, which are separate items, are one message."""
    kind = item.get("type", "message")
    check_shape(item, _OF_KIND.get(kind, {}) if isinstance(kind, str) else {"type": str})
    going_on = bool(messages) and messages[-1]["role"] == "assistant"
    if kind == "function_call":
        if not going_on:
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("calls", []).append(text_call(item["name"], item["arguments"], item.get("call_id")))
    elif kind == "function_call_output":
        messages.append(tool_message(result_text(item["output"]), item.get("call_id")))
    elif kind == "message":
        message = read_message(item)
        if message["role"] == "assistant" and going_on and not messages[-1].get("calls"):
            messages[-1]["content"] += message["content"]
        else:
            messages.append(message)
    elif kind != "reasoning":  # thoughts are found again with the turn that they belong to
        raise Refused(400, f"the input has an item of type {quoted(kind)}, which is not supported")


def write(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Write the answer as a whole."""
    cut = _is_cut(body, answer)
    return {
        **_frame(body, answer),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(answer),
        "usage": {
            "input_tokens": len(answer.prompt_ids),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(answer.token_ids),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(answer.prompt_ids) + len(answer.token_ids),
        },
    }


def events(body: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    """Write the answer as events."""
    numbers = iter(range(1 << 31))

    def event(kind: str, **content: Any) -> str:
        return sse({"type": kind, "sequence_number": next(numbers), **content}, kind)

    frame = {**_frame(body, answer), "status": "in_progress", "output": []}
    yield event("response.created", response=frame)
    for place, item in enumerate(_items(answer)):
        at = {"output_index": place, "item_id": item["id"]}
        empty: dict[str, Any] = (
            {"content": []} if item["type"] == "message" else {"arguments": ""} if "arguments" in item else {}
        )
        yield event("response.output_item.added", output_index=place, item={**item, **empty})
        if item["type"] == "message":
            (part,) = item["content"]
            yield event("response.content_part.added", **at, content_index=0, part={**part, "text": ""})
            for piece in answer.pieces():
                yield event("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
            yield event("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            yield event("response.function_call_arguments.delta", **at, delta=arguments)
            yield event("response.function_call_arguments.done", **at, name=item["name"], arguments=arguments)
        yield event("response.output_item.done", output_index=place, item=item)
    end = "response.incomplete" if _is_cut(body, answer) else "response.completed"
    yield event(end, response=write(body, answer))


def _is_cut(body: Mapping[str, Any], answer: Answer) -> bool:
    # Codex gives up at an incomplete response. A limit that the client did not set must not lose the episode.
    return answer.cut and body.get("max_output_tokens") is not None


def _frame(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": body.get("model") or "policy",
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        **{name: body.get(name) for name in _PASSED_ON},
    }


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.thought:
        thought = [{"type": "reasoning_text", "text": answer.thought}]
        items.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": [], "content": thought})
    if answer.content or not answer.calls:
        part = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [part]})
    for number, call in zip(answer.call_ids, answer.calls, strict=True):
        made = {"type": "function_call", "id": f"fc_{number}", "call_id": number, "status": "completed"}
        items.append({**made, "name": call.name, "arguments": call.arguments})
    return items


PROTOCOL = WireProtocol(read, write, events, error, "input", "instructions")
