"""A default `max_episode_tokens` grows where the opening of an environment does not fit it."""

from __future__ import annotations

import warnings
from typing import Any

from agent_gym.evaluate.room import spread, with_room
from agent_gym.trainers.schedule import group_specs
from agent_gym.trainers.settings import Default


def attach(trainer: Any) -> None:
    """Set `args.max_episode_tokens` to a multiple of it, if it is the default and no turn fits after an opening.

    Openings of some tasks of each environment in the training data are measured (evaluate/room.py). A
    `vllm_max_model_length` bounds the new limit. It is said in a warning, as the loss `constant` and the memory of an
    engine depend on the limit.
    """
    args = trainer.args
    if not isinstance(args.max_episode_tokens, Default) or trainer.train_dataset is None:
        return
    rows = trainer.train_dataset
    places: dict[tuple[str, str], list[int]] = {}
    for place, name in enumerate(zip(rows["env_id"], rows["env_kwargs"], strict=True)):
        places.setdefault(name, []).append(place)
    for some in places.values():
        chosen = [rows[some[place]] for place in spread(len(some))]
        specs = group_specs(chosen, first=0, group_size=1, sampling_seed=0)
        budget, line = with_room(args.budget, specs, trainer.renderer)
        limit = min(budget.max_tokens, args.vllm_max_model_length or budget.max_tokens)
        if line and limit > args.max_episode_tokens:
            args.max_episode_tokens = limit
            trainer.rollout_tokens = args.rollout_tokens  # which the new limit has changed
            warnings.warn(f"{line}; max_episode_tokens sets another", RuntimeWarning, stacklevel=2)
