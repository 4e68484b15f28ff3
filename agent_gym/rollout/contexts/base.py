"""The context policy: what the model sees next.

A rollout keeps episodes as rows, and a row is a token sequence as the model saw it. A context policy is asked after
each of the world's answers and either lets the row grow (the usual case) or begins another one. Whatever it chooses,
each sampled token is trained once, in the row it was sampled in. In a later row it may be quoted, as part of a prompt
that nobody takes a gradient at.

The question is asked in two parts. `is_due` is a comparison of numbers and runs in the thread that drives the engine;
`rewrite` may render and tokenise, and runs in a worker. So a rollout that only appends pays nothing for the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.rollout.budget import Budget
from agent_gym.rollout.episode import Episode


@dataclass(frozen=True, slots=True)
class NewContext:
    """What the policy sees next, as a whole.

    Ids that agree with the present row up to its last sampled token extend that row, whoever made them: steps whose
    prompts extend each other cost one row and not two.

    Attributes:
        token_ids: (T,) the prompt of the next turn.
    """

    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class AskSummary:
    """What the policy sees next, when the next turn is a summary and not an action.

    Attributes:
        token_ids: the world's answer once more, now with a request to summarise; replaces what stands behind the last
            sampled token of the row.
        request: the words of the request.
    """

    token_ids: list[int]
    request: str


class Context(Protocol):
    """Decides what the policy sees next. It keeps no state: everything it may look at is in the episode."""

    @property
    def tokens(self) -> int | None:
        """A bound on each context below the budget's `max_tokens`, None for the budget's own."""
        ...

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """Whether the next turn may need another context than the row as it stands.

        Called after each step that did not end the episode, in the thread that drives the engine: compare numbers, and
        neither render nor tokenise.
        """
        ...

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext | AskSummary | None:
        """Say what the policy sees next; None goes on with the row as it stands.

        Called in a worker thread, with an episode of at least one step. It must not change the episode: its time may
        run out meanwhile, and it is then finished without waiting.
        """
        ...


@dataclass(frozen=True, slots=True)
class AppendContext:
    """Everything stays: one row per episode, and the engine's prefix cache is always warm."""

    tokens: None = None

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """Never."""
        return False

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> None:
        """Change nothing."""


def tighten(budget: Budget, context: Context) -> Budget:
    """Return the budget with the bound of a context policy, so that there is one limit and not two.

    Raises:
        ConfigError: if the policy wants longer contexts than the budget allows.
    """
    if context.tokens is None:
        return budget
    if context.tokens > budget.max_tokens:
        raise ConfigError(
            f"the context policy asks for {context.tokens} tokens, but max_tokens is {budget.max_tokens}: raise "
            "max_tokens or lower the policy's number"
        )
    return dataclasses.replace(budget, max_tokens=context.tokens)
