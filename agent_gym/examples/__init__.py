"""The old name of `agent_gym.speedrun`. It goes in the release after 0.3."""

import warnings

from agent_gym import speedrun

warnings.warn("agent_gym.examples is agent_gym.speedrun now", DeprecationWarning, stacklevel=2)
__path__ = speedrun.__path__  # agent_gym.examples.quickstart is that file
