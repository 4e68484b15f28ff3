"""Anthropic's messages (`POST /v1/messages`, version 2023-06-01)."""

from __future__ import annotations

import json
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

_SHAPE = {
    "messages": [{"role": str, "content": (str, [{"type": str}])}],
    "tools?": ([dict], NONE),
    "tool_choice?": (dict, NONE),
    "system?": (str, list, NONE),
}
_OF_BLOCK = {"tool_use": {"name": object, "input": object}}
_EDITOR = {"path": "string", "file_text": "string", "old_str": "string", "new_str": "string", "insert_line": "integer"}
_WITHOUT_SCHEMA: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "bash_": ("Run a command in a shell that stays open.", {"command": "string", "restart": "boolean"}, []),
    "text_editor_": (
        "View and edit files; command is view, create, str_replace or insert.",
        {"command": "string", **_EDITOR},
        ["command", "path"],
    ),
}
"""Tools of the client whose schemas Anthropic's models know (docs.anthropic.com, bash and text editor tool): the
begin of their type, then a description, the arguments, and which are required."""


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request."""
    check_shape(body, _SHAPE)
    messages: list[Message] = []
    if body.get("system"):
        messages.append({"role": "system", "content": plain_text(body["system"])})
    for message in body["messages"]:
        if message["role"] not in ("user", "assistant"):
            raise Refused(400, f"role is {quoted(message['role'])}; allowed: user, assistant")
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages += _messages(message["role"], blocks)
    tools = [] if (body.get("tool_choice") or {}).get("type") == "none" else body.get("tools") or []
    schemas = [function_schema(*_function(one)) for one in tools if _is_the_clients(one)]
    stop, most = stop_strings(body.get("stop_sequences")), token_limit(body.get("max_tokens"))
    return Asked(messages, schemas, stop, most, body.get("temperature"))


def _is_the_clients(tool: Mapping[str, Any]) -> bool:
    """Whether the client runs this tool. Tools that the server would run (web search, code) are not offered."""
    kind = tool.get("type")
    if kind in (None, "custom"):
        return True
    return isinstance(kind, str) and kind.startswith(tuple(_WITHOUT_SCHEMA))


def _function(tool: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return name, description and schema of a tool; Anthropic's own tools of the client come without the last two."""
    if "input_schema" in tool or tool.get("type") in (None, "custom"):
        if not isinstance(tool.get("input_schema"), Mapping):
            raise Refused(400, f"the tool {quoted(tool.get('name'))} has no input_schema, which must be an object")
        return tool.get("name"), tool.get("description"), tool["input_schema"]
    about, fields, required = next(known for begin, known in _WITHOUT_SCHEMA.items() if tool["type"].startswith(begin))
    properties = {name: {"type": kind} for name, kind in fields.items()}
    return tool.get("name"), about, {"type": "object", "properties": properties, "required": required}


def _messages(role: str, blocks: list[dict[str, Any]]) -> Iterator[Message]:
    """Answers of tools are in the user's message; here they are separate messages, before the user's words."""
    for block in blocks:
        check_shape(block, _OF_BLOCK.get(block["type"], {}))
    blocks = [block for block in blocks if block["type"] not in ("thinking", "redacted_thinking")]
    results = [block for block in blocks if block["type"] == "tool_result"]
    uses = [block for block in blocks if block["type"] == "tool_use"]
    words = [block for block in blocks if block not in results and block not in uses]
    for block in results:
        yield tool_message(result_text(block.get("content")), block.get("tool_use_id"))
    if words or uses:
        calls = {"calls": [text_call(block["name"], block["input"], block.get("id")) for block in uses]} if uses else {}
        yield {"role": role, "content": plain_text(words), **calls}


def write(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Write the answer as a whole."""
    reason = "tool_use" if answer.calls else "max_tokens" if answer.cut else "end_turn"
    reason, stop = ("stop_sequence", answer.stop) if answer.stop and not answer.calls else (reason, None)
    usage = {"input_tokens": len(answer.prompt_ids), "output_tokens": len(answer.token_ids)}
    frame = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": body.get("model") or "policy"}
    return {**frame, "content": _blocks(answer), "stop_reason": reason, "stop_sequence": stop, "usage": usage}


def events(body: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    """Write the answer as events."""

    def event(kind: str, **content: Any) -> str:
        return sse({"type": kind, **content}, kind)

    whole = write(body, answer)
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    start = {**whole, **begun, "usage": {**whole["usage"], "output_tokens": 0}}
    yield event("message_start", message=start)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "tool_use":
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        elif block["type"] == "thinking":
            empty, deltas = {**block, "thinking": ""}, [{"type": "thinking_delta", "thinking": block["thinking"]}]
        else:
            empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in answer.pieces()]
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield event("message_delta", delta=end, usage=whole["usage"])
    yield event("message_stop")


def error(status: int, reason: str) -> dict[str, Any]:
    """Write an error."""
    kind = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": reason}}


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.thought:
        blocks.append({"type": "thinking", "thinking": answer.thought, "signature": ""})
    if answer.content or not answer.calls:
        blocks.append({"type": "text", "text": answer.content})
    for number, call in zip(answer.call_ids, answer.calls, strict=True):
        blocks.append({"type": "tool_use", "id": number, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


PROTOCOL = WireProtocol(read, write, events, error, opening="system")
