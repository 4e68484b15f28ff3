"""How a policy states its command: a tool call, a tag, or the turn as it is; each becomes a call of one tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.formats import Parser, ToolCall
from agent_gym.formats.hermes import HermesParser
from agent_gym.formats.tags import TagParser
from agent_gym.tools import TextTool, ToolResult

ARGUMENT = "command"
_SAY = {
    "tool": "Give exactly one command per turn, by a call of env_step.",
    "tags": "Think, then give exactly one command per turn.",
    "text": "Answer with exactly one command, as a line of its own and nothing else.",
}
FORMS = tuple(_SAY)


class Act(TextTool):
    """The tool that gives a command to the world; `give` returns what happens and whether it was admissible."""

    def __init__(self, name: str, give: Callable[[str], tuple[str, bool]]) -> None:
        about = 'for example "go to cabinet 1"'
        super().__init__(name, "Give one command to the world and see what happens.", ARGUMENT, about)
        self._give = give

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        return [ToolResult(text, error=not admissible) for text, admissible in map(self._give, texts)]


class PlainParser:
    """Takes a turn, or what stands after its reasoning, as the command of the tool `name`."""

    stop: tuple[str, ...] = ()
    in_templates = False

    def __init__(self, name: str) -> None:
        self._name = name

    def parse(self, text: str) -> list[ToolCall]:
        command = text.rpartition("</think>")[2].strip()
        return [ToolCall(self._name, {ARGUMENT: command})] if command else []

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return str(arguments[ARGUMENT])

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""


def make_form(form: str) -> tuple[str, Parser]:
    """Return the name of the tool, and the parser that finds its calls.

    Raises:
        ConfigError: for an unknown form.
    """
    if form == "tool":
        return "env_step", HermesParser()
    if form == "tags":
        return "action", TagParser({"action": ARGUMENT})
    if form == "text":
        return "env_step", PlainParser("env_step")
    raise ConfigError(f"commands is {form!r}; it must be one of {', '.join(FORMS)}")


def prompt(form: str) -> str:
    """Return the system prompt."""
    return f"""You are in a house and have a task, which you solve by commands. The commands are:
look
inventory
go to (receptacle)
open (receptacle)
close (receptacle)
take (object) from (receptacle)
move (object) to (receptacle), in some houses: put (object) in/on (receptacle)
examine (something)
use (object)
heat (object) with (receptacle)
clean (object) with (receptacle)
cool (object) with (receptacle)
slice (object) with (object)
Name things with their numbers, as in "take mug 1 from shelf 2". You can hold one object at a time. A command that is \
not possible does nothing, but costs a turn. {_SAY[form]}"""
