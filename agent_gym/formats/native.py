"""The parser of a family of models: how the calls are found in a turn, apart from its thoughts and words.

A family's parser knows where calls begin and end (`_scan`) and how they are written (`render_calls`); everything else
is here. The rules for all of them:

- Thoughts are taken off first (thoughts.py). A draft of a call in one never runs.
- A broken call is a `ToolCall` with an `error` in its place. A turn with a mark of calls and no call has one, too, so
  that an empty list always means a turn without a trace of a call: it may be taken for a final answer.
- Every character is looked at a bounded number of times.

transformers (`parse_response` of a tokenizer) and TRL (`add_response_schema`) read about ten of these families, and
vLLM nearly all of them. Their forms were a source for these parsers. Environments run without transformers and torch,
`parse_response` drops or raises on a broken call, which an environment has to answer, and none of them writes calls,
which experts need; hence these parsers.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.formats.calls import ToolCall, ToolSchema, Turn, write_json
from agent_gym.formats.thoughts import has_marks, split_thought
from agent_gym.formats.traces import is_cut, marks_of, trace

_QUOTES = re.compile(r'(?<!\\)(?:\\\\)*"')
_MAX_MARKS = 3  # of thoughts, in calls without an end
_MAX_ID = 1000


class FoundCalls(NamedTuple):
    """A call and the part of the turn that it takes: text[start:stop]."""

    start: int
    stop: int
    call: ToolCall


class NativeParser:
    """A `tools.Parser` of one family; see the subclasses, and families.py for the table.

    Args:
        family: its name in the table.
        marks: the openings of calls: a turn that holds one of them calls something.
        noise: other marks around calls, which are not content.
        end: a mark that closes a turn with calls and is an end-of-turn token of the model, so that it may be missing.
    """

    stop: tuple[str, ...] = ()
    in_templates = True

    def __init__(self, family: str, marks: Sequence[str] = (), noise: Sequence[str] = (), end: str = "") -> None:
        self.family = family
        self.marks, self.noise, self.end = tuple(marks), tuple(noise), end
        self.traces = marks_of((*self.marks, *self.noise))
        self.tools: Mapping[str, Mapping[str, Any]] = {}
        self.made = 0  # calls in earlier turns of an episode, from which the ids of those that `render` writes count

    def for_tools(self, tools: Sequence[ToolSchema]) -> NativeParser:
        """Return this parser with the schemas of the tools, by which families without types read values ("5" or 5)."""
        known = copy.copy(self)
        functions = [tool.get("function", tool) for tool in tools]
        known.tools = {one["name"]: one.get("parameters") or {} for one in functions}
        return known

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a turn in order; an empty list means that the turn has no trace of one."""
        if has_marks(text):
            _, _, found = self._read(text, "")
            return [one.call for one in found]
        return [one.call for one in self._found(text)]

    def split(self, text: str, prefill: str = "") -> Turn:
        """Split a turn into the words around its calls, the calls, and its thoughts.

        Args:
            text: the turn as it was sampled, with special tokens shown.
            prefill: the beginning of the turn in the generation prompt, `<think>` for example.
        """
        rest, thought, found = self._read(text, prefill)
        return Turn(self._content(rest, found), [one.call for one in found], thought)

    def _read(self, text: str, prefill: str) -> tuple[str, str, list[FoundCalls]]:
        """Return the turn without its thoughts, the thoughts, and the calls in the turn."""
        rest, thought, missing = split_thought(text, prefill, self._is_text(text))
        found = self._found(rest)
        if missing is not None and any(mark in thought for mark in self.marks):
            call = ToolCall("", error=f"the thought is not closed by {missing}, and calls in thoughts do not run")
            found.append(FoundCalls(len(rest), len(rest), call))
        if not found and thought and text.lstrip().startswith(self.marks):
            # No thought begins with a call: a mark in an argument of a broken one looks like the end of a thought.
            found = [one for one in self._found(text) if one.call.error is not None][:1]
        if not found and thought and missing is None and is_cut(rest):
            call = ToolCall("", error="a mark of thoughts cuts a tool call, and calls in thoughts do not run")
            found = [FoundCalls(0, len(rest), call)]
        return rest, thought, found

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call as the policy would."""
        return self.render_calls([ToolCall(name, dict(arguments))], self.made)

    def together(self, text: str) -> str:
        """Write calls of one turn that a script has put one behind the other as the family writes several."""
        calls = self.parse(text)
        if len(calls) < 2 or any(call.error for call in calls):
            return text
        alone = "\n".join(self.render_calls([call]) for call in calls)
        (first, *_), seen = calls, set[Any]()
        before = next((number for number in range(_MAX_ID) if self.new_id(first.name, number) == first.id), 0)
        for call in calls:
            call.id = None if call.id in seen else call.id
            seen.add(call.id)
        return text.replace(alone, self.render_calls(calls, before))

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        """Write the calls of one turn as the policy would.

        Args:
            calls: name, arguments and, in families that have one, id; without an id one is made.
            before: how many calls earlier turns have made; some ids count them.
        """
        raise NotImplementedError

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Describe tools and format for a system prompt."""
        listing = "\n".join(write_json(tool["function"]) for tool in tools)
        example = self.render("tool_name", {"argument_name": "value"})
        return f"You may call these tools:\n{listing}\n\nWrite each call as:\n{example}"

    def new_id(self, name: str, number: int) -> str | None:
        """Make the id of the call that `number` calls of the episode precede; None in families without ids."""
        return None

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        """Yield the calls of a text without thoughts, broken ones with an error."""
        raise NotImplementedError

    def _found(self, text: str) -> list[FoundCalls]:
        found = list(self._scan(text))
        if not found and (start := self._trace(text)) >= 0:
            return [FoundCalls(start, len(text), ToolCall("", error=self._no_call(text)))]
        return found

    def _trace(self, text: str) -> int:
        """Return where a text without a call has the trace of one; -1 if it has none."""
        return trace(text, self.traces, self.marks)

    def _no_call(self, text: str) -> str:
        if mark := next((mark for mark in self.marks if mark in text), "").strip():
            return f"{mark} is not followed by a tool call"
        whole = f"no whole opening mark, {self.marks[0].strip()}" if self.marks else "not the form of one"
        return f"this looks like a tool call, and it has {whole}"

    def _is_text(self, text: str) -> Callable[[int], bool]:
        """Return the test that tells whether the mark of a thought at an index is text of a call.

        It is, inside of a whole call. It is, too, inside of a broken one that opens the turn, or in an argument of a
        broken one, if no whole call follows: after a draft that the end of the thought has cut off the call follows
        that was meant.
        """
        found: list[FoundCalls] | None = None
        asked = 0

        def inside(place: int) -> bool:
            nonlocal found, asked
            if found is None:
                found = list(self._scan(text))
            before = bisect(found, place, key=lambda one: one.start)
            if not before or place >= found[before - 1].stop:
                return False
            start, _, call = found[before - 1]
            asked += 1
            if call.error is None or asked > _MAX_MARKS:
                return call.error is None
            if text[:start].strip() and not self._in_argument(text[start:place]):
                return False
            return all(one.call.error is not None for one in self._scan(text[place:]))

        return inside

    def _in_argument(self, text: str) -> bool:
        """Whether this beginning of a call ends inside of an argument."""
        return len(_QUOTES.findall(text)) % 2 == 1

    def _content(self, text: str, found: Sequence[FoundCalls]) -> str:
        pieces, end = [], 0
        for start, stop, _ in found:
            pieces.append(text[end:start])
            end = max(end, stop)
        pieces.append(text[end:])
        for mark in sorted((*self.marks, *self.noise), key=len, reverse=True):
            pieces = [piece.replace(mark, "") for piece in pieces]
        return "\n".join(filter(None, (piece.strip() for piece in pieces)))
