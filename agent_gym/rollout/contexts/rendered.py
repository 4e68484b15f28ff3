"""Contexts that are rendered anew for each turn: `rebuild` by the environment, `template` by the chat template.

Rendering a conversation decodes what was sampled and encodes it again, so a rendered context is never the place where a
sampled token is trained; it is a prompt. What was sampled stands as sampled in the row in which it was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.rollout.budget import Budget
from agent_gym.rollout.contexts.base import NewContext
from agent_gym.rollout.episode import Episode


@dataclass(frozen=True, slots=True)
class RebuildContext:
    """The environment writes each prompt itself (`TextEnv.situation`), so that each turn is a row."""

    tokens: None = None

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """Each turn."""
        return True

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        """Render the situation as the environment describes it now."""
        assert episode.env is not None
        env = episode.env
        return NewContext(renderer.prompt(env.get_wrapper_attr("situation")(), env.get_wrapper_attr("template_tools")))


@dataclass(frozen=True, slots=True)
class TemplateContext:
    """The chat template renders the whole conversation each turn, as a chat server does.

    Templates of thinking models drop the thoughts of earlier turns. Where that happens the row ends, as sampled, and
    another begins without the thoughts; where the template changes nothing the row grows. So the policy is trained in
    the contexts that a server would give it later.
    """

    tokens: None = None

    def is_due(self, episode: Episode, budget: Budget) -> bool:
        """Each turn."""
        return True

    def rewrite(self, episode: Episode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        """Render the conversation.

        Raises:
            ConfigError: if the world answers inside the policy's turn: such a turn has no rendering as messages.
        """
        assert episode.env is not None
        if episode.env.get_wrapper_attr("inline"):
            raise ConfigError(
                f"context 'template' renders messages, but {episode.spec.env_id} answers inside the policy's own turn; "
                "use append, window, budget, summarize or rebuild"
            )
        seen = episode.rows[-1].token_ids[: episode.steps[-1].stop]
        tools = episode.env.get_wrapper_attr("template_tools")
        return NewContext(renderer.conversation(episode.messages, tools, seen=seen))
