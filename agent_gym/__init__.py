"""Environments for LLM agents that speak text and report who wrote which token.

    import agent_gym
    env = agent_gym.make("AgentR1/GSM8K-v0")  # or gymnasium.make, with Gymnasium's wrappers

Importing this package registers the ids with Gymnasium and imports nothing heavy: no torch, no transformers.
"""

import _signal as signal  # type: ignore[import-not-found]  # built in; signal.py takes milliseconds, and Ctrl-C may come
import os
import sys

_COMMAND = os.path.basename((sys.argv or [""])[0]) == "agent-gym" or sys.orig_argv[1:3] == ["-m", "agent_gym"]
if _COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports of the command line is one line. cli/main.py restores the handler. A KeyboardInterrupt
    # would not do: packages with native parts turn it into other errors.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"agent-gym: interrupted\n"), os._exit(130)))
from pathlib import Path  # noqa: E402 - it takes milliseconds, in which Ctrl-C may come

if __name__ != "agent_gym":
    raise ImportError("this folder is the package 'agent_gym' and no part of it")
# In a checkout the rooms (envs, trainers, registry) are next to this package: agent_gym.envs.gsm8k.env is
# envs/gsm8k/env.py, by that path. An installed agent_gym has them inside.
_ROOT = Path(__file__).parents[1]
if (_ROOT / "registry" / "names.py").is_file():
    __path__.insert(0, str(_ROOT))
    for _name in ("benchmarks", "docs", "notebooks", "setup", "tests"):  # folders there that are not rooms
        sys.modules[f"agent_gym.{_name}"] = None  # type: ignore[assignment]

from typing import TYPE_CHECKING, Any

from agent_gym.errors import AgentGymError, ConfigError, EnvFailure, RolloutError
from agent_gym.registry import EnvEntry, list_envs, make, register, register_all
from agent_gym.renamed import RenamedModules

if TYPE_CHECKING:
    from agent_gym.env import Reply, Sampled, TextEnv
    from agent_gym.spaces import Text
    from agent_gym.tool_env import QuestionEnv, ToolEnv
    from agent_gym.tools import Tool, ToolResult, tool
    from agent_gym.transcript import Span, Transcript, action_mask

__version__ = "0.2.0"
__all__ = [
    "AgentGymError",
    "ConfigError",
    "EnvEntry",
    "EnvFailure",
    "QuestionEnv",
    "Reply",
    "RolloutError",
    "Sampled",
    "Span",
    "Text",
    "TextEnv",
    "Tool",
    "ToolEnv",
    "ToolResult",
    "Transcript",
    "action_mask",
    "list_envs",
    "make",
    "register",
    "register_all",
    "tool",
]

_LATE = {  # a command that only prints its help needs none of them
    "env": ("Reply", "Sampled", "TextEnv"),
    "spaces": ("Text",),
    "tool_env": ("QuestionEnv", "ToolEnv"),
    "tools": ("Tool", "ToolResult", "tool"),
    "transcript": ("Span", "Transcript", "action_mask"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _LATE.items():
        if name in names:
            globals()[name] = found = getattr(import_module(f"agent_gym.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.meta_path.insert(0, RenamedModules())  # before the finder that takes the folder examples/ for agent_gym.examples
register_all()
