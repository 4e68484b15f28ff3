"""A conversation: a person, a policy, and the tools of an environment.

The person's words stand where the task's question would, so that the policy sees what it was trained on: the
environment's system prompt, its tools and its wire format. A turn without a tool call goes to the person, whose next
words continue the same context. Nothing is scored.

    say(text) -> [policy samples -> calls? -> tools answer] -> ... -> the person's turn again

Whoever listens hears of everything while it happens, as plain objects that are JSON as they are:

    kind      further keys
    person    text: what the person said
    text      text: a piece of the policy's turn
    turn      calls: of the turn that is now complete, each with name, arguments and error
    results   results: what the tools answered, each with text and error, one per call where they can be told apart;
              seconds
    end       reason: a key of `REASONS`; text: the same in words; tokens and limit of the context; sampled; seconds
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_gym.chat import ChatRenderer
from agent_gym.chatting.context import ChatContext
from agent_gym.chatting.stream import TextStream
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.policies.base import Generation, Policy, Request, SamplingParams
from agent_gym.rollout import EpisodeSpec, derive_seed, to_record
from agent_gym.tool_env import ToolEnv

Tell = Callable[[dict[str, Any]], None]

REASONS = {
    "answer": "the policy answered",
    "length": "cut off: the turn reached its limit of tokens",
    "stopped": "stopped",
    "turns": "the policy used as many turns as it may for one message; say something to let it go on",
    "full": "the context is full; reset to begin anew",
    "over": "the episode of the environment is over; reset to begin another",
    "failed": "the environment failed",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a policy may do.

    Attributes:
        turn_tokens: tokens of one turn of the policy.
        tokens: tokens of the whole conversation; the model's own context may be shorter.
        turns: turns of the policy per message of the person.
    """

    turn_tokens: int = 1024
    tokens: int = 8192
    turns: int = 16

    def __post_init__(self) -> None:
        """Refuse limits under which nothing can be said."""
        if min(self.turn_tokens, self.tokens, self.turns) < 1:
            raise ConfigError(f"the limits of a chat must be at least 1, got {self}")


class _Stop(Exception):
    """The person has heard enough."""


class Conversation:
    """Talks with one policy about one task's world.

    Args:
        env: a `ToolEnv`, for its system prompt, its tools, and the world that the tools look into.
        policy: writes the turns.
        tokenizer: a tokenizer or `ChatRenderer`.
        spec: which task's world, and the seeds.
        limits: how much the policy may do.
        temperature: of its sampling; 0 is greedy.

    One thread talks; `stop` may be called by any other, or by a signal handler.

    Raises:
        ConfigError: for an environment that is no `ToolEnv`, or a task that there is not.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        policy: Policy,
        tokenizer: Any,
        spec: EpisodeSpec,
        limits: Limits | None = None,
        *,
        temperature: float = 0.0,
    ) -> None:
        if not isinstance(env.unwrapped, ToolEnv):
            raise ConfigError(f"{spec.env_id} is a {type(env.unwrapped).__name__}; a chat needs an agent_gym.ToolEnv")
        self._env, self._tools = env, env.unwrapped
        self._policy, self._renderer, self._spec = policy, ChatRenderer.of(tokenizer), spec
        self._tools.renderer = self._renderer
        self._limits, self._temperature = limits or Limits(), temperature
        self._stopped = threading.Event()
        self._requests = 0
        self.reset()

    def reset(self) -> None:
        """Forget the conversation, and begin the task's world anew."""
        _, info = self._env.reset(seed=self._spec.seed, options=self._spec.options)
        self._context = ChatContext(self._tools, info, self._renderer, self._spec)
        self._over = False

    def about(self) -> dict[str, Any]:
        """Return what a person should know first, JSON-ready.

        Its keys are env_id, task_id, tools (function schemas), opening, which is what the environment itself would ask
        or the state that it begins with, and has_state, which of the two it is.
        """
        context = self._context
        return {
            "env_id": self._spec.env_id,
            "task_id": context.episode.task_id,
            "tools": context.episode.tools,
            "opening": context.opening,
            "has_state": context.has_state,
        }

    def stop(self) -> None:
        """End the policy's turn at its next token, or as soon as the tools that are running have answered."""
        self._stopped.set()

    def say(self, text: str, tell: Tell) -> None:
        """Say something and hear the policy out.

        Args:
            text: the person's words.
            tell: hears of everything, see above.

        Raises:
            RolloutError: if the engine fails.
        """
        self._stopped.clear()
        begin, episode = time.perf_counter(), self._context.episode
        before, sampled = len(episode.steps), episode.sampled_tokens
        tell({"kind": "person", "text": text})
        reason, detail = "over", ""
        if not self._over:
            self._context.hear(text)
            reason, detail = self._turns(tell)
            if len(episode.steps) == before:
                self._context.unsay()
        seconds = round(time.perf_counter() - begin, 3)
        episode.seconds += seconds
        end = {"kind": "end", "reason": reason, "text": detail or REASONS[reason], "seconds": seconds}
        counts = {"tokens": len(self._context.token_ids), "sampled": episode.sampled_tokens - sampled}
        tell({**end, **counts, "limit": self._limit})

    def record(self) -> dict[str, Any]:
        """Return the conversation as the record of a trajectory file, with "chat" as its `source`.

        Raises:
            ConfigError: if nothing was said yet.
        """
        if not self._context.episode.steps:
            raise ConfigError("there is nothing to save yet: say something first")
        return to_record(self._context.episode, self._renderer.tokenizer, source="chat")

    @property
    def _limit(self) -> int:
        longest: int | None = getattr(self._policy, "context", None)
        return min(self._limits.tokens, longest or self._limits.tokens)

    def _turns(self, tell: Tell) -> tuple[str, str]:
        """Let the policy act until it is the person's turn, and return why it is, with details if there are."""
        for _ in range(self._limits.turns):
            if len(self._context.token_ids) >= self._limit:
                return "full", ""
            generation = self._sample(tell)
            if generation is None:
                return "stopped", ""
            action = self._context.take(generation)
            calls = self._tools.parser.parse(action) if self._tools.tools else []
            told = [{"name": call.name, "arguments": call.arguments, "error": call.error} for call in calls]
            tell({"kind": "turn", "calls": told})
            if not calls:
                return ("length" if generation.finish_reason == "length" else "answer"), ""
            try:
                self._use_tools(action, len(calls), tell)
            except EnvFailure as error:
                return "failed", f"the environment failed: {error}"
            if self._over or self._stopped.is_set():
                return ("over" if self._over else "stopped"), ""
        return "turns", ""

    def _sample(self, tell: Tell) -> Generation | None:
        """Let the policy write a turn; None if it was stopped."""
        stream = TextStream(self._renderer)

        def hear(token: int) -> None:
            if piece := stream.add(token):
                tell({"kind": "text", "text": piece})
            if self._stopped.is_set():
                raise _Stop

        self._requests += 1
        prompt = self._context.token_ids
        params = SamplingParams(
            min(self._limits.turn_tokens, self._limit - len(prompt)),
            self._temperature,
            self._context.episode.stop,
            derive_seed(self._spec.seed, self._requests),
        )
        self._policy.submit(Request(self._requests, prompt, params, self._context.episode, hear))
        finished: list[Generation] = []
        try:
            while not finished:
                if self._stopped.is_set():
                    raise _Stop
                finished = self._policy.poll()
        except _Stop:
            if ids := stream.token_ids:
                # What was heard was said, and the conversation goes on behind it.
                self._context.take(Generation(self._requests, ids, [0.0] * len(ids), "length"))
            return None
        finally:
            self._policy.abort(self._requests)
        if piece := stream.finish(self._renderer.decode_action(finished[0].token_ids)):
            tell({"kind": "text", "text": piece})
        return finished[0]

    def _use_tools(self, action: str, calls: int, tell: Tell) -> None:
        begin = time.perf_counter()
        reply = self._tools.respond(action)
        seconds = time.perf_counter() - begin
        texts = self._context.answer(reply, seconds)
        self._over = reply.terminated
        errors = [call.failed for call in reply.tool_calls]
        if not len(texts) == len(errors) == calls:  # several answers in one text, or a call that did not run
            texts, errors = ["\n".join(texts)], [reply.error is not None]
        results = [{"text": text, "error": error} for text, error in zip(texts, errors, strict=True)]
        tell({"kind": "results", "results": results, "seconds": round(seconds, 3)})
