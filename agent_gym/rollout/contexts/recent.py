"""Contexts that forget the oldest turns: `window` counts turns, `budget` counts tokens.

Both are made of ids that stand in the rows already. The opening ends with the generation prompt, and so does the
world's answer to each turn, so that the opening followed by any run of later turns is a conversation without a seam.
Nothing is decoded and encoded again, and what the policy sampled is quoted bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.rollout.budget import Budget
from agent_gym.rollout.contexts.base import NewContext
from agent_gym.rollout.episode import Episode


@dataclass(frozen=True, slots=True)
class WindowContext:
    """The opening and the last few turns. Up to that many turns cost one row, and then each turn costs one.

    Attributes:
        turns: how many turns (an action and its answer) the policy sees at most.
    """

    turns: int
    tokens: None = None

    def __post_init__(self) -> None:
        """Refuse a window in which the policy would not see the answer to what it just did."""
        if self.turns < 1:
            raise ConfigError(f"a window of {self.turns} turns shows nothing; it must be at least 1")

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """As soon as there are more turns than the window shows."""
        return len(episode.steps) > self.turns

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        """Put the last turns behind the opening."""
        n = len(episode.steps)
        return NewContext(join_turns(episode, range(n - self.turns, n)))


@dataclass(frozen=True, slots=True)
class BudgetContext:
    """Appends until a turn might not fit any more, then forgets the oldest turns.

    It forgets down to half of the budget and not just as far as it must: a rewritten context is a row of its own, which
    the trainer has to read from its start and the engine cannot take from its cache, so it should serve several turns.

    Attributes:
        tokens: bound on the context, sampled turn included; None takes the budget's `max_tokens`.
    """

    tokens: int | None = None

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """As soon as there is no room for a turn of full length, or for half a budget if that is less."""
        room = budget.max_tokens - len(episode.rows[-1].token_ids)
        return room < min(budget.max_turn_tokens, budget.max_tokens // 2)

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        """Keep the opening, the last turn, and as many turns before it as fit into half of the budget."""
        first = len(episode.steps) - 1
        length = opening_length(episode) + turn_length(episode, first)
        while first and (length := length + turn_length(episode, first - 1)) <= budget.max_tokens // 2:
            first -= 1
        return NewContext(join_turns(episode, range(first, len(episode.steps))))


def opening_length(episode: Episode) -> int:
    """Number of tokens before the policy's first turn."""
    return episode.steps[0].start


def turn_length(episode: Episode, number: int) -> int:
    """Number of tokens of one turn: what was sampled and the world's answer with its template."""
    start, stop = _place(episode, number)
    return stop - start


def join_turns(episode: Episode, numbers: Sequence[int]) -> list[int]:
    """Concatenate the opening and some turns, as ids."""
    ids = episode.rows[0].token_ids[: opening_length(episode)]
    for number in numbers:
        start, stop = _place(episode, number)
        ids += episode.rows[episode.steps[number].row].token_ids[start:stop]
    return ids


def _place(episode: Episode, number: int) -> tuple[int, int]:
    """Find where a turn stands in the row it was sampled in."""
    step = episode.steps[number]
    following = episode.steps[number + 1] if number + 1 < len(episode.steps) else None
    if following is not None and following.row == step.row:
        return step.start, following.start
    return step.start, len(episode.rows[step.row].token_ids)
