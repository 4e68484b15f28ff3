"""Whether a chat template shows all of a conversation's opening: the check that nothing of it is dropped silently.

Templates that know no system message raise, or leave it out without a word, and with it the rules of the task and the
only description of the tools. So an opening is rendered once with a marker in each message and each tool, and every
marker has to come back. That depends on the roles and on the tools, not on the words, so that it is done once for each
shape of opening.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from agent_gym.call_format import schema_of
from agent_gym.errors import ConfigError
from agent_gym.images import Content, join
from agent_gym.messages import Message

_MOST = 1000  # shapes that are remembered
_NAME = "Qxtoolxq"


def prints_tools(render: Callable[..., str]) -> bool:
    """Whether a template describes tools, with a system message and without one."""
    asked: Message = {"role": "user", "content": "a"}
    if _NAME not in render([asked], tools=[schema_of(_NAME)]):
        return False
    try:
        return _NAME in render([{"role": "system", "content": "b"}, asked], tools=[schema_of(_NAME)])
    except ConfigError:  # it takes no system message
        return True


class Openings:
    """The shapes of opening that a chat template was seen to show.

    Args:
        render: from messages and the keyword argument `tools` to a text; raises `ConfigError`.
        prints_tools: whether the template describes the tools that it is given.
    """

    def __init__(self, render: Callable[..., str], prints_tools: bool) -> None:
        self._render, self._prints_tools = render, prints_tools
        self._folds: dict[Hashable, bool] = {}

    def fitted(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
        """Return the messages as the template shows all: the text of a dropped system message before the user's.

        Raises:
            ConfigError: if the template drops another message or a tool, or the user's message is missing.
        """
        shape = (*((one["role"], _kinds(one["content"]), "tool_calls" in one) for one in messages), len(tools))
        if shape not in self._folds:
            if len(self._folds) >= _MOST:
                self._folds.clear()
            self._folds[shape] = self._checked(messages, tools)
        return _folded(messages) if self._folds[shape] else list(messages)

    def _checked(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the system message has to be a part of the user's; `ConfigError` if anything else is dropped."""
        asked = any(one["role"] == "user" for one in messages)
        try:
            lost, does = self._lost(messages, tools), "prints no"
        except ConfigError:
            if not asked or all(one["role"] != "system" for one in messages):
                raise
            lost, does = ["system"], "refuses a"
        if "system" not in lost:
            self._refuse(lost)
            return False
        if not asked:
            raise ConfigError('the chat template drops the system message, and no user\'s is there: system_prompt=""')
        self._refuse(self._lost(_folded(messages), tools))
        told = f"the chat template {does} system message: its text stands before the text of the first user message"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
        return True

    def _refuse(self, lost: Sequence[str]) -> None:
        if lost:
            raise ConfigError(
                f"the chat template drops a part of the opening without an error: {', '.join(lost)}; take another "
                "template (tokenizer.chat_template), or give it no such part"
            )

    def _lost(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the roles and tools of which nothing comes back."""
        marks = [f"Qxpart{number}xQ" for number in range(len(messages))]
        said = [*zip(messages, marks, strict=True)]
        offered = [*zip(tools, [f"Qxtool{number}xQ" for number in range(len(tools))], strict=True)]
        schemas = [{**one, "function": {**one["function"], "name": name, "description": name}} for one, name in offered]
        marked = [{**one, "content": _replaced(one["content"], mark)} for one, mark in said]
        text = self._render(marked, tools=schemas or None, add_generation_prompt=True)
        # A message with images is checked by their number (images.py), with another cure.
        words = [(one, mark) for one, mark in said if one["content"] and not _shows_images(one["content"])]
        lost = [one["role"] for one, mark in words if mark not in text]
        if self._prints_tools:
            lost += [f"the tool {one['function']['name']}" for one, name in offered if name not in text]
        return lost


def _shows_images(content: Content) -> bool:
    return not isinstance(content, str) and any(part["type"] == "image" for part in content)


def _kinds(content: Content) -> Hashable:
    return bool(content) if isinstance(content, str) else tuple(part["type"] for part in content)


def _replaced(content: Content, mark: str) -> Content:
    """A content of the same kinds that says the mark; nothing, where nothing is said."""
    if isinstance(content, str):
        return mark if content else ""
    return [{**part, "text": mark} if part["type"] == "text" else part for part in content]


def _folded(messages: Sequence[Message]) -> list[Message]:
    """Put the texts of system messages before the text of the first user's message."""
    system = [one["content"] for one in messages if one["role"] == "system"]
    rest = [one for one in messages if one["role"] != "system"]
    first = next(number for number, one in enumerate(rest) if one["role"] == "user")
    rest[first] = {**rest[first], "content": join([*system, rest[first]["content"]], "\n\n")}
    return rest
