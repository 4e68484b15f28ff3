"""Who answers the questions of a judge: a server that speaks OpenAI's protocol, or the engine of the policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_gym.errors import ConfigError, EnvFailure, RolloutError
from agent_gym.judges.questions import Question
from agent_gym.policies.base import SamplingParams
from agent_gym.policies.openai import connect, failures, find_model
from agent_gym.rollout.runner import Rollout

if TYPE_CHECKING:
    from agent_gym.judges.judge import Judge


class JudgeFailure(EnvFailure):
    """A judge is down, or gives no verdict: the episodes of its question have no reward, which is not 0."""


class JudgeAnswer(NamedTuple):
    """A judge's text, and the tokens that it read and wrote, None where the server does not count them."""

    text: str
    tokens: tuple[int, int] | None


Source = Callable[[Question, int], Awaitable[JudgeAnswer]]
"""Takes a question and the number of the attempt; raises `JudgeFailure` without an answer."""


class Endpoint:
    """Asks by `/v1/chat/completions`. Requests are sent again by OpenAI's client, with growing pauses.

    Raises `ConfigError` if the server or model does not exist; `__call__` belongs to one event loop.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.model = str(find_model(judge.endpoint, judge.model, judge.key_variable)["id"])
        self._client = connect(judge.endpoint, judge.retries, judge.timeout, judge.key_variable, asynchronous=True)

    async def __call__(self, question: Question, attempt: int) -> JudgeAnswer:
        judge, messages = self._judge, question.messages(attempt)
        content: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": judge.temperature}
        content["max_tokens"] = judge.max_answer_tokens
        if judge.structured:
            form = {"name": "verdict", "schema": question.schema(attempt)}
            content["response_format"] = {"type": "json_schema", "json_schema": form}
        try:
            with failures(judge.endpoint, judge.retries):
                raw = await self._client.chat.completions.with_raw_response.create(**content)
                answer = json.loads(raw.text)
                text, usage = answer["choices"][0]["message"].get("content"), answer.get("usage")
                tokens = (int(usage["prompt_tokens"]), int(usage["completion_tokens"])) if usage else None
        except RolloutError as error:
            raise JudgeFailure(str(error)) from error
        return JudgeAnswer(text if isinstance(text, str) else "", tokens)

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True)
class PolicyEngine:
    """Asks the engine of the policy, between the turns of the episodes: the judge has the policy's weights of then."""

    judge: Judge
    rollout: Rollout

    async def __call__(self, question: Question, attempt: int) -> JudgeAnswer:
        renderer = self.rollout.renderer
        prompt = renderer.prompt(question.messages(attempt), [])
        params = SamplingParams(self.judge.max_answer_tokens, self.judge.temperature)
        try:
            made = await asyncio.wrap_future(self.rollout.sample(prompt, params))
        except ConfigError as error:
            raise JudgeFailure(str(error)) from error
        return JudgeAnswer(renderer.decode_action(made.token_ids), (len(prompt), len(made.token_ids)))
