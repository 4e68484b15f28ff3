"""What the speedruns run: one `Preset` per task and machine, every number of a run in one place."""

from agent_gym.errors import ConfigError
from agent_gym.examples.presets.alfworld import ALFWORLD
from agent_gym.examples.presets.gsm8k import CPU, GPU
from agent_gym.examples.presets.hotpotqa import HOTPOTQA
from agent_gym.examples.presets.maze import MAZE
from agent_gym.examples.presets.own import own_preset
from agent_gym.examples.presets.preset import Imitation, Preset
from agent_gym.examples.presets.retool import RETOOL
from agent_gym.examples.presets.webshop import WEBSHOP

PRESETS = {
    "cpu": CPU,
    "gpu": GPU,
    "alfworld": ALFWORLD,
    "hotpotqa": HOTPOTQA,
    "maze": MAZE,
    "retool": RETOOL,
    "webshop": WEBSHOP,
}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]


__all__ = [
    "ALFWORLD",
    "CPU",
    "GPU",
    "HOTPOTQA",
    "MAZE",
    "PRESETS",
    "RETOOL",
    "WEBSHOP",
    "Imitation",
    "Preset",
    "get_preset",
    "own_preset",
]
