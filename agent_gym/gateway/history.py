"""Provenance: which messages of a request are turns of the policy, and the ids that it sampled for them.

A client sends the whole conversation with each request, as it keeps it: a text may have lost the spaces at its ends,
the arguments of a call may be written anew. Such a turn is still the policy's, and is put back id for id. A turn that
says anything else was changed by the client: it is a text of the world, and starts a new row.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

from agent_gym.chat import Message
from agent_gym.gateway.exchange import PARSER, Answer, Call


class History:
    """The turns of one episode."""

    def __init__(self) -> None:
        # By the conversation before it and by the turn, and by the turn alone: the newest of those that look alike.
        self._turns: dict[Hashable, Sequence[int]] = {}
        self._answered: set[int] = set()  # the conversations that were answered, with the answer

    def add(self, messages: Sequence[Message], answer: Answer, raw: str) -> None:
        """Keep the answer to a request. Its `raw` text, as it was sampled, is a form in which it may come back, too."""
        message: Message = {"role": "assistant", "content": answer.content, "calls": answer.calls}
        before = None
        for one in messages:
            before = hash((before, _form(one)))
        for one in (message, {**message, "content": raw, "calls": []}):
            for form in (_form(one), _form(one, exact=True)):
                self._turns[before, form] = self._turns[form] = answer.token_ids
            self._answered.add(hash((before, _form(one))))

    def recognise(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the renderer takes them: turns of the policy with `token_ids`, calls as text."""
        made: list[Message] = []
        before = None
        for message in messages:
            exact, form = _form(message, exact=True), _form(message)
            one: Message = {"role": message["role"], "content": as_text(message)}
            if message["role"] == "assistant":
                found = [
                    self._turns[key] for key in ((before, exact), (before, form), exact, form) if key in self._turns
                ]
                one |= {"token_ids": found[0]} if found else {}
            before = hash((before, form))
            made.append(one)
        return made

    def news(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages behind the longest conversation that was answered; all of them if it is a new one."""
        known, before = 0, None
        for number, one in enumerate(messages, 1):
            before = hash((before, _form(one)))
            known = number if before in self._answered else known
        return [{"role": one["role"], "content": as_text(one)} for one in messages[known:]]


def as_text(message: Message) -> str:
    """Write a message with its calls as one text, in the form in which the policy writes calls."""
    calls = [PARSER.render(call.name, _arguments(call)) for call in message.get("calls", ())]
    return "\n".join(filter(None, [message["content"], *calls]))


def _form(message: Message, *, exact: bool = False) -> Hashable:
    """What a message says, whatever the writing of its calls and, unless `exact`, the spaces at its ends."""
    calls = [(call.name, json.dumps(_arguments(call), sort_keys=True)) for call in message.get("calls", ())]
    return message["role"], message["content"] if exact else message["content"].strip(), tuple(calls)


def _arguments(call: Call) -> Any:
    with suppress(ValueError, RecursionError):
        if isinstance(read := json.loads(call.arguments), dict):
            return read
    return {"arguments": call.arguments}
