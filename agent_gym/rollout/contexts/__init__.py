"""Context policies by name: `append`, `window:K`, `budget:TOKENS`, `summarize:TOKENS`, `rebuild`, `template`."""

from __future__ import annotations

from collections.abc import Callable

from agent_gym.errors import ConfigError
from agent_gym.rollout.contexts.base import AppendContext, AskSummary, Context, NewContext, tighten
from agent_gym.rollout.contexts.recent import BudgetContext, WindowContext
from agent_gym.rollout.contexts.rendered import RebuildContext, TemplateContext
from agent_gym.rollout.contexts.summarize import SummaryContext

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
"""How a context policy may be written; capitals stand for a number."""


def make_context(context: str | Context) -> Context:
    """Make a context policy from its name; a policy is returned as it is.

    Args:
        context: for example "append" or "window:4", see `CONTEXTS`.

    Raises:
        ConfigError: for anything else.
    """
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


__all__ = [
    "CONTEXTS",
    "AppendContext",
    "AskSummary",
    "BudgetContext",
    "Context",
    "NewContext",
    "RebuildContext",
    "SummaryContext",
    "TemplateContext",
    "WindowContext",
    "make_context",
    "tighten",
]
