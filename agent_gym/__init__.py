"""Environments for LLM agents that speak text and report who wrote which token.

    import gymnasium as gym, agent_gym
    env = gym.make("AgentR1/GSM8K-v0")

Importing this package registers the ids with Gymnasium and imports nothing heavy: no torch, no transformers.
"""

from agent_gym.env import Reply, Sampled, TextEnv
from agent_gym.errors import AgentGymError, ConfigError, EnvFailure, RolloutError
from agent_gym.registry import EnvEntry, list_envs, register, register_all
from agent_gym.spaces import Text
from agent_gym.tool_env import QuestionEnv, ToolEnv
from agent_gym.tools import Tool, ToolResult, tool
from agent_gym.transcript import Span, Transcript, action_mask

__version__ = "0.1.0"
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
    "register",
    "register_all",
    "tool",
]

register_all()
