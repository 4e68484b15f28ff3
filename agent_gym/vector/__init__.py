"""Many environments as one: what `gymnasium.make_vec` makes of the ids registered here.

    envs = gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=64)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminated, truncated, infos = envs.step(["<answer>1</answer>"] * 64)

`TextVectorEnv` is Gymnasium's `SyncVectorEnv` for text: the same results in less time, threads for environments that
wait for a server, and failures that do not cost the other environments their step.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import gymnasium

from agent_gym.vector.env import SlotFailure, TextVectorEnv

__all__ = ["SlotFailure", "TextVectorEnv"]


def __getattr__(name: str) -> Any:
    """Find `make_vec`'s entry points: `"agent_gym.vector:<id>"` makes copies of that id.

    An entry point is not told which id it is for, so the id is the name under which it is looked up. A callable that
    knows its id would do the same, but a spec that holds one cannot be written as JSON.
    """
    if name not in gymnasium.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and no environment has that id")
    return partial(_make, name)


def _make(env_id: str, num_envs: int, autoreset_mode: Any = None, workers: int = 0, **kwargs: Any) -> TextVectorEnv:
    vector_kwargs = {} if autoreset_mode is None else {"autoreset_mode": autoreset_mode}
    # `TextEnv` refuses a step before a reset by itself, and what Gymnasium's checker finds in the first copy it would
    # find in each: the other copies go without these two wrappers.
    plain = dataclasses.replace(gymnasium.spec(env_id), order_enforce=False, disable_env_checker=True)
    env_fns = [partial(gymnasium.make, plain if slot else env_id, **kwargs) for slot in range(num_envs)]
    return TextVectorEnv(env_fns, workers=workers, **vector_kwargs)
