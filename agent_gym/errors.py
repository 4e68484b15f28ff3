"""The errors of agent_gym, by whose fault they are.

The policy's mistakes (bad JSON, an unknown tool, a wrong answer) are not here: they are observations. What is
here is either the user's (`ConfigError`) or the machinery's (`EnvFailure`, `RolloutError`), and the difference
matters: a failed machine must never look like a wrong answer, because a reward of 0 teaches and a crash must not.
"""

from __future__ import annotations


class AgentGymError(Exception):
    """Base of every error that agent_gym raises on purpose."""


class ConfigError(AgentGymError, ValueError):
    """A setting or argument that cannot work. The message names the value, what is allowed and the cure."""


class EnvFailure(AgentGymError, RuntimeError):
    """The world behind an environment broke (a dead sandbox, a missing index).

    The episode it happens in is marked failed, its reward is NaN, and it is left out of the update.
    """


class RolloutError(AgentGymError, RuntimeError):
    """A whole rollout cannot go on, for example because every one of its episodes failed."""
