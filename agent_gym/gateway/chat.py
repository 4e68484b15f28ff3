"""OpenAI's chat completions (`POST /v1/chat/completions`), as in openai-python 3.54.

A setting that would change the policy's sampling distribution is refused or has no effect: a forced tool or a JSON
schema would write tokens that the policy did not choose. Of vLLM's extensions there is `return_token_ids`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gym.chat import Message
from agent_gym.errors import quoted
from agent_gym.gateway.exchange import (
    Answer,
    Asked,
    Refused,
    WireProtocol,
    check_shape,
    function_schema,
    plain_text,
    result_text,
    sse,
    stop_strings,
    text_call,
    token_limit,
    tool_message,
)
from agent_gym.untrusted import NONE

_OBJECT = (dict, NONE)
_SHAPE = {
    "messages": [{"role": str, "tool_calls?": ([{"function": {"name": object, "arguments": object}}], NONE)}],
    "tools?": ([{"type": str, "function?": dict}], NONE),
    "response_format?": _OBJECT,
    "stream_options?": object,
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request."""
    check_shape(body, _SHAPE)
    if body.get("n") not in (None, 1):
        raise Refused(400, f"n is {body['n']!r}; this endpoint samples one answer: send the request again for another")
    if (form := (body.get("response_format") or {}).get("type", "text")) != "text":
        raise Refused(400, f"response_format is {form!r}; only 'text' is allowed: ask for JSON in the prompt")
    if body.get("top_logprobs"):
        raise Refused(400, "top_logprobs must be 0: there are logprobs of the sampled tokens only")
    if body.get("functions"):
        raise Refused(400, "functions are not supported: use tools")
    if not isinstance(given := body.get("stream_options") or {}, dict):
        raise Refused(400, f"stream_options is {quoted(given)}; it must be an object, as {{'include_usage': true}}")
    return Asked(
        [read_message(message) for message in body["messages"]],
        read_tools(body),
        stop_strings(body.get("stop")),
        token_limit(body.get("max_completion_tokens"), body.get("max_tokens")),
        body.get("temperature"),
    )


def read_message(message: Mapping[str, Any]) -> Message:
    """Read a message in the form of chat completions."""
    if message["role"] not in ROLES:
        raise Refused(400, f"role is {quoted(message['role'])}; allowed: {', '.join(ROLES)}")
    if message["role"] == "tool":
        return tool_message(result_text(message.get("content")), message.get("tool_call_id"))
    made: Message = {"role": ROLES[message["role"]], "content": plain_text(message.get("content"))}
    if calls := message.get("tool_calls"):
        functions = [(call["function"], call.get("id")) for call in calls]
        made["calls"] = [text_call(function["name"], function["arguments"], number) for function, number in functions]
    return made


def read_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the functions among the tools; there are none if `tool_choice` is "none".

    A tool that is required, or a certain one, is offered like any other: nothing makes the policy call it.
    """
    if body.get("tool_choice") == "none":
        return []
    check_shape(body, {"tools?": _SHAPE["tools?"]})
    functions = [tool.get("function", tool) for tool in body.get("tools") or () if tool["type"] == "function"]
    return [function_schema(one.get("name"), one.get("description"), one.get("parameters")) for one in functions]


def write(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Write the answer as a whole."""
    content = answer.content or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    message |= {"tool_calls": _calls(answer)} if answer.calls else {}
    message |= {"reasoning_content": answer.thought} if answer.thought else {}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _reason(answer),
        "logprobs": None,
        **_tokens(body, answer),
    }
    whole = {**_frame(body, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
    return whole | _prompt(body, answer)


def events(body: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    """Write the answer as events; tokens and logprobs, where asked for, come with the last piece."""
    frame = _frame(body, answer, "chat.completion.chunk")

    def event(choices: list[Mapping[str, Any]], **more: Any) -> str:
        return sse({**frame, "choices": choices, **more})

    def chunk(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> str:
        return event([{"index": 0, "delta": delta, "finish_reason": reason, **more}])

    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    yield event([first], **_prompt(body, answer))
    if answer.thought:
        yield chunk({"reasoning_content": answer.thought})
    for piece in answer.pieces():
        yield chunk({"content": piece})
    for number, call in enumerate(_calls(answer)):
        yield chunk({"tool_calls": [{"index": number, **call}]})
    yield chunk({}, _reason(answer), **_tokens(body, answer))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield event([], usage=_usage(answer))
    yield sse("[DONE]")


def error(status: int, reason: str) -> dict[str, Any]:
    """Write an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": reason, "type": kind, "param": None, "code": None}}


def _frame(body: Mapping[str, Any], answer: Answer, kind: str) -> dict[str, Any]:
    model = body.get("model") or "policy"  # whatever the client calls it
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": int(time.time()), "model": model}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"id": number, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in zip(answer.call_ids, answer.calls, strict=True)
    ]


def _reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.cut else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    read_tokens, sampled = len(answer.prompt_ids), len(answer.token_ids)
    return {"prompt_tokens": read_tokens, "completion_tokens": sampled, "total_tokens": read_tokens + sampled}


def _prompt(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    return {"prompt_token_ids": [*answer.prompt_ids]} if body.get("return_token_ids") else {}


def _tokens(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    made: dict[str, Any] = {"token_ids": [*answer.token_ids]} if body.get("return_token_ids") else {}
    if body.get("logprobs"):
        scored = zip(answer.tokens, answer.logprobs, strict=True)
        entries = [
            {"token": text, "logprob": logprob, "bytes": [*text.encode()], "top_logprobs": []}
            for text, logprob in scored
        ]
        made["logprobs"] = {"content": entries, "refusal": None}
    return made


PROTOCOL = WireProtocol(read, write, events, error)
