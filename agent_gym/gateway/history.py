"""Provenance: which messages of a request are turns of the policy, and the ids that it sampled for them.

A client sends the whole conversation with each request, as it keeps it: a text may have lost the spaces at its ends,
the arguments of a call may be written anew. Such a turn is still the policy's, and is put back id for id. A turn that
says anything else was changed by the client: it is a text of the world, and starts a new row.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from agent_gym.chat import Message
from agent_gym.formats.native import NativeParser
from agent_gym.gateway.exchange import HERMES, Answer, Call
from agent_gym.gateway.known_turns import KnownMessages, KnownTurns
from agent_gym.tools import ToolCall

_MOST_BRANCHES = 8
"""Conversations of one episode that are remembered; an older one is read anew."""


class _Branch:
    """A conversation of an episode, as far as it was asked, and all that is known of it."""

    def __init__(self) -> None:
        self.asked: list[Message] = []  # as the client wrote them
        self.made: list[Message] = []  # as the renderer takes them
        self.hashes: list[int] = []  # of the conversation up to and with each
        self.calls: dict[str, Call] = {}  # that the policy did not write
        self.known = KnownTurns()

    def fork(self, count: int) -> _Branch:
        """Return another conversation with the same first messages."""
        other = _Branch()
        other.asked, other.made, other.hashes = self.asked[:count], self.made[:count], self.hashes[:count]
        other.calls, other.known.encoded = {**self.calls}, {**self.known.encoded}
        return other


class History:
    """The turns of one episode. Messages that continue a conversation of earlier requests are not read again."""

    def __init__(self, parser: NativeParser = HERMES) -> None:
        self._parser = parser  # of the form in which the policy writes calls
        self._calls: dict[str, Call] = {}  # as the policy wrote them, by the id that the client knows
        # By the conversation before it and by the turn, and by the turn alone: the newest of the ones that look alike.
        self._turns: dict[Hashable, Sequence[int]] = {}
        self._answered: set[int] = set()  # the conversations that were answered, with the answer
        self._branches: list[_Branch] = []  # the last one asked is the last

    def add(self, messages: Sequence[Message], answer: Answer, raw: str) -> None:
        """Keep the answer to a request. Its `raw` text, as it was sampled, is a form in which it may come back, too."""
        message: Message = {"role": "assistant", "content": answer.content, "calls": answer.calls}
        before = self._branch(messages).hashes[-1] if messages else None
        for one in (message, {**message, "content": raw, "calls": []}):
            for form in (_form(one), _form(one, exact=True)):
                self._turns[before, form] = self._turns[form] = answer.token_ids
            self._answered.add(hash((before, _form(one))))
        self._calls |= zip(answer.call_ids, answer.calls, strict=True)

    def recognise(self, messages: Sequence[Message]) -> KnownMessages:
        """Return the messages as the renderer takes them: turns of the policy with `token_ids`, calls as text.

        Others' turns are "foreign", and answers of tools get the name and the id of the call, as the policy wrote it.
        """
        branch = self._branch(messages)
        return KnownMessages(branch.made, branch.known)

    def _branch(self, messages: Sequence[Message]) -> _Branch:
        """Find the conversation that these messages continue furthest, and read its news."""
        counts = [(_common(branch.asked, messages), place) for place, branch in enumerate(self._branches)]
        count, place = max(counts, default=(0, 0))
        if not count:
            branch = _Branch()
        elif count == len(self._branches[place].asked):
            branch = self._branches.pop(place)
        else:
            branch = self._branches[place].fork(count)
        for message in messages[count:]:
            self._read(branch, message)
        self._branches = [*self._branches[-_MOST_BRANCHES + 1 :], branch]
        return branch

    def _read(self, branch: _Branch, message: Message) -> None:
        exact, form = _form(message, exact=True), _form(message)
        one: Message = {"role": message["role"], "content": self.as_text(message)}
        branch.calls |= {call.id: call for call in message.get("calls", ())}
        if message["role"] == "tool" and (number := message.get("tool_call_id")):
            call = self._calls.get(number) or branch.calls.get(number)
            one |= {"name": call.name, "tool_call_id": call.id or number} if call else {"tool_call_id": number}
        before = branch.hashes[-1] if branch.hashes else None
        if message["role"] == "assistant":
            found = [self._turns[key] for key in ((before, exact), (before, form), exact, form) if key in self._turns]
            one |= {"token_ids": found[0]} if found else {"foreign": True}
        branch.asked.append(message)
        branch.made.append(one)
        branch.hashes.append(hash((before, form)))

    def news(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages after the longest conversation that was answered; all of them if it is a new one."""
        hashes = self._branch(messages).hashes
        known = next((place for place in range(len(hashes), 0, -1) if hashes[place - 1] in self._answered), 0)
        return [{"role": one["role"], "content": self.as_text(one)} for one in messages[known:]]

    def as_text(self, message: Message) -> str:
        """Write a message with its calls as one text, in the form in which the policy writes calls."""
        calls = [ToolCall(call.name, _arguments(call), id=call.id or None) for call in message.get("calls", ())]
        written = self._parser.render_calls(calls) if calls else ""
        return "\n".join(filter(None, [message["content"], written]))


def _common(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return how many messages two conversations have in common at their beginning."""
    if known == messages[: len(known)]:
        return len(known)
    return next(count for count, (one, other) in enumerate(zip_longest(known, messages)) if one != other)


def _form(message: Message, *, exact: bool = False) -> Hashable:
    """The content of a message, whatever the spelling of its calls and, unless `exact`, the spaces at its ends."""
    calls = [(call.name, json.dumps(_arguments(call), sort_keys=True)) for call in message.get("calls", ())]
    return message["role"], message["content"] if exact else message["content"].strip(), tuple(calls)


def _arguments(call: Call) -> Any:
    with suppress(ValueError, RecursionError):
        if isinstance(read := json.loads(call.arguments), dict):
            return read
    return {"arguments": call.arguments}
