"""ReAct's format (arXiv:2210.03629): a thought, an action such as `Search[query]`, and the world's observation.

    Thought: The director of Tobila has to be found first.
    Action: Search[Tobila]
    Observation: [1] Tobila: Tobila is a film directed by Nuvi Roga.

The paper has no rules for other text of a model, so these are ours:

- An action is at the beginning of a line, after `Action:` or `Action 3:` or, if its name is known, without it
  (`click[Buy Now]`). Case does not matter. All actions of a turn are run, in their order, up to the first `Finish`.
- Its argument ends at the bracket that closes it, so that it may hold brackets in pairs; where they are not in pairs,
  at the last closing bracket of the line.
- The world writes the observations: a turn ends at `Observation:`, the stop string, and text after one is not read.
- `Finish[answer]` calls nothing: a turn that only finishes is the answer. Base models continue after it with a question
  and actions as in the examples of their prompt; these are not actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError, clipped
from agent_gym.tools import ToolCall, ToolSchema

# Chat models like to set the marks in bold, hence the asterisks. Possessive, so that nothing is read twice.
_START = re.compile(
    r"^[ \t*]*+(?P<mark>action[ \t]*\d*+[ \t*]*+:[\s*]*+)?(?:(?P<name>\w++)[ \t]*+\[)?", re.IGNORECASE | re.MULTILINE
)
_THOUGHT = re.compile(r"^[ \t*]*+thought[ \t]*+\d*+[ \t*]*+:[ \t*]*+", re.IGNORECASE | re.MULTILINE)
_OBSERVATION = re.compile(r"Observation:|^[ \t*]*+(?i:observation)[ \t]*+\d*+[ \t*]*+:", re.MULTILINE)
_BRACKET = re.compile(r"[\[\]]")


class Action(NamedTuple):
    """One action and its place; `error` says why it cannot run."""

    start: int
    stop: int
    name: str
    argument: str = ""
    error: str | None = None


class ReActParser:
    """`Thought: ...` and `Action: Search[query]`.

    Args:
        arguments: tool name to the name of its single argument.
        finish: the action that states the answer; None where the task has another end.
    """

    stop: tuple[str, ...] = ("Observation:",)
    in_templates = False

    def __init__(self, arguments: Mapping[str, str], finish: str | None = "finish") -> None:
        self.arguments = dict(arguments)
        self.finish = finish
        names = [*arguments, finish] if finish else arguments
        self._names = {name.lower(): name for name in names}

    def parse(self, text: str) -> list[ToolCall]:
        calls = []
        for _, _, name, argument, error in self._actions(_own(text)):
            if error is not None or name != self.finish:  # an unknown name is the environment's to refuse
                known = error is None and name in self.arguments
                calls.append(ToolCall(name, {self.arguments[name]: argument} if known else {}, error))
        return calls

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"Action: {self._write(name, arguments[self.arguments[name]])}"

    def render_answer(self, text: str) -> str:
        if self.finish is None:
            raise ConfigError("this ReActParser was made with finish=None, so that no action states an answer")
        return f"Action: {self._write(self.finish, text)}"

    def observe(self, text: str) -> str:
        return f"Observation: {text}"

    def tagged(self, text: str) -> str:
        """Return a turn with tags in place of ReAct's words, for rewards that look for tags.

        A thought becomes `<think>`, the answer `<answer>`, another action `<tool_call>`; text that is not read is left
        out.
        """
        text = _own(text)
        pieces, end = [], 0
        for action in self._actions(text):
            if action.error is None:
                tag = "answer" if action.name == self.finish else "tool_call"
                body = action.argument if tag == "answer" else f"{action.name}[{action.argument}]"
                pieces += [*_thoughts(text[end : action.start]), f"<{tag}>{body}</{tag}>"]
                end = action.stop
        return "\n".join(filter(None, [*pieces, *_thoughts(text[end:])]))

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        functions = [tool["function"] for tool in tools if tool["function"]["name"] in self.arguments]
        lines = [f"{self._write(one['name'], self.arguments[one['name']])}: {one['description']}" for one in functions]
        if self.finish is not None:
            lines.append(f"{self._write(self.finish, 'answer')}: State the answer. This ends the task.")
        listing = "\n".join(lines)
        return (
            "Write each turn as a thought and an action:\n"
            "Thought: what you know, and what to do next\nAction: one of the actions below\n"
            f'Then stop. The result follows as "Observation: ...". The actions are:\n{listing}'
        )

    def _write(self, name: str, argument: Any) -> str:
        return f"{name[:1].upper()}{name[1:]}[{' '.join(str(argument).splitlines())}]"

    def _actions(self, text: str) -> Iterator[Action]:
        for match in _START.finditer(text):
            written = match["name"] or ""
            name = self._names.get(written.lower())
            if name is None and not match["mark"]:
                continue  # running text
            if not written:
                yield Action(match.start(), match.end(), "", error="an action is written Name[argument]")
                continue
            line_end = text.find("\n", match.end())
            stop = _closing(text, match.end(), len(text) if line_end < 0 else line_end)
            if stop is None:
                error = f"{clipped(written)}[ is not closed by ]"
                yield Action(match.start(), match.end(), name or written, error=error)
            else:
                yield Action(match.start(), stop + 1, name or written, text[match.end() : stop].strip())
                if name is not None and name == self.finish:
                    return


def _own(text: str) -> str:
    """Return the policy's own text: everything before the first observation."""
    return _OBSERVATION.split(text, maxsplit=1)[0]


def _closing(text: str, start: int, stop: int) -> int | None:
    """Find the bracket that closes the one before `start`, else the last one that closes anything, else None."""
    depth, last = 1, None
    for bracket in _BRACKET.finditer(text, start, stop):
        if bracket[0] == "[":
            depth += 1
            continue
        depth, last = depth - 1, bracket.start()
        if not depth:
            break
    return last


def _thoughts(text: str) -> list[str]:
    """Tag the thoughts of a text that holds no action; text before the first of them stays as it is."""
    before, *thoughts = _THOUGHT.split(text)
    return [before.strip(), *(f"<think>{thought.strip()}</think>" for thought in thoughts)]
