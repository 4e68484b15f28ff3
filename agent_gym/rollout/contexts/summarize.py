"""The policy condenses its own context, and the summary is an action like any other.

When the context is nearly full, the world's last answer gets a request appended, and the next turn is a summary: a step
of kind "summary", sampled and trained like any other, with a reward of 0. Its credit is what the episode earns later,
which is how a policy learns what is worth remembering. Then a new row begins: the opening, with the summary and the
world's last answer added to the user's message, because a user is what every template has.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.chat import ChatRenderer, Message
from agent_gym.rollout.budget import Budget
from agent_gym.rollout.contexts.base import AskSummary, NewContext
from agent_gym.rollout.episode import Episode

REQUEST = (
    "Your context is nearly full. Do not act now, but summarise your work so far: what you did, what you learned, and "
    "what to do next. The task and the last answer stay; your summary replaces the rest."
)
SUMMARY_HEADING = "Your summary of your work so far:"
OBSERVATION_HEADING = "The last answer that you received:"
_FRAME = 64
"""More tokens than any template puts around a message."""


@dataclass(frozen=True, slots=True)
class SummaryContext:
    """Appends until the context is nearly full, then lets the policy replace it by its own summary.

    Attributes:
        tokens: bound on the context, sampled turn included; None takes the budget's `max_tokens`.
    """

    tokens: int | None = None

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """After a summary, and as soon as an action and a summary after it might not fit any more."""
        if episode.steps[-1].kind == "summary":
            return True
        # No token of the request is shorter than a byte, so this asks too early rather than too late; `_ask` knows the
        # tokens and may still wait.
        room = budget.max_tokens - len(episode.rows[-1].token_ids)
        return room < 2 * _turn_room(budget) + len(REQUEST) + _FRAME

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext | AskSummary | None:
        """Ask for a summary, or use the one that was just written.

        An action follows each summary before the next may be asked for: whatever follows a `NewContext` is one.
        """
        if episode.steps[-1].kind == "summary":
            assert episode.env is not None
            return NewContext(renderer.prompt(_condensed(episode), episode.env.get_wrapper_attr("template_tools")))
        return _ask(episode, renderer, budget)


def _turn_room(budget: Budget) -> int:
    # A quarter, so that there is half a context to fill between two summaries, however long a turn may be.
    return min(budget.max_turn_tokens, budget.max_tokens // 4)


def _ask(episode: Episode, renderer: ChatRenderer, budget: Budget) -> AskSummary | None:
    """Ask for a summary if it must be now; None if it can wait, or if there is no room for one any more."""
    assert episode.env is not None
    step, row = episode.steps[-1], episode.rows[-1]
    sampled = row.token_ids[step.start : step.stop]
    answers = episode.last_answers or [{"role": renderer.observation_role, "content": ""}]
    inline = episode.env.get_wrapper_attr("inline")

    last = answers[-1]
    request: Message = {**last, "content": REQUEST}
    # Rendered as if the next turn were cut off and its end had to be written, too: the longest that it can be.
    reserve = 2 * _turn_room(budget) + len(renderer.reply([], [request]))
    if len(row.token_ids) + reserve <= budget.max_tokens:
        # Room for an action, and then for a summary, however long the world's answer to the action may be.
        return None

    def render(messages: list[Message]) -> list[int]:
        if inline:
            return renderer.inline_reply(sampled, "\n".join(message["content"] for message in messages))
        return renderer.reply(sampled, messages)

    ids = render([*answers[:-1], {**last, "content": "\n\n".join(filter(None, [last["content"], REQUEST]))}])
    if step.stop + len(ids) + _turn_room(budget) > budget.max_tokens:
        # No summary fits behind this answer, so it is left out here. It will stand in the new context anyway.
        ids = render([request])
    return AskSummary(ids, REQUEST) if step.stop + len(ids) < budget.max_tokens else None


def _condensed(episode: Episode) -> list[Message]:
    """The opening with the summary and the world's last answer."""
    # Thoughts helped to write the summary and are no part of it; they would fill the context that it was to empty.
    summary = episode.steps[-1].action.rpartition("</think>")[2].strip()
    observation = episode.steps[-2].observation
    *before, question = episode.opening
    parts = [question["content"]]
    parts += [f"{SUMMARY_HEADING}\n{summary}"] if summary else []
    parts += [f"{OBSERVATION_HEADING}\n{observation}"] if observation else []
    return [*before, {**question, "content": "\n\n".join(parts)}]
