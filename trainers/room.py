"""A default `max_episode_tokens` grows where the opening of an environment does not fit it."""

from __future__ import annotations

import warnings
from typing import Any

from agent_gym.evaluate.room import with_room
from agent_gym.trainers.schedule import group_specs
from agent_gym.trainers.settings import AgentSettings


def let_openings_fit(trainer: Any) -> None:
    """Set `args.max_episode_tokens` to a multiple of it, if it is the default and no turn fits after an opening.

    The first task of each environment in the training data is looked at. A `vllm_max_model_length` bounds the new
    limit. It is said in a warning, as the loss `constant` and the memory of an engine depend on the limit.
    """
    args = trainer.args
    if args.max_episode_tokens != AgentSettings.max_episode_tokens or trainer.train_dataset is None:
        return
    rows = trainer.train_dataset
    names = zip(rows["env_id"], rows["env_kwargs"], strict=True)
    first: dict[tuple[str, str], int] = {}
    for place, name in enumerate(names):
        first.setdefault(name, place)
    for place in first.values():
        specs = group_specs([rows[place]], first=0, group_size=1, sampling_seed=0)
        budget, line = with_room(args.budget, specs, trainer.renderer)
        limit = min(budget.max_tokens, args.vllm_max_model_length or budget.max_tokens)
        if line and limit > args.max_episode_tokens:
            args.max_episode_tokens = limit
            warnings.warn(f"{line}; max_episode_tokens sets another", RuntimeWarning, stacklevel=2)
