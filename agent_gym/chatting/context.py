"""What stands in the context of a chat, token for token, and who wrote it.

To the policy the person is a part of the world: what is said after its turn is the answer to it. So a chat is an
`Episode` like those of a rollout, whose last observations are what the person said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.chat import ChatRenderer, Message
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError
from agent_gym.images import images_of
from agent_gym.policies.base import Generation
from agent_gym.rollout import Episode, EpisodeSpec, Row
from agent_gym.transcript import PROMPT_STEP, Source, Span


class ChatContext:
    """One row that only grows, except at its end: what follows the policy's last turn is not settled until it is read.

    Args:
        env: the environment, whose tools and wire format the policy is shown.
        info: what its `reset` returned.
        renderer: writes messages as tokens.
        spec: what the record says about the environment.
    """

    def __init__(self, env: TextEnv, info: Mapping[str, Any], renderer: ChatRenderer, spec: EpisodeSpec) -> None:
        self._env, self._renderer = env, renderer
        if images_of(info["messages"]):
            raise ConfigError(f"{spec.env_id} shows images, which a chat does not: use agent-gym rollout and view")
        *before, question = info["messages"]
        self.opening = str(question["content"])
        """What the environment itself would have asked, or the state that it begins with."""
        # A room or a page has to be seen before anything can be said about it; a question may be any.
        self.has_state = type(env).situation is not TextEnv.situation
        stop = tuple(info["stop"])
        self.episode = Episode(spec, messages=before, tools=info["tools"], stop=stop, task_id=info["task_id"])
        self._answers: list[Message] = []  # of the world, to the policy's last turn
        self._said: list[Message] = []  # by the person, behind these

    @property
    def token_ids(self) -> list[int]:
        """(T,) all of it."""
        return [i for row in self.episode.rows for i in row.token_ids]

    def hear(self, text: str) -> None:
        """Add the person's words."""
        if self.has_state and not self.episode.steps:
            text = f"{self.opening}\n\n{text}"
        self._said = [{"role": "user", "content": text}]
        self.episode.messages += self._said
        self._write_end()

    def unsay(self) -> None:
        """Take the person's last words back: the policy said nothing to them."""
        if self._said:
            self.episode.messages.pop()
            self._said = []
            self._write_end()

    def take(self, generation: Generation) -> str:
        """Add a turn of the policy and return its text."""
        text = self._renderer.decode_action(generation.token_ids)
        self.episode.record_unanswered(generation, text)
        self._answers, self._said = [], []
        return text

    def answer(self, reply: Reply, seconds: float) -> list[str]:
        """Add what the environment answers to the policy's last turn, and return its texts."""
        step = self.episode.steps[-1]
        step.tool_calls = [call.record for call in reply.tool_calls]
        step.error, step.env_seconds = reply.error, seconds
        step.metrics = dict(reply.metrics)
        self._answers, _ = self._env.as_messages(reply)
        self.episode.messages += self._answers
        self._write_end()
        return [str(message["content"]) for message in self._answers]

    def _write_end(self) -> None:
        """Write what follows the policy's last token: the world's answers, then the person's words."""
        if not self.episode.steps:
            self.episode.rows[:] = [Row()] if self._said else []
            if self._said:
                self._extend(self._renderer.prompt(self.episode.messages, self._env.template_tools), PROMPT_STEP)
            return
        step = self.episode.steps[-1]
        row = self.episode.rows[-1]
        row.cut(step.stop)
        world = [*self._answers, *self._said]
        step.observation = "\n".join(str(message["content"]) for message in world)
        if not world:
            return
        sampled = row.token_ids[step.start :]
        inside = self._env.inline and self._answers and sampled[-1] not in self._renderer.eos_token_ids
        if not inside:
            ids = self._renderer.reply(sampled, world)
        else:
            ids = self._renderer.inline_reply(sampled, self._answers[0]["content"])
            # The person does not speak inside of the policy's turn, so that it is closed first.
            ids += self._renderer.reply([], self._said) if self._said else []
        self._extend(ids, len(self.episode.steps) - 1)

    def _extend(self, ids: list[int], step: int) -> None:
        source: Source = "user" if self._said else "env"
        self.episode.rows[-1].extend(ids, [Span(0, len(ids), source, step)])
