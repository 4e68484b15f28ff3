"""The speedrun of an environment that nobody tuned it for: `agent-gym speedrun --env ID`.

It asks little: a tiny model, a short imitation that leaves it far from the expert, and as much RL as the calculator's
speedrun has. A task of few words, such as the one that `agent-gym new env` writes, is learned so; a task whose names
have to be copied wants a longer imitation (see hotpotqa.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.examples.presets.preset import ADAM, TINY_GRPO, Imitation, Preset
from agent_gym.rollout import make_env


def own_preset(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Preset:
    """Make the preset of any environment that has an expert.

    Args:
        env_id: the environment.
        env_kwargs: its arguments; the system prompt is left out unless they have one, since a tiny model has no use for
            prose.

    Raises:
        ConfigError: for an unknown id, arguments it does not take, or an environment without a split "train".
    """
    settings = {"system_prompt": "", **(env_kwargs or {})}
    env = make_env(env_id, settings)
    sizes = {split: len(tasks) for split, tasks in env.get_wrapper_attr("tasks").items()}
    env.close()
    if "train" not in sizes:
        raise ConfigError(f"{env_id} has no split 'train' to learn from; it has: {', '.join(sizes)}")
    dev, test = (next((name for name in names if name in sizes), "train") for names in _HELD_OUT)
    return Preset(
        env_id=env_id,
        env_kwargs=settings,
        model=None,
        imitation=(
            Imitation(
                name="expert imitation",
                episodes=min(3000, sizes["train"]),
                styles={"default": 1.0},
                steps=160,
                batch=24,
                settings={"learning_rate": 2e-3, "lr_scheduler_type": "cosine", "warmup_steps": 10, **ADAM},
            ),
        ),
        train_tasks=min(4000, sizes["train"]),
        dev_split=dev,
        dev_tasks=min(200, sizes[dev]),
        test_split=test,
        test_tasks=min(500, sizes[test]),
        grpo=TINY_GRPO,
    )


_HELD_OUT = (("validation", "dev", "valid", "test"), ("test", "validation", "dev", "valid"))
"""Names of the splits for the learning curve and for the table, the best one first."""
