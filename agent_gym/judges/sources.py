"""Who answers the questions of a judge: a server that speaks OpenAI's protocol, or the engine of the policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError, EnvFailure, RolloutError
from agent_gym.judges.questions import Question
from agent_gym.policies.base import SamplingParams
from agent_gym.policies.openai import connect, failures, find_model
from agent_gym.rollout.runner import Rollout


class JudgeFailure(EnvFailure):
    """A judge is down, or gives no verdict: what it was asked about has no reward, which is not 0."""


class Answer(NamedTuple):
    """What a judge wrote, and the tokens that it read and wrote, None where the server does not count them."""

    text: str
    tokens: tuple[int, int] | None


Source = Callable[[Question, int], Awaitable[Answer]]
"""Takes a question and the number of the attempt; raises `JudgeFailure` where there is no answer."""


class Endpoint:
    """Asks by `/v1/chat/completions`. Requests are sent again by OpenAI's client, with growing pauses.

    Raises `ConfigError` if there is no such server or model; `__call__` belongs to one event loop.
    """

    def __init__(
        self,
        url: str,
        model: str | None,
        *,
        temperature: float,
        max_answer_tokens: int,
        structured: bool,
        timeout: float,
        retries: int,
        key_variable: str,
    ) -> None:
        self.model = str(find_model(url, model, key_variable)["id"])
        self._url, self._retries, self._structured = url, retries, structured
        self._settings = {"model": self.model, "temperature": temperature, "max_tokens": max_answer_tokens}
        self._client = connect(url, retries, timeout, key_variable, asynchronous=True)

    async def __call__(self, question: Question, attempt: int) -> Answer:
        content: dict[str, Any] = {**self._settings, "messages": question.messages(attempt)}
        if self._structured:
            form = {"name": "verdict", "schema": question.schema(attempt)}
            content["response_format"] = {"type": "json_schema", "json_schema": form}
        try:
            with failures(self._url, self._retries):
                raw = await self._client.chat.completions.with_raw_response.create(**content)
                answer = json.loads(raw.text)
                text, usage = answer["choices"][0]["message"].get("content"), answer.get("usage")
                tokens = (int(usage["prompt_tokens"]), int(usage["completion_tokens"])) if usage else None
        except RolloutError as error:
            raise JudgeFailure(str(error)) from error
        return Answer(text if isinstance(text, str) else "", tokens)

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True)
class PolicyEngine:
    """Asks the engine of the policy, between the turns of the episodes: the judge has the policy's weights of then."""

    rollout: Rollout
    temperature: float
    max_answer_tokens: int

    async def __call__(self, question: Question, attempt: int) -> Answer:
        renderer = self.rollout.renderer
        prompt = renderer.prompt(question.messages(attempt), [])
        params = SamplingParams(self.max_answer_tokens, self.temperature)
        try:
            made = await asyncio.wrap_future(self.rollout.sample(prompt, params))
        except ConfigError as error:
            raise JudgeFailure(str(error)) from error
        return Answer(renderer.decode_action(made.token_ids), (len(prompt), len(made.token_ids)))
