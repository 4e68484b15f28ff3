"""Context policies: `append`, `window:K`, `budget:TOKENS`, `summarize:TOKENS`, `rebuild`, `template`.

A context policy decides which tokens the model reads in its next turn. Its interface, `append` and `rebuild` are in
episode_run.py.

`window` and `budget` are made of ids that are in the rows already. The opening ends with the generation prompt, and so
does the answer to each turn, so that the opening followed by any run of later turns is a conversation without a seam.
`rebuild` and `template` decode sampled tokens and encode them again: the result is only a prompt, and sampled tokens
are trained in the row they were sampled in
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from agent_gym.chat import ChatRenderer, Message
from agent_gym.errors import ConfigError
from agent_gym.rewards import after_thought
from agent_gym.rollout.episode_run import (
    AppendContext,
    AskSummary,
    Budget,
    Context,
    NewContext,
    RebuildContext,
    env_attribute,
)
from agent_gym.rollout.live_episode import LiveEpisode

REQUEST = (
    "Your context is nearly full. Do not act now, but summarise your work so far: what you did, what you learned, and "
    "what to do next. The task and the last answer stay; your summary replaces the rest."
)
SUMMARY_HEADING = "Your summary of your work so far:"
OBSERVATION_HEADING = "The last answer that you received:"
_FRAME = 64
"""More tokens than any template puts around a message."""


@dataclass(frozen=True, slots=True)
class WindowContext(Context):
    """The opening and at most so many turns (an action and its answer). Later turns cost a row each."""

    turns: int

    def is_due(self, episode: LiveEpisode, budget: Budget) -> bool:
        return len(episode.steps) > self.turns

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        return NewContext(_from_turn(episode, len(episode.steps) - self.turns))


@dataclass(frozen=True, slots=True)
class BudgetContext(Context):
    """Appends until a turn might not fit any more, then forgets the oldest turns, down to half of the budget.

    A rewritten context is a separate row, which is not in the engine's cache, so it should serve several turns.
    `tokens` bounds the context, sampled turn included; None takes the budget's `max_tokens`.
    """

    tokens: int | None = None

    def is_due(self, episode: LiveEpisode, budget: Budget) -> bool:
        room = budget.max_tokens - len(episode.row.token_ids)
        return room < min(budget.max_turn_tokens, budget.max_tokens // 2)

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        first = len(episode.steps) - 1
        length = episode.steps[0].start + len(_turn(episode, first))
        while first and (length := length + len(_turn(episode, first - 1))) <= budget.max_tokens // 2:
            first -= 1
        return NewContext(_from_turn(episode, first))


def _from_turn(episode: LiveEpisode, first: int) -> list[int]:
    """The ids of the opening, and of the turns from this one on."""
    opening = episode.rows[0].token_ids[: episode.steps[0].start]
    return opening + [i for number in range(first, len(episode.steps)) for i in _turn(episode, number)]


def _turn(episode: LiveEpisode, number: int) -> list[int]:
    # The sampled tokens, and the world's answer with its template.
    step, following = episode.steps[number], episode.steps[number + 1 : number + 2]
    stop = following[0].start if following and following[0].row == step.row else None
    return episode.rows[step.row].token_ids[step.start : stop]


@dataclass(frozen=True, slots=True)
class TemplateContext(Context):
    """The chat template renders the whole conversation each turn, as a chat server does.

    Templates of thinking models drop the thoughts of earlier turns. Where that happens the row ends, as sampled, and
    another begins without the thoughts; where the template changes nothing the row grows. `ConfigError` if the world
    answers inside the policy's turn: such a turn has no rendering as messages.
    """

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        if env_attribute(episode, "inline"):
            raise ConfigError(
                f"context 'template' renders messages, but {episode.spec.env_id} answers inside the policy's own turn; "
                "use append, window, budget, summarize or rebuild"
            )
        seen = episode.row.token_ids[: episode.steps[-1].stop]
        return NewContext(renderer.conversation(episode.messages, env_attribute(episode, "template_tools"), seen=seen))


@dataclass(frozen=True, slots=True)
class SummaryContext(Context):
    """Appends until the context is nearly full, then lets the policy replace it by its own summary.

    The world's last answer gets a request appended, and the next turn is a step of kind "summary", sampled and trained
    like any other, with a reward of 0. Then a new row begins: the opening, with the summary and the last answer added
    to the user's message, because every template has a user. `tokens` is as in `BudgetContext`.
    """

    tokens: int | None = None

    def is_due(self, episode: LiveEpisode, budget: Budget) -> bool:
        if episode.steps[-1].kind == "summary":
            return True
        # No token of the request is shorter than a byte, so this is due too early rather than too late; `_ask` knows
        # the tokens and may still wait.
        room = budget.max_tokens - len(episode.row.token_ids)
        return room < 2 * _turn_room(budget) + len(REQUEST) + _FRAME

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext | AskSummary | None:
        if episode.steps[-1].kind != "summary":
            return _ask(episode, renderer, budget)
        # Thoughts helped to write the summary and are not a part of it; they would fill the context again.
        summary = after_thought(episode.steps[-1].action).strip()
        observation = episode.steps[-2].observation
        *before, question = episode.initial_messages
        parts = [question["content"]]
        parts += [f"{SUMMARY_HEADING}\n{summary}"] if summary else []
        parts += [f"{OBSERVATION_HEADING}\n{observation}"] if observation else []
        messages = [*before, {**question, "content": "\n\n".join(parts)}]
        return NewContext(renderer.prompt(messages, env_attribute(episode, "template_tools")))


def _turn_room(budget: Budget) -> int:
    # A quarter, so that there is half a context to fill between two summaries, however long a turn may be.
    return min(budget.max_turn_tokens, budget.max_tokens // 4)


def _ask(episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> AskSummary | None:
    """Ask for a summary if it must be now; None if it can wait, or if no room is left for one."""
    step, row = episode.steps[-1], episode.row
    sampled = row.token_ids[step.start : step.stop]
    behind = list(takewhile(lambda message: message["role"] != "assistant", reversed(episode.messages)))[::-1]
    answers = behind or [{"role": renderer.observation_role, "content": ""}]
    past = episode.messages[len(episode.initial_messages) : len(episode.messages) - len(behind) - 1]
    last = answers[-1]
    request: Message = {**last, "content": REQUEST}
    # Rendered as if the next turn were cut off and its end had to be written, too: the longest that it can be.
    reserve = 2 * _turn_room(budget) + len(renderer.reply([], [request]))
    if len(row.token_ids) + reserve <= budget.max_tokens:
        # Room for an action, and then for a summary, however long the world's answer to the action may be.
        return None

    def render(messages: list[Message]) -> list[int]:
        if env_attribute(episode, "inline"):
            return renderer.inline_reply(sampled, "\n".join(message["content"] for message in messages))
        return renderer.reply(sampled, messages, tools=env_attribute(episode, "template_tools"), past=past)

    ids = render([*answers[:-1], {**last, "content": "\n\n".join(filter(None, [last["content"], REQUEST]))}])
    if step.stop + len(ids) + _turn_room(budget) > budget.max_tokens:
        # No summary fits after this answer, so the answer is left out here. The new context has it anyway.
        ids = render([request])
    return AskSummary(ids, REQUEST) if step.stop + len(ids) < budget.max_tokens else None


CONTEXTS: dict[str, Callable[..., Context]] = {
    "append": AppendContext,
    "window:TURNS": WindowContext,
    "budget": BudgetContext,
    "budget:TOKENS": BudgetContext,
    "summarize": SummaryContext,
    "summarize:TOKENS": SummaryContext,
    "rebuild": RebuildContext,
    "template": TemplateContext,
}
"""The spellings of context policies; capitals are to be replaced by a number."""


def make_context(context: str | Context) -> Context:
    """Make a context policy from its name; a policy is returned as it is. `ConfigError` for an unknown name."""
    if not isinstance(context, str):
        return context
    name, _, number = context.partition(":")
    for form, make in CONTEXTS.items():
        known, _, parameter = form.partition(":")
        if known != name or bool(parameter) != (":" in context):
            continue
        if not parameter:
            return make()
        if number.isascii() and number.isdigit() and int(number) > 0:
            return make(int(number))
    raise ConfigError(
        f"context is {context!r}; known: {', '.join(CONTEXTS)}, where capitals stand for a number above 0"
    )


def tighten(budget: Budget, context: Context, longest: int | None = None) -> Budget:
    """Return the budget with the bound of a context policy, and of the `longest` context that an engine takes, if any.

    Raises `ConfigError` if the bound of the context policy is above the budget's own.
    """
    if context.tokens is not None and context.tokens > budget.max_tokens:
        raise ConfigError(
            f"the context policy asks for {context.tokens} tokens, but max_tokens is {budget.max_tokens}: raise "
            "max_tokens or lower the policy's number"
        )
    bounds = (budget.max_tokens, context.tokens, longest)
    return dataclasses.replace(budget, max_tokens=min(bound for bound in bounds if bound is not None))
