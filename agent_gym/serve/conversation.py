"""A conversation: a person, a policy, and the environment of its training.

The person's words take the place of the task's question, so that the prompt is as in training: the environment's system
prompt, its tools and its wire format. A turn without a tool call goes to the person, whose next words continue the same
context. In an environment without tools the person writes the world's answers, and an empty text lets the environment
write them itself. Nothing is scored. A listener gets everything while it happens, as JSON-ready events:

    kind      further keys
    person    text: the person's words
    world     text: the environment's own words
    text      text: a piece of the policy's turn
    turn      calls: of the turn that is now complete, each with name, arguments and error
    results   results: the tools' answers, each with text and error, one per call where they can be separated;
              seconds
    end       reason: a key of `REASONS`; text: the same in words; tokens and limit of the context; sampled; seconds
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, cast

import gymnasium

from agent_gym.chat import ChatRenderer, Message
from agent_gym.env import TextEnv
from agent_gym.errors import AgentGymError, ConfigError, EnvFailure
from agent_gym.images import images_of
from agent_gym.policies.base import Generation, Policy, Request, SamplingParams
from agent_gym.renamed import renamed
from agent_gym.rollout import EpisodeSpec, LiveEpisode, Row, derive_seed, to_record
from agent_gym.tool_env import ToolEnv
from agent_gym.transcript import PROMPT_STEP, Source, Span

Listener = Callable[[dict[str, Any]], None]

REASONS = {
    "answer": "the policy answered",
    "length": "cut off: the turn reached its limit of tokens",
    "stopped": "stopped",
    "turns": "the policy used as many turns as it may for one message; write another to let it go on",
    "full": "the context is full; reset to begin anew",
    "over": "the episode of the environment is over; reset to begin another",
    "failed": "the environment or the engine failed",
}
_UNFINISHED = "\ufffd"  # how a part of a character is decoded


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """How much a policy may do."""

    turn_tokens: int = 1024  # of one turn of the policy
    tokens: int = 8192  # of the whole conversation; the model's own context may be shorter
    turns: int = 16  # of the policy per message of the person

    def __post_init__(self) -> None:
        if min(self.turn_tokens, self.tokens, self.turns) < 1:
            raise ConfigError(f"the limits of a chat must be at least 1, got {self}")


def text_env(env: gymnasium.Env[str, str], spec: EpisodeSpec) -> TextEnv:
    """Return the environment without its wrappers; `ConfigError` for one that a chat cannot use."""
    if not isinstance(env.unwrapped, TextEnv):
        raise ConfigError(f"{spec.env_id} is a {type(env.unwrapped).__name__}; a chat needs an agent_gym.TextEnv")
    return env.unwrapped


def first_prompt(env: gymnasium.Env[str, str], spec: EpisodeSpec) -> dict[str, Any]:
    """Begin the task of a chat, and return the `info` of its reset; `ConfigError` where a chat cannot show it."""
    text_env(env, spec)
    _, info = env.reset(seed=spec.seed, options=spec.options)
    if images_of(info["messages"]):
        raise ConfigError(f"{spec.env_id} shows images, which a chat does not: agent-gym play {spec.env_id} --model M")
    return info


class _Stop(Exception):
    pass


class Conversation:
    """Talks with one policy about one task's world.

    To the policy the person is a part of the world: the person's words answer its turn. So a chat is an `Episode` like
    the ids of a rollout, whose one row grows; the text after the policy's last turn may change until the policy reads
    it.

    `spec` names the task into whose world the tools of the environment look, and the seeds. A `temperature` of 0 is
    greedy. One thread talks; `stop` may be called by any other, or by a signal handler. `ConfigError` for an
    environment that is not a `TextEnv` or shows images, or a task that does not exist.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        policy: Policy,
        tokenizer: Any,
        spec: EpisodeSpec,
        limits: ChatLimits | None = None,
        *,
        temperature: float = 0.0,
    ) -> None:
        self._env, self._world = env, text_env(env, spec)
        self._policy, self._renderer, self._spec = policy, ChatRenderer.of(tokenizer), spec
        self._world.renderer = self._renderer
        self._tools = self._world if isinstance(self._world, ToolEnv) else None
        # A room or a page has to be seen before anything can be asked about it; a question may be any.
        self._has_state = self._tools is not None and type(self._tools).state_prompt is not TextEnv.state_prompt
        self._limits, self._temperature = limits or ChatLimits(), temperature
        self._stopped = threading.Event()
        self._requests = 0
        self.reset()

    def reset(self) -> None:
        """Forget the conversation, and begin the task's world anew."""
        info = first_prompt(self._env, self._spec)
        *before, question = info["messages"]
        self._opening = str(question["content"])
        stop, task_id = tuple(info["stop"]), info["task_id"]
        self._episode = LiveEpisode(self._spec, messages=before, tools=info["tools"], stop=stop, task_id=task_id)
        self._answers: list[Message] = []  # of the world, to the policy's last turn
        self._words: list[Message] = []  # of the person, after these
        self._over, self._outcome = False, ""
        self._answered = 0  # turns of the policy that the environment has answered itself

    def about(self) -> dict[str, Any]:
        """Return the facts that a person should know first, JSON-ready.

        Its keys are env_id, tools (function schemas), opening, which is the environment's own question or the
        state that it begins with, has_state, which of the two it is, and answers, whether an empty text lets the
        environment speak.
        """
        about = {"env_id": self._spec.env_id, "tools": self._episode.tools, "answers": self._tools is None}
        return {**about, "opening": self._opening, "has_state": self._has_state}

    def stop(self) -> None:
        """End the policy's turn at its next token, or as soon as the tools that are running have answered."""
        self._stopped.set()

    def say(self, text: str, listener: Listener) -> None:
        """Add the person's words and let the policy answer; `listener` gets the events.

        In an environment without tools an empty text lets the environment speak.
        """
        self._stopped.clear()
        text = text.encode("utf-8", "replace").decode()  # no tokenizer takes half of a surrogate pair
        begin, episode = time.perf_counter(), self._episode
        before, sampled = len(episode.steps), episode.sampled_tokens
        reason, why = "over", ""
        if text.strip() or self._tools is not None or self._over:
            listener({"kind": "person", "text": text})
        if not self._over:
            try:
                said = self._add_words(text) if text.strip() or self._tools is not None else self._let_speak(listener)
                reason, why = (self._turns(listener), "") if said else ("over", self._outcome)
            except AgentGymError as error:
                what = "environment" if isinstance(error, EnvFailure) else "engine"
                reason, why = "failed", f"the {what} failed: {error}"
            if len(episode.steps) == before and not self._over:  # the policy did not answer
                del episode.messages[len(episode.messages) - len(self._words) :]
                self._words = []
                self._write_end()
        seconds = round(time.perf_counter() - begin, 3)
        episode.seconds += seconds
        listener(self.end(reason, why, seconds, episode.sampled_tokens - sampled))

    def _add_words(self, text: str) -> bool:
        state = f"{self._opening}\n\n" if self._has_state and not self._episode.steps else ""
        self._words = [{"role": "user", "content": state + text}]
        self._episode.messages += self._words
        self._write_end()
        return True

    def _let_speak(self, listener: Listener) -> bool:
        """Let the environment begin, or answer the policy's last turn; return whether the policy is to act again."""
        episode = self._episode
        if not episode.steps:
            said = self._words = [{"role": "user", "content": self._opening}]
        elif self._answers:  # it has answered already, and the policy could not go on
            return True
        else:
            step = episode.steps[-1]
            reply = self._world.respond(step.action)
            self._answered, step.error = self._answered + 1, reply.error
            truncated = not reply.terminated and self._answered >= self._world.max_turns
            self._over = reply.terminated or truncated
            solved = "solved" if reply.success else "not solved"
            self._outcome = f"the episode is over{', out of turns' if truncated else ''}: {solved}"
            self._answers, _ = self._world.as_messages(reply)
            said = self._answers
        listener({"kind": "world", "text": "\n".join(str(message["content"]) for message in said)})
        episode.messages += said
        self._write_end()
        return not self._over

    def end(self, reason: str, why: str = "", seconds: float = 0.0, sampled: int = 0) -> dict[str, Any]:
        """Return the event "end"; `why` says more than the reason."""
        end = {"kind": "end", "reason": reason, "text": why or REASONS[reason], "seconds": seconds}
        return {**end, "tokens": len(self._token_ids), "sampled": sampled, "limit": self._limit}

    def record(self) -> dict[str, Any]:
        """Return the record of a trajectory file, whose `source` is "chat"; `ConfigError` without an answer so far."""
        if not self._episode.steps:
            raise ConfigError("there is nothing to save yet: write something first")
        return to_record(self._episode, self._renderer.tokenizer, source="chat")

    @property
    def _token_ids(self) -> list[int]:
        return [i for row in self._episode.rows for i in row.token_ids]

    @property
    def _limit(self) -> int:
        longest: int | None = getattr(self._policy, "context", None)
        return min(self._limits.tokens, longest or self._limits.tokens)

    def _turns(self, listener: Listener) -> str:
        """Let the policy act until it is the person's turn, and return why it is, a key of `REASONS`."""
        for _ in range(self._limits.turns):
            if len(self._token_ids) >= self._limit:
                return "full"
            generation = self._sample(listener)
            if generation is None:
                return "stopped"
            action = self._add_turn(generation)
            calls = self._tools.parser.parse(action) if self._tools and self._tools.tools else []
            shown = [{"name": call.name, "arguments": call.arguments, "error": call.error} for call in calls]
            listener({"kind": "turn", "calls": shown})
            if not calls:
                return "length" if generation.finish_reason == "length" else "answer"
            self._use_tools(cast(ToolEnv, self._tools), action, len(calls), listener)
            if self._over or self._stopped.is_set():
                return "over" if self._over else "stopped"
        return "turns"

    def _sample(self, listener: Listener) -> Generation | None:
        """Let the policy write a turn; None if it was stopped."""
        pieces = TextPieces(self._renderer)

        def on_token(token: int) -> None:
            if piece := pieces.add(token):
                listener({"kind": "text", "text": piece})
            if self._stopped.is_set():
                raise _Stop

        self._requests += 1
        prompt = self._token_ids
        params = SamplingParams(
            min(self._limits.turn_tokens, self._limit - len(prompt)),
            self._temperature,
            self._episode.stop,
            derive_seed(self._spec.seed, self._requests),
        )
        self._policy.submit(Request(self._requests, prompt, params, self._episode, on_token))
        finished: list[Generation] = []
        try:
            while not finished:
                if self._stopped.is_set():
                    raise _Stop
                finished = self._policy.poll()
        except _Stop:
            if ids := pieces.token_ids:
                # The shown text stays, and the conversation continues after it.
                self._add_turn(Generation(self._requests, ids, [0.0] * len(ids), "length"))
            return None
        finally:
            self._policy.abort(self._requests)
        text = self._renderer.decode_action(finished[0].token_ids)
        # The text that no token has shown yet: all of it, if none came one by one.
        if text.startswith(pieces.shown) and text != pieces.shown:
            listener({"kind": "text", "text": text[len(pieces.shown) :]})
        return finished[0]

    def _use_tools(self, tools: ToolEnv, action: str, calls: int, listener: Listener) -> None:
        begin = time.perf_counter()
        reply = tools.respond(action)
        seconds = time.perf_counter() - begin
        step = self._episode.steps[-1]
        step.tool_calls = [call.record for call in reply.tool_calls]
        step.error, step.env_seconds = reply.error, seconds
        step.metrics = dict(reply.metrics)
        self._answers, _ = tools.as_messages(reply)
        self._episode.messages += self._answers
        self._write_end()
        self._over = reply.terminated
        texts = [str(message["content"]) for message in self._answers]
        errors = [call.failed for call in reply.tool_calls]
        if not len(texts) == len(errors) == calls:  # several answers in one text, or a call that did not run
            texts, errors = ["\n".join(texts)], [reply.error is not None]
        results = [{"text": text, "error": error} for text, error in zip(texts, errors, strict=True)]
        listener({"kind": "results", "results": results, "seconds": round(seconds, 3)})

    # The context, token for token, with the author of each.

    def _add_turn(self, generation: Generation) -> str:
        text = self._renderer.decode_action(generation.token_ids)
        self._episode.record_unanswered(generation, text)
        self._answers, self._words = [], []
        return text

    def _write_end(self) -> None:
        """Write the text after the policy's last token: the world's answers, then the person's words."""
        episode, renderer = self._episode, self._renderer
        world = [*self._answers, *self._words]
        if not episode.steps:
            episode.rows[:] = [Row()] if world else []
            ids = renderer.prompt(episode.messages, self._world.template_tools) if world else []
        else:
            step, row = episode.steps[-1], episode.rows[-1]
            row.cut(step.stop)
            step.observation = "\n".join(str(message["content"]) for message in world)
            sampled = row.token_ids[step.start :]
            if not (self._world.inline and self._answers) or sampled[-1] in renderer.eos_token_ids:
                tools, past = self._world.template_tools, self._past(len(world))
                ids = renderer.reply(sampled, world, tools=tools, past=past) if world else []
            else:
                ids = renderer.inline_reply(sampled, self._answers[0]["content"])
                # The person does not speak inside of the policy's turn, so that it is closed first.
                ids += renderer.reply([], self._words) if self._words else []
        if world:
            source: Source = "user" if self._words else "env"
            number = len(episode.steps) - 1 if episode.steps else PROMPT_STEP
            episode.rows[-1].extend(ids, [Span(0, len(ids), source, number)])

    def _past(self, answered: int) -> list[Message]:
        """Return what was said between the opening and the policy's last turn, which as many messages answer."""
        before = self._episode.messages[: len(self._episode.messages) - answered - 1]
        return [*dropwhile(lambda message: message["role"] != "assistant", before)]


class TextPieces:
    """Decodes the tokens of one turn, one by one, to pieces of text that can be shown at once.

    A character may be spread over several tokens, and a token may be decoded differently after another one. So a piece
    is the text that the newest tokens add to the text of the ones just before them, and it waits while its last
    character is not whole. Each token is decoded a few times and not once per token of the turn. `shown` is the text so
    far.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self.token_ids: list[int] = []
        self.shown = ""
        self._before = self._done = 0  # where the tokens begin that are decoded again, and the ones that were not shown

    def add(self, token: int) -> str:
        """Take a token and return the piece of text that it completes; "" if there is none."""
        self.token_ids.append(token)
        decode = self._renderer.decode_action  # ends of turns are not text
        known = decode(self.token_ids[self._before : self._done])
        text = decode(self.token_ids[self._before :])
        if len(text) <= len(known) or text.endswith(_UNFINISHED):
            return ""
        self._before, self._done = self._done, len(self.token_ids)
        self.shown += text[len(known) :]
        return text[len(known) :]


__getattr__ = renamed(__name__, {"Limits": "ChatLimits"})
