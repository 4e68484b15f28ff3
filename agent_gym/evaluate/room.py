"""A default limit of contexts that grows where the opening of an environment does not fit.

The default of 4,096 tokens suits the tokenizers of real models. A chat template that indents the schemas of tools
(Llama 3), or a tokenizer of few tokens, writes more: the opening of a task alone may fill the limit, and then each
episode fails. A limit that the user sets never changes. Up to 16 tasks of an environment are measured, spread evenly
over its tasks: a longer opening of another task fails, and the error names the limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.gateway import ENV_ID
from agent_gym.rollout import Budget, Episode, EpisodeSpec, make_env

MEASURED = 16
"""The most tasks of an environment whose openings are measured."""


def spread(count: int) -> list[int]:
    """Return up to `MEASURED` numbers below a count, the first and the last among them, at even distances."""
    most = min(count, MEASURED)
    return sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})


def opening_tokens(specs: Sequence[EpisodeSpec], tokenizer: Any) -> int:
    """Return the tokens of the longest opening of episodes of one environment.

    It is 0 where an opening cannot be had now, for which the episode has the reason. The environment is made once,
    reset for each episode, and closed. An agent's opening is not known before the agent asks, so that is 0, too.
    """
    longest = 0
    if specs[0].env_id != ENV_ID:
        with (
            suppress(Exception),
            closing(make_env(specs[0].env_id, specs[0].env_kwargs, ChatRenderer.of(tokenizer))) as env,
        ):
            for spec in specs:
                _, info = env.reset(seed=spec.seed, options=spec.options)
                longest = max(longest, len(info["token_ids"]))
    return longest


def grown(limit: int, opening: int, turn: int) -> int:
    """Return the limit, or, if an opening leaves no room in it for a turn, a multiple of it that has room.

    All numbers are tokens. It is the least multiple in which half of the limit is left for turns and answers. Of a turn
    that is long by itself an eighth of the limit counts.
    """
    if opening + min(turn, limit // 8) <= limit:
        return limit
    return math.ceil((opening + limit // 2) / limit) * limit


def with_room(budget: Budget, specs: Sequence[EpisodeSpec], tokenizer: Any) -> tuple[Budget, str]:
    """Return the budget with room for the openings of episodes of one environment, and a line if it had none, else "".

    The openings of `MEASURED` of the episodes are measured.
    """
    sample = [specs[place] for place in spread(len(specs))]
    opening = opening_tokens(sample, tokenizer) if sample else 0
    limit = grown(budget.max_tokens, opening, budget.max_turn_tokens)
    if limit == budget.max_tokens:
        return budget, ""
    which = "opening" if len(sample) == 1 else f"longest of {len(sample)} openings"
    line = f"the {which} of {specs[0].env_id} has {opening:,} tokens, so that a context may have {limit:,}"
    return dataclasses.replace(budget, max_tokens=limit), f"{line} instead of the default of {budget.max_tokens:,}"


def cut_line(episodes: Sequence[Episode], budget: Budget) -> str:
    """Return a line that counts the turns and episodes which a limit of tokens cut, "" if there are none."""
    most, whole = budget.max_turn_tokens, budget.max_tokens
    cut = [one for e in episodes for one in e.steps if one.finish_reason == "length" and one.stop - one.start >= most]
    ended = [one for one in episodes if one.truncation == "tokens"]
    turns = sum(len(one.steps) for one in episodes)
    found = [f"{len(cut):,} of {turns:,} turns were cut at {most:,} tokens (--max_turn_tokens)"] if cut else []
    found += [f"{len(ended):,} of {len(episodes):,} episodes ended at {whole:,} (--max_tokens)"] if ended else []
    return f"{episodes[0].spec.env_id}: {', '.join(found)}" if found else ""
