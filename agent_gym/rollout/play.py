"""The life of an episode, in one coroutine: `Life.live`.

    reset -> [sample -> env.step -> context] ... -> end

A coroutine waits for a call in the thread of its environment (`Call`) or for the policy (`Ask`). `scheduler.Rollout`
arranges both and resumes it with what came, in the thread that drives the engine. Rows and steps are written in that
thread only. So nothing here needs a lock, an event loop, or a barrier between turns.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agent_gym.env import Sampled
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.policies.base import Generation, Request, SamplingParams
from agent_gym.rollout.budget import derive_seed
from agent_gym.rollout.contexts import AskSummary, NewContext
from agent_gym.rollout.episode import Episode
from agent_gym.rollout.failures import Failure
from agent_gym.rollout.images import context_of, images_in
from agent_gym.rollout.interrupted import cut_at_stop, joined
from agent_gym.rollout.recording import (
    Turn,
    record_context,
    record_end,
    record_opening,
    record_request,
    record_summary,
    record_turn,
)

if TYPE_CHECKING:
    from agent_gym.rollout.env_threads import EnvThread
    from agent_gym.rollout.scheduler import Rollout


class Call(NamedTuple):
    """A coroutine waits for a function in the thread of its environment; it is sent what that returns.

    Attributes:
        stage: whether the environment has to answer, or the context policy and the tokenizer.
        what: the call in a word.
        function: what to call. It may read the episode and must not change it: its time may run out meanwhile.
    """

    stage: Literal["env", "context"]
    what: str
    function: Callable[[], Any]


class Ask(NamedTuple):
    """A coroutine waits for the policy; it is sent a `Generation`, with "abort" if playing was paused.

    Attributes:
        begun: the ids that the policy has sampled of this turn before.
    """

    begun: Sequence[int]


class TimeUp(Exception):
    """The time of an episode is over. It is thrown into the coroutine, wherever that waits."""


class Failed(Exception):
    """Something in the thread of the environment raised an error, or did not answer."""

    def __init__(self, failure: Failure) -> None:
        """Keep the failure."""
        super().__init__(failure)
        self.failure = failure


@types.coroutine
def wait(wish: Call | Ask) -> Generator[Call | Ask, Any, Any]:
    """Wait until what is wished for is sent, or an error is thrown."""
    return (yield wish)


class Life:
    """A live episode.

    Args:
        episode: where it is recorded.
        rollout: which it is part of.
        thread: the one thread that its environment ever sees.

    Attributes:
        wish: what it waits for.
        since: since when, a time of `perf_counter`.
        reminder: when a person is told that it still waits.
        deadline: when its time is over.
    """

    __slots__ = ("began", "coroutine", "deadline", "episode", "reminder", "rollout", "since", "thread", "wish")

    def __init__(self, episode: Episode, rollout: Rollout, thread: EnvThread) -> None:
        """Begin, with nothing done yet."""
        self.episode, self.rollout, self.thread = episode, rollout, thread
        self.began = self.since = self.reminder = time.perf_counter()
        limit = rollout.budget.max_seconds
        self.deadline = float("inf") if limit is None else self.began + limit
        self.wish: Call | Ask | None = None
        self.coroutine: Coroutine[Call | Ask, Any, None] = self.live()
        episode.in_thread = thread.run

    async def live(self) -> None:
        """Play the episode from reset to end."""
        episode = self.episode
        try:
            await self.play()
        except TimeUp:
            if episode.steps:
                return self.truncate("seconds")
            episode.failure = Failure("EnvFailure", f"no first turn in {self.rollout.budget.max_seconds} s")
        except Failed as failed:
            episode.failure = failed.failure
        except EnvFailure as error:
            episode.failure = Failure.of(error)

    async def play(self) -> None:
        """Take turns until the environment or a limit ends the episode."""
        episode, rollout = self.episode, self.rollout
        record_opening(episode, *await self.call("env", "reset", self.reset))
        while self.room() > 0:
            generation = await self.sample()
            if episode.asked == "summary":
                text = await self.call("context", "summary", partial(self.decode, generation.token_ids))
                record_summary(episode, generation, text)
            else:
                turn = await self.call("env", f"step {episode.turns}", partial(self.step, generation))
                record_turn(episode, turn)
                _, _, episode.terminated, truncated, _ = turn.answer
                if episode.terminated:
                    return
                if truncated or episode.turns == rollout.budget.max_turns:
                    return self.truncate("turns")
            if rollout.context.is_due(episode, rollout.budget):
                change, extends = await self.call("context", "context", self.rewrite)
                if isinstance(change, AskSummary):
                    record_request(episode, change)
                elif change is not None:
                    record_context(episode, change.token_ids, extends)
        self.truncate("tokens")

    async def sample(self) -> Generation:
        """Let the policy write one turn, to its end, however often playing is paused meanwhile."""
        rollout, turn = self.rollout, Generation(0, [], [], "abort")
        while turn.finish_reason == "abort":
            piece = await wait(Ask(turn.token_ids))
            count = len(piece.token_ids)
            if count or piece.finish_reason != "abort":
                piece.versions = [(rollout.runner.version, count)]
            rollout.stats.sampled_tokens += count
            turn = joined(turn, piece)
        return turn

    async def call(self, stage: Literal["env", "context"], what: str, function: Callable[[], Any]) -> Any:
        """Run a function in the episode's thread."""
        try:
            answer, error = await wait(Call(stage, what, function))
        except TimeUp:
            if stage == "context":
                raise
            # The policy did nothing wrong, so the episode counts as broken.
            seconds = self.rollout.budget.max_seconds
            raise Failed(Failure("EnvFailure", f"no answer from the environment in {seconds} s")) from None
        if isinstance(error, ConfigError):
            raise error  # the user's mistake is the same for every episode: say it once, at once
        if error is not None:
            raise Failed(error)
        return answer

    def request(self, number: int, begun: Sequence[int]) -> Request:
        """Return the request for a turn, or for the rest of the one that the policy has begun."""
        episode, rollout = self.episode, self.rollout
        seed = episode.spec.sampling_seed
        # The rest of a turn needs random numbers of its own: those of its beginning are used.
        place = (len(episode.steps), len(begun)) if begun else (len(episode.steps),)
        params = SamplingParams(
            max_tokens=min(self.room(), rollout.budget.max_turn_tokens) - len(begun),
            temperature=0.0 if episode.spec.greedy else rollout.temperature,
            stop=episode.stop if episode.asked == "act" else (),  # a summary may well quote a stop string
            seed=None if seed is None else derive_seed(seed, *place),
        )
        ids, images = context_of(episode, begun, rollout.renderer, rollout.context)
        return Request(number, ids, params, episode, images=images)

    def room(self) -> int:
        """How many tokens the context has left.

        Raises:
            EnvFailure: if the prompt alone fills it.
        """
        limit, length = self.rollout.budget.max_tokens, len(self.episode.rows[-1].token_ids)
        if length >= limit and not self.episode.steps:
            raise EnvFailure(f"the prompt has {length} tokens, max_tokens is {limit}")
        return limit - length

    def truncate(self, reason: str) -> None:
        """End the episode, though its task is not over."""
        self.episode.truncated, self.episode.truncation = True, reason

    def end(self) -> None:
        """Close the record, after the coroutine's end."""
        episode = self.episode
        episode.seconds = time.perf_counter() - self.began
        record_end(episode, self.rollout.budget.max_tokens)
        episode.release()

    # The episode's thread runs these.

    def reset(self) -> tuple[Any, ...]:
        """Begin the task in an environment of this thread."""
        spec = self.episode.spec
        env = self.thread.env(spec)
        _, info = env.reset(seed=spec.seed, options=spec.options)
        return env, info, images_in(info, self.rollout.renderer)

    def step(self, generation: Generation) -> Turn:
        """Let the environment answer."""
        env, renderer = self.episode.env, self.rollout.renderer
        assert env is not None
        generation = cut_at_stop(generation, self.episode.stop, self.decode)
        text = self.decode(generation.token_ids)
        tick = time.perf_counter()
        answer = env.step(Sampled(text, generation.token_ids, generation.logprobs))
        seconds = time.perf_counter() - tick
        return Turn(generation, text, answer, seconds, images_in(answer[-1], renderer, generation.token_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return what the policy wrote as text."""
        return self.rollout.renderer.decode_action(token_ids)

    def rewrite(self) -> tuple[NewContext | AskSummary | None, bool]:
        """Ask the context policy; the flag says whether its answer extends the present row."""
        episode, rollout = self.episode, self.rollout
        change = rollout.context.rewrite(episode, rollout.renderer, rollout.budget)
        if not isinstance(change, NewContext):
            return change, False
        stop = episode.steps[-1].stop
        return change, change.token_ids[:stop] == episode.rows[-1].token_ids[:stop]
