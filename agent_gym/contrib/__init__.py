"""Bridges to other libraries: TRL's `environment_factory`, GEM, OpenEnv and verifiers in both directions, MCP's tools.

`to_*` lends an environment of agent_gym to the other library; `From*` is an environment of the other library as a
`TextEnv`. Each module imports its library when it is used. What the others have no place for is lost on the way out:
GEM and OpenEnv know one text and no token ids, TRL no reward of a step and no end that the environment declares.
"""

from __future__ import annotations

from typing import Any

from agent_gym.chat import Message
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.images import images_of
from agent_gym.tool_env import ToolEnv

# Tasks of libraries whose environments draw them from the seed: a task is a seed, a split a range of them.
SEED_SPLITS = {"train": range(100_000), "validation": range(100_000, 101_000), "test": range(101_000, 102_000)}


def opening_messages(env: TextEnv, info: dict[str, Any]) -> list[Message]:
    """Return the messages of `reset`, with the tools described where a chat template would have shown them.

    `ConfigError` if there are images, for which those libraries have no place here.
    """
    if images_of(info["messages"]):
        raise ConfigError(f"{type(env).__name__} shows images, and adapters hand over text only")
    if not (isinstance(env, ToolEnv) and env.tools and env.parser.in_templates):
        return info["messages"]
    *system, question = info["messages"]
    texts = [*(message["content"] for message in system), env.parser.instructions(env.tool_schemas)]
    return [{"role": "system", "content": "\n\n".join(texts)}, question]


def opening_text(env: TextEnv, info: dict[str, Any]) -> str:
    """Return the same as one text."""
    return "\n\n".join(message["content"] for message in opening_messages(env, info))
