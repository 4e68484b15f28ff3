"""Requests of clients and answers of the policy, in one form for all protocols.

A protocol (chat.py, responses.py, anthropic.py) reads the body of a request into `Asked` and writes an `Answer` as a
whole or as events. `split_turn` reads a sampled turn as clients see it: thoughts, content and tool calls apart.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_gym.chat import Message
from agent_gym.errors import quoted, shown
from agent_gym.formats.json_calls import HermesParser
from agent_gym.formats.native import NativeParser
from agent_gym.formats.thoughts import after_thought, split_thought
from agent_gym.untrusted import check_depth, misfit

HERMES = HermesParser()
"""The wire format of tool calls where no chat template names another."""


class Refused(Exception):
    """A request that gets an error as its answer, with the status of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Call(NamedTuple):
    """A tool call; its arguments are a JSON text, its id the policy's or the client's."""

    name: str
    arguments: str
    id: str = ""


@dataclass(slots=True)
class Asked:
    """A request, whichever protocol it came in."""

    # Of the roles system, user, assistant and tool, with texts as contents; an assistant's calls are under "calls".
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)  # function schemas
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None  # recorded only: the rollout's temperature holds

    def __post_init__(self) -> None:
        given = self.temperature
        if given is None:
            return
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 100:
            raise Refused(400, f"temperature is {quoted(given)}; it must be a number from 0 to 100")


@dataclass(slots=True)
class Answer:
    """A turn of the policy."""

    content: str
    calls: list[Call]
    thought: str
    cut: bool  # whether the turn ended because it used up its tokens
    prompt_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    tokens: Sequence[str] = ()  # the text of each token
    stop: str | None = None  # the stop string at which it ended
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def call_ids(self) -> list[str]:
        return [f"call_{self.id}_{number}" for number in range(len(self.calls))]

    def pieces(self, length: int = 24) -> Iterator[str]:
        """The content in pieces, as a stream brings it."""
        for start in range(0, len(self.content), length):
            yield self.content[start : start + length]


class WireProtocol(NamedTuple):
    """How one kind of endpoint is spoken."""

    read: Callable[[Mapping[str, Any]], Asked]  # raises Refused, KeyError, TypeError, ValueError or AttributeError
    write: Callable[[Mapping[str, Any], Answer], dict[str, Any]]
    events: Callable[[Mapping[str, Any], Answer], Iterator[str]]
    error: Callable[[int, str], dict[str, Any]]
    messages: str = "messages"  # the field of a body that grows
    opening: str = ""  # the field that is read as a message in front of it


def split_turn(
    text: str, asked: Asked, prefill: str = "", parser: NativeParser = HERMES
) -> tuple[str, list[Call], str]:
    """Read a sampled turn as clients see it: its content, its tool calls, its thoughts.

    `prefill` is the end of the prompt, which may have begun a thought. Calls are read where the client offered tools;
    if one is broken, all of the text after the thoughts is content, as the policy wrote it. The content ends in front
    of the first stop string.
    """
    behind = after_thought(text)
    ends = [behind.find(word) for word in asked.stop if word in behind]
    text = text[: len(text) - len(behind) + min(ends)] if ends else text
    turn = parser.split(text, prefill)
    rest, thought, missing = split_thought(text, prefill)
    if missing is not None:  # the turn was cut in its thought
        return text, [], ""
    if not turn.calls:
        return rest if rest.strip() == turn.content else turn.content, [], turn.thought
    if not asked.tools or any(call.error for call in turn.calls):
        return rest, [], thought
    return turn.content, [Call(one.name, json.dumps(one.arguments), one.id or "") for one in turn.calls], turn.thought


def check_shape(body: Any, shape: Any) -> None:
    """Raise `Refused` unless the body of a request has a shape (untrusted.py), with the first place that has not."""
    if wrong := misfit(body, shape):
        raise Refused(400, f"the request cannot be read: {wrong}")
    try:
        check_depth(body)
    except ValueError as error:
        raise Refused(400, f"the request cannot be read: it is {error}") from error


def plain_text(content: Any) -> str:
    """Return the words of a content: a text, None, or a list of parts that are texts; `Refused` for anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refused(400, f"a content is {shown(content)}; it must be a text or a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise Refused(400, f"a content has the part {shown(part)}; it must be an object with a text")
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise Refused(400, f"a content has a part of type {part.get('type')!r}; this endpoint takes texts only")
        texts.append(text)
    return "".join(texts)


def result_text(content: Any) -> str:
    """Return the result of a tool as text: as `plain_text`, and objects, numbers and lists of others as JSON."""
    if content is None or isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content))):
        return plain_text(content)
    return json.dumps(content, ensure_ascii=False)


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("type"), str)


def text_call(name: Any, arguments: Any, number: Any = None) -> Call:
    """Read a call that a client sends back, with its id."""
    if not isinstance(name, str) or not name:
        raise Refused(400, f"the name of a tool call is {quoted(name)}; it must be a text")
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Call(name, arguments, number if isinstance(number, str) else "")


def tool_message(content: str, number: Any) -> Message:
    """Make the message of a tool that answered the call with this id."""
    named = {"tool_call_id": number} if isinstance(number, str) and number else {}
    return {"role": "tool", "content": content, **named}


def function_schema(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Write a tool in OpenAI's form."""
    if not isinstance(name, str) or not name:
        raise Refused(400, f"the name of a tool is {quoted(name)}; it must be a text")
    if not isinstance(description, str | None) or not isinstance(parameters, Mapping | None):
        found = f"the description {shown(description)} and the parameters {shown(parameters)}"
        raise Refused(400, f"the tool {quoted(name)} has {found}; they must be a text and an object")
    parameters = parameters or {"type": "object", "properties": {}}
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def stop_strings(stop: Any) -> tuple[str, ...]:
    """Read a stop string, or several."""
    words = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Refused(400, f"stop is {quoted(stop)}; it must be a text or a list of texts")
    return tuple(word for word in words if word)


def token_limit(*values: Any) -> int | None:
    """Read the first limit that is given."""
    for value in values:
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Refused(400, f"the limit of tokens is {quoted(value)}; it must be a whole number of at least 1")
            return value
    return None


def sse(event: Mapping[str, Any] | str, name: str | None = None) -> str:
    """Write a server-sent event."""
    data = event if isinstance(event, str) else json.dumps(event)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
