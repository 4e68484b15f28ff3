"""A conversation that grows: only what is new in a request is rendered and encoded.

A chat server renders the whole conversation for each request, which costs the square of the number of turns. Most
requests continue the last one: its messages, the policy's turn, and the world's answer. Their ids are then the ids of
the last prompt, the turn as it was sampled, and the answer (`ChatRenderer.reply` does the same for environments).

A chat template may edit earlier turns, so that is checked in each request, on a short conversation: the opening, the
last turns, the last turn of each kind that occurred, and earlier turns with equal words (Mistral looks for the last
message of a user by its words), once without the news and once with them. All that precedes the last known turn of the
policy must be the same. When the conversation has doubled, the whole of it is rendered and compared. Where a check
fails, where the template counts turns, or where the policy wrote none of the last turns, the whole conversation is
rendered, and only equal pieces of text are not encoded again.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import Any
from weakref import WeakKeyDictionary

from agent_gym.errors import ConfigError
from agent_gym.messages import Message, is_answer
from agent_gym.past_turns import pieces_of, sampled_in

_LAST = 2  # turns at the end that are always in the short conversation, and so many at the beginning
_MOST_KINDS = 12
_LITERAL = re.compile(r"""'([^'\\\n]{2,60})'|"([^"\\\n]{2,60})\"""")
_EDITS = "the chat template edits earlier turns"
_EDITING: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # which a whole rendering found out, and how


class KnownMessages(list[Message]):
    """The messages of a request, and the conversation that they continue."""

    def __init__(self, messages: Iterable[Message], known: KnownTurns) -> None:
        super().__init__(messages)
        self.known = known


class KnownTurns:
    """The ids of the longest part of a conversation that was rendered.

    `whole` counts the requests that were rendered as a whole although they continue the last one, by the reason,
    without the regular checks.
    """

    def __init__(self) -> None:
        self.whole: Counter[str] = Counter()
        self.encoded: dict[tuple[str, ...], list[int]] = {}
        self._checked = self._tail = 0  # messages in the last whole rendering; where the last turn of the policy ends
        self._prompt: list[int] = []
        self._begin(())

    def _begin(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._messages: list[Message] = []
        self._tools = [*tools]
        self._last: Sequence[int] | None = None  # the last turn of the policy
        self._turns: list[int] = []  # where each turn begins, with a message of the assistant
        self._kinds: dict[Hashable, int] = {}  # the last turn of each kind
        self._said: dict[Hashable, int] = {}  # the first turn in which the world said this

    def ids(self, renderer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the prompt of a request, (T,) ids, as `ChatRenderer.conversation`.

        Raises:
            ConfigError: as `render_conversation`. The conversation then stays as it was.
        """
        start = len(self._messages)
        continues = 0 < start < len(messages) and messages[:start] == self._messages and [*tools] == self._tools
        news = messages[start:] if continues else []
        why = self._obstacle(renderer, news) if continues else ""
        added = self._added(renderer, news, tools) if continues and not why else None
        if continues and not why and added is None:
            why = _EDITS
        if added is None or len(messages) > 2 * self._checked:
            pieces = pieces_of(renderer, messages, tools)
            whole = self._joined(renderer, None, pieces, sampled_in(messages))
            if added is not None and whole[0] != [*self._prompt[: self._tail], *added[0]]:
                _EDITING[renderer] = why = f"{_EDITS}, as a whole rendering of {len(messages)} messages shows"
            self._tail, self._checked, added = 0, len(messages), whole
            self.encoded = {key: self.encoded[key] for key in map(tuple, pieces)}
        del self._prompt[self._tail :]
        self._prompt += added[0]
        self._tail += added[1]
        if why:
            self.whole[why] += 1
            told = f"a conversation is rendered as a whole for each request, since {why}: the cost grows with its turns"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        if not continues:
            self._begin(tools)
        self._keep(news or messages, _literals(str(renderer._template)))
        return [*self._prompt]

    def _obstacle(self, renderer: Any, news: Sequence[Message]) -> str:
        """Why the news cannot be appended, "" if they can, as far as is known without the template."""
        policy_wrote = len(self._turns) <= _LAST or sampled_in(self._messages[self._turns[-_LAST] :])
        obstacles = {
            _EDITING.get(renderer, ""): renderer in _EDITING,
            "the chat template counts turns": renderer.call_format.counts,
            "it shows images": not all(isinstance(one["content"], str) for one in news),
            "answers of tools have no ids": any(is_answer(one) and not one.get("tool_call_id") for one in news),
            f"it has more than {_MOST_KINDS} kinds of turns": len(self._kinds) > _MOST_KINDS,
            f"the policy wrote none of the last {_LAST} turns": not policy_wrote,
        }
        return next((why for why, met in obstacles.items() if met), "")

    def _added(self, renderer: Any, news: Sequence[Message], tools: Any) -> tuple[list[int], int] | None:
        """Render all that follows the last turn of the policy that is known, see `_joined`.

        None where the template edits what precedes that turn, or refuses the short conversation.
        """
        ends = [*self._turns, len(self._messages)]
        every, opening = range(len(self._turns)), self._messages[: ends[0]]
        chosen = {*self._kinds.values(), *every[:_LAST], *every[-_LAST:]}
        about = chain(opening, news, *(self._messages[ends[one] : ends[one + 1]] for one in chosen))
        chosen |= {self._said[words] for one in about if (words := _words(one)) in self._said}
        short = [*opening, *chain(*(self._messages[ends[one] : ends[one + 1]] for one in sorted(chosen)))]
        try:
            *same, _ = pieces_of(renderer, short, tools)
            pieces = pieces_of(renderer, [*short, *news], tools)
        except ConfigError:
            return None
        edited = pieces[: len(same)] != same
        return None if edited else self._joined(renderer, self._last, pieces[len(same) :], sampled_in(news))

    def _joined(self, renderer: Any, last: Any, pieces: list[list[str]], turns: list[Any]) -> tuple[list[int], int]:
        """Return the ids of texts, with turns of the policy between them, and where the last of these turns ends.

        `last` is the turn before the first text; None if that is the opening.
        """
        ids: list[int] = []
        end = 0
        for place, (turn, piece) in enumerate(zip([last, *turns], pieces, strict=True)):
            if place:
                ids += turn
                end = len(ids)
            if (key := tuple(piece)) not in self.encoded:
                self.encoded[key] = renderer._encode_pieces(piece)
            ids += self.encoded[key] if turn is None else renderer._closing(turn, self.encoded[key])
        return ids, end

    def _keep(self, news: Sequence[Message], literals: Sequence[str]) -> None:
        for mine, group in groupby(news, key=lambda one: one["role"] == "assistant"):
            run = [*group]
            kinds = (*dict.fromkeys(_kind(one, literals) for one in run), len(run) > 1)
            if mine:
                self._turns.append(len(self._messages))
                self._wrote: Hashable = kinds
            elif self._turns:
                self._kinds[self._wrote, kinds] = len(self._turns) - 1
                self._said |= {words: len(self._turns) - 1 for one in run if (words := _words(one)) not in self._said}
            self._messages += run
        self._last = next(reversed(sampled_in(news)), self._last)


def _words(message: Message) -> Hashable:
    return message["role"], str(message["content"])


def _kind(message: Message, literals: Sequence[str]) -> Hashable:
    """What a template may tell from a message: everything but the words."""
    if "token_ids" in message:
        return "sampled"
    said = message["content"] if isinstance(message["content"], str) else str(message["content"])
    return message["role"], is_answer(message), bool(said.strip()), tuple(mark for mark in literals if mark in said)


@lru_cache(maxsize=64)
def _literals(template: str) -> tuple[str, ...]:
    """The markup that a template may look for in messages, such as "</think>": texts in quotes that are no words."""
    found = {one or other for one, other in _LITERAL.findall(template)}
    return tuple(sorted(text for text in found if re.search(r"[<>\[\]|/]", text)))
