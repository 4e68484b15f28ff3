"""A default limit of contexts that grows where the opening of an environment does not fit.

The default of 4,096 tokens suits the tokenizers of real models. A chat template that indents the schemas of tools
(Llama 3), or a tokenizer of few tokens, writes more: the opening of a task alone may fill the limit, and then each
episode fails. Another limit than the default never changes. Only the first task of an environment is measured: a
longer opening of a later task fails, and the error names the limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.gateway import ENV_ID
from agent_gym.rollout import Budget, EpisodeSpec, make_env


def opening_tokens(spec: EpisodeSpec, tokenizer: Any) -> int:
    """Return the tokens of an episode's opening; 0 where it cannot be had now, for which the episode has the reason.

    The environment is made, reset and closed. An agent's opening is not known before the agent asks, so that is 0, too.
    """
    if spec.env_id == ENV_ID:
        return 0
    with suppress(Exception), closing(make_env(spec.env_id, spec.env_kwargs, ChatRenderer.of(tokenizer))) as env:
        _, info = env.reset(seed=spec.seed, options=spec.options)
        return len(info["token_ids"])
    return 0


def grown(limit: int, opening: int, turn: int) -> int:
    """Return the limit, or, if an opening leaves no room in it for a turn, a multiple of it that has room.

    All numbers are tokens. It is the least multiple in which half of the limit is left for turns and answers. Of a turn
    that is long by itself an eighth of the limit counts.
    """
    if opening + min(turn, limit // 8) <= limit:
        return limit
    return math.ceil((opening + limit // 2) / limit) * limit


def with_room(budget: Budget, specs: Sequence[EpisodeSpec], tokenizer: Any) -> tuple[Budget, str]:
    """Return the budget with room for the opening of the first episode, and a line that says so; "" if it had room."""
    opening = opening_tokens(specs[0], tokenizer) if specs else 0
    limit = grown(budget.max_tokens, opening, budget.max_turn_tokens)
    if limit == budget.max_tokens:
        return budget, ""
    line = f"the opening of {specs[0].env_id} has {opening:,} tokens, so that a context may have {limit:,}"
    return dataclasses.replace(budget, max_tokens=limit), f"{line} instead of the default of {budget.max_tokens:,}"
