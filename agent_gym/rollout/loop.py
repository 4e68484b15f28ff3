"""The rollout loop: the only place where environments meet a policy.

Each episode advances on its own. When its generation is done, its action goes to the environment in a worker thread,
and when the environment has answered, its next request joins the running batch of the engine. There is no turn
barrier: a slow environment delays its own episode only, and the engine decodes as long as anybody has work for it.

    reset -> [submit -> (engine decodes) -> env.step in a worker] -> ... -> Episode

One thread (the caller's) drives the engine, since engines are not thread-safe; it never decodes text and never runs an
environment. What the loop costs besides engine and waiting is measured (`RolloutStats.overhead_seconds`).

Playing may end before the episodes do. They are then paused, half-written turns included, and go on when `play` is
called again, with whatever weights the engine has by then.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from agent_gym.env import Sampled
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.policies.base import Generation, Interruptible, Request, SamplingParams
from agent_gym.rollout.budget import RolloutStats, derive_seed
from agent_gym.rollout.contexts import AskSummary, NewContext
from agent_gym.rollout.episode import Episode, EpisodeSpec
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
    from agent_gym.rollout.runner import Runner

Stage = Literal["env", "context"]
"""What a worker does for an episode: run the environment, or read and render."""


def _never() -> bool:
    return False


class Loop:
    """Episodes in play.

    Args:
        runner: whose policy, workers and environments they share.
    """

    def __init__(self, runner: Runner) -> None:
        """Play nothing yet."""
        self.runner = runner
        self.policy = runner.policy
        self.continuous = runner.policy.continuous
        self.context = runner.context
        self.budget = runner.budget
        self.temperature = 1.0
        self.stats = RolloutStats()
        self.episodes: dict[int, Episode] = {}  # those that are not over, by the order in which they came
        self.waiting: list[int] = []  # not started yet; popped from the end, so in order
        self.deadlines: dict[int, float] = {}  # live episodes and when their time is up
        self.started: dict[int, float] = {}
        self.busy: dict[int, Stage] = {}  # episodes that a worker is at
        self.requests: dict[int, int] = {}  # request id -> episode
        self.answers: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self.n_episodes = self.n_requests = 0
        self.interrupted: list[int] = []  # episodes that were in the engine when playing ended
        self.begun: dict[int, Generation] = {}  # what those have of their turns
        self.paused = time.perf_counter()
        self.enough = False
        self.until: Callable[[], bool] = _never
        self.on_end: Callable[[Episode], None] | None = None

    def add(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Let episodes wait for their start and return them, empty as they are."""
        episodes = [Episode(spec) for spec in specs]
        numbers = range(self.n_episodes, self.n_episodes + len(specs))
        self.episodes |= zip(numbers, episodes, strict=True)
        self.waiting[:0] = reversed(numbers)
        self.n_episodes += len(specs)
        return episodes

    def play(
        self,
        temperature: float,
        *,
        until: Callable[[], bool] = _never,
        on_end: Callable[[Episode], None] | None = None,
    ) -> None:
        """Play until all episodes are over, or what is over is enough.

        Args:
            temperature: of the policy's sampling; 0 is greedy.
            until: asked whenever an episode has ended. Once it returns True, playing ends: what is not over is paused,
                and its time does not run until `play` is called again.
            on_end: called with each episode as it ends, in this thread.
        """
        self.temperature, self.until, self.on_end = temperature, until, on_end
        self.budget, self.stats, self.enough = self.runner.budget, RolloutStats(), False
        begin = time.perf_counter()
        bar = tqdm(total=len(self.episodes), desc="episodes", disable=not self.runner._progress, leave=False)
        try:
            self._go_on()
            self._drive(bar)
            self._pause()
        finally:
            self.abandon()
            bar.close()  # which leaves the cursor on a line of its own
        self.stats.wall_seconds = time.perf_counter() - begin

    def _drive(self, bar: Any) -> None:
        while self.episodes and not self.enough:
            while self.waiting and len(self.deadlines) < self.runner._max_live:
                self._start(self.waiting.pop())
            before = len(self.episodes)
            self._collect_answers()
            # An engine without continuous batching runs whatever it has to the end, so it is better handed a full
            # batch: it waits for the environments instead of starting with the first that answered.
            if self.policy.pending and not self.enough and (self.continuous or not self.busy):
                tick = time.perf_counter()
                finished = self.policy.poll()
                self.stats.engine_seconds += time.perf_counter() - tick
                for generation in finished:
                    self._act(generation)
            self._expire()
            bar.update(before - len(self.episodes))

    def abandon(self) -> None:
        """Leave nothing in the engine, whatever interrupted the playing."""
        for request in self.requests:
            self.policy.abort(request)
        self.requests.clear()

    # An end that is none.

    def _pause(self) -> None:
        """Take the unfinished turns out of the engine, with what is written of them.

        Workers go on: what they answer is read when the episodes go on.
        """
        if isinstance(self.policy, Interruptible):
            for generation in self.policy.interrupt():
                if generation.finish_reason != "abort":
                    self._act(generation)
                    continue
                index = self.requests.pop(generation.id)
                self.interrupted.append(index)
                self.begun[index] = self._whole(index, generation)
        # Of the others nothing is left, and their turns are sampled anew. With the seeds that they had, or long turns,
        # which are interrupted more often than short ones, would get a second chance to be short.
        self.interrupted += self.requests.values()
        self.abandon()
        self.paused = time.perf_counter()

    def _go_on(self) -> None:
        """Take up what was paused."""
        lost = time.perf_counter() - self.paused
        for index in self.deadlines:
            self.deadlines[index] += lost
            self.started[index] += lost
        interrupted, self.interrupted = self.interrupted, []
        for index in interrupted:
            self._ask(index)

    def _whole(self, index: int, generation: Generation) -> Generation:
        """Put a piece of a turn behind those that were sampled before."""
        count = len(generation.token_ids)
        self.stats.sampled_tokens += count
        generation.versions = [(self.runner.version, count)]
        begun = self.begun.pop(index, None)
        return generation if begun is None else joined(begun, generation)

    # Each of these moves one episode one stage further.

    def _start(self, index: int) -> None:
        self.started[index] = time.perf_counter()
        limit = self.budget.max_seconds
        self.deadlines[index] = float("inf") if limit is None else self.started[index] + limit
        self._launch(index, "env", self._open, self._reset, self.episodes[index])

    def _launch(self, index: int, stage: Stage, then: Any, function: Any, *args: Any) -> None:
        """Run `function(*args)` in a worker, and later `then(index, result)` in this thread."""
        self.busy[index] = stage

        def work() -> None:
            try:
                self.answers.put((index, then, function(*args)))
            except BaseException as error:  # whatever an environment raises ends this episode; SystemExit, too
                self.answers.put((index, then, error))

        self.runner._workers.submit(work)

    def _collect_answers(self) -> None:
        block = bool(self.busy) and not (self.policy.pending and self.continuous)
        while self.busy:
            try:
                if block:
                    tick = time.perf_counter()
                    timeout = next(iter(self.deadlines.values())) - tick
                    item = self.answers.get(timeout=None if timeout == float("inf") else max(0.0, timeout))
                    self.stats.wait_seconds += time.perf_counter() - tick
                else:
                    item = self.answers.get_nowait()
            except queue.Empty:
                return
            # With an engine that batches continuously one answer is enough to go on; otherwise wait for all.
            block = block and not self.continuous
            index, then, answer = item
            if index not in self.deadlines:  # its time ran out while the worker worked
                continue
            del self.busy[index]
            if isinstance(answer, ConfigError):
                raise answer  # the user's mistake is the same for every episode: say it once, at once
            if isinstance(answer, BaseException):
                self._fail(index, answer)
            else:
                then(index, answer)

    # Workers run these. They may read an episode and must not change it: its time may run out meanwhile.

    def _reset(self, episode: Episode) -> tuple[Any, ...]:
        spec = episode.spec
        env = self.runner._envs.take(spec.env_id, spec.env_kwargs)
        _, info = env.reset(seed=spec.seed, options=spec.options)
        return env, info, images_in(info, self.runner.renderer)

    def _step(self, episode: Episode, generation: Generation) -> Turn:
        env = episode.env
        assert env is not None
        decode = self.runner.renderer.decode_action
        generation = cut_at_stop(generation, episode.stop, decode)
        text = decode(generation.token_ids)
        tick = time.perf_counter()
        answer = env.step(Sampled(text, generation.token_ids, generation.logprobs))
        seconds = time.perf_counter() - tick
        images = images_in(answer[-1], self.runner.renderer, generation.token_ids)
        return Turn(generation, text, answer, seconds, images)

    def _read(self, generation: Generation) -> tuple[Generation, str]:
        return generation, self.runner.renderer.decode_action(generation.token_ids)

    def _rewrite(self, episode: Episode) -> tuple[NewContext | AskSummary | None, bool]:
        change = self.context.rewrite(episode, self.runner.renderer, self.budget)
        if not isinstance(change, NewContext):
            return change, False
        stop = episode.steps[-1].stop
        return change, change.token_ids[:stop] == episode.rows[-1].token_ids[:stop]

    # This thread runs these, on what the workers and the engine hand over.

    def _open(self, index: int, answer: tuple[Any, ...]) -> None:
        try:
            record_opening(self.episodes[index], *answer)
        except EnvFailure as error:
            self._fail(index, error)
            return
        self._ask(index)

    def _take_turn(self, index: int, turn: Turn) -> None:
        episode = self.episodes[index]
        try:
            record_turn(episode, turn)
        except EnvFailure as error:
            self._fail(index, error)
            return
        _, _, terminated, truncated, _ = turn.answer
        if terminated:
            episode.terminated = True
            self._finish(index)
        elif truncated or episode.turns == self.budget.max_turns:
            self._truncate(index, "turns")
        else:
            self._find_context(index)

    def _take_summary(self, index: int, answer: tuple[Generation, str]) -> None:
        record_summary(self.episodes[index], *answer)
        self._find_context(index)

    def _find_context(self, index: int) -> None:
        episode = self.episodes[index]
        if self.context.is_due(episode, self.budget):
            self._launch(index, "context", self._take_context, self._rewrite, episode)
        else:
            self._ask(index)

    def _take_context(self, index: int, answer: tuple[NewContext | AskSummary | None, bool]) -> None:
        change, extends = answer
        if isinstance(change, AskSummary):
            record_request(self.episodes[index], change)
        elif change is not None:
            record_context(self.episodes[index], change.token_ids, extends)
        self._ask(index)

    def _ask(self, index: int) -> None:
        """Ask the policy for the next turn, unless the context is full."""
        episode = self.episodes[index]
        row = episode.rows[-1]
        room = self.budget.max_tokens - len(row.token_ids)
        if room <= 0:
            if episode.steps:
                self._truncate(index, "tokens")
            else:
                limit = self.budget.max_tokens
                self._fail(index, EnvFailure(f"the prompt has {len(row.token_ids)} tokens, max_tokens is {limit}"))
            return
        begun = self.begun[index].token_ids if index in self.begun else []
        seed = episode.spec.sampling_seed
        # The rest of a turn needs random numbers of its own: those of its beginning are used.
        place = (len(episode.steps), len(begun)) if begun else (len(episode.steps),)
        params = SamplingParams(
            max_tokens=min(room, self.budget.max_turn_tokens) - len(begun),
            temperature=0.0 if episode.spec.greedy else self.temperature,
            # These end an action; a summary may well quote one.
            stop=episode.stop if episode.asked == "act" else (),
            seed=None if seed is None else derive_seed(seed, *place),
        )
        self.n_requests += 1
        self.requests[self.n_requests] = index
        tick = time.perf_counter()
        ids, images = context_of(episode, begun, self.runner.renderer, self.context)
        self.policy.submit(Request(self.n_requests, ids, params, episode, images=images))
        self.stats.engine_seconds += time.perf_counter() - tick

    def _act(self, generation: Generation) -> None:
        index = self.requests.pop(generation.id, None)
        if index is None:
            return
        episode, generation = self.episodes[index], self._whole(index, generation)
        if episode.asked == "act":
            self._launch(index, "env", self._take_turn, self._step, episode, generation)
        else:
            self._launch(index, "context", self._take_summary, self._read, generation)

    def _expire(self) -> None:
        if self.budget.max_seconds is None:
            return
        now = time.perf_counter()
        # The first that began ends first, so that nobody has to look at thousands of deadlines in each round.
        while self.deadlines and (first := next(iter(self.deadlines.items())))[1] <= now:
            self._run_out(first[0])

    def _run_out(self, index: int) -> None:
        """End an episode whose time is up, wherever it stands."""
        episode = self.episodes[index]
        stage = self.busy.pop(index, None)
        if stage is not None:
            # The thread cannot be stopped, so another may take its place, and the environment is given up.
            self.runner._workers.replace_one()
            episode.env = None
        for request in [r for r, i in self.requests.items() if i == index]:
            self.policy.abort(request)
            del self.requests[request]
        if stage == "env":
            # The policy did nothing wrong, so the episode counts as broken.
            self._fail(index, EnvFailure(f"no answer from the environment in {self.budget.max_seconds} s"))
        elif episode.steps:
            self._truncate(index, "seconds")
        else:
            self._fail(index, EnvFailure(f"no first turn in {self.budget.max_seconds} s"))

    def _truncate(self, index: int, reason: str) -> None:
        episode = self.episodes[index]
        episode.truncated, episode.truncation = True, reason
        self._finish(index)

    def _fail(self, index: int, error: BaseException) -> None:
        episode = self.episodes[index]
        episode.failure = Failure.of(error)
        episode.env = None  # it broke, so that it does not go back into the pool
        self._finish(index)

    def _finish(self, index: int) -> None:
        episode = self.episodes.pop(index)
        episode.seconds = time.perf_counter() - self.started.pop(index)
        record_end(episode, self.budget.max_tokens)
        del self.deadlines[index]
        self.begun.pop(index, None)
        if episode.env is not None:
            self.runner._envs.give(episode.spec.env_id, episode.spec.env_kwargs, episode.env)
            episode.env = None
        if self.on_end is not None:
            self.on_end(episode)
        self.enough = self.enough or self.until()
