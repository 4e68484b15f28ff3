"""Bridges to other libraries: TRL's `environment_factory`, GEM and OpenEnv in both directions, and MCP's tools.

`to_*` lends an environment of agent_gym to the other library; `From*` is an environment of the other library as a
`TextEnv`. Each module imports its library when it is used. What the others have no place for is lost on the way out:
GEM and OpenEnv know one text and no token ids, TRL no reward of a step and no end that the environment declares.
"""

from __future__ import annotations

from typing import Any

from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.images import images_of
from agent_gym.tool_env import ToolEnv

# Tasks of libraries whose environments draw them from the seed: a task is a seed, a split a range of them.
SEED_SPLITS = {"train": range(100_000), "validation": range(100_000, 101_000), "test": range(101_000, 102_000)}


def opening_text(env: TextEnv, info: dict[str, Any]) -> str:
    """Return the messages of `reset` as one text, with the tools described where a chat template would have shown them.

    `ConfigError` if there are images, for which those libraries have no place here.
    """
    if images_of(info["messages"]):
        raise ConfigError(f"{type(env).__name__} shows images, and adapters hand over text only")
    texts = [message["content"] for message in info["messages"]]
    if isinstance(env, ToolEnv) and env.tools and env.parser.in_templates:
        texts.insert(-1, env.parser.instructions(env.tool_schemas))
    return "\n\n".join(texts)
