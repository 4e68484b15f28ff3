"""The rollout loop: the only place where environments meet a policy.

Each episode advances on its own. When its generation is done, its action goes to the environment in a worker thread,
and when the environment has answered, its next request joins the running batch of the engine. There is no turn
barrier: a slow environment delays its own episode only, and the engine decodes as long as anybody has work for it.

    reset -> [submit -> (engine decodes) -> env.step in a worker] -> ... -> Episode

One thread (the caller's) drives the engine, since engines are not thread-safe; it never decodes text and never runs an
environment. What the loop costs besides engine and waiting is measured (`RolloutStats.overhead_seconds`).

A crash inside an environment ends one episode (`Episode.failure`, reward NaN). A crash of the engine is the caller's.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any, Literal

from tqdm import tqdm

from agent_gym.chat import ChatRenderer
from agent_gym.env import Sampled
from agent_gym.errors import ConfigError, EnvFailure, RolloutError
from agent_gym.policies.base import Generation, Policy, Request, SamplingParams
from agent_gym.rollout.budget import Budget, RolloutStats, derive_seed
from agent_gym.rollout.contexts import AskSummary, Context, NewContext, make_context, tighten
from agent_gym.rollout.envs import EnvPool
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.recording import (
    Turn,
    record_context,
    record_end,
    record_opening,
    record_request,
    record_summary,
    record_turn,
)
from agent_gym.rollout.workers import Workers

Stage = Literal["env", "context"]
"""What a worker does for an episode: run the environment, or read and render."""


class Runner:
    """Runs episodes with one policy, keeping worker threads and environments between rollouts.

    Args:
        policy: submits ids, gets sampled ids with logprobs.
        tokenizer: a tokenizer or `ChatRenderer`.
        budget: limits of each episode.
        context: what the policy sees next, by name ("append", "window:4", see `contexts.CONTEXTS`) or as an object.
        workers: threads that run environments.
        max_live: episodes alive at the same time, which bounds the number of environments.
        progress: show a progress bar.

    Raises:
        ConfigError: for a context policy that does not exist or wants more tokens than the budget has.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        budget: Budget | None = None,
        *,
        context: str | Context = "append",
        workers: int = 32,
        max_live: int = 512,
        progress: bool = False,
    ) -> None:
        """Start the worker threads."""
        self.policy = policy
        self.renderer = ChatRenderer.of(tokenizer)
        self.context = make_context(context)
        self.budget = budget or Budget()
        self.stats = RolloutStats()
        self._envs = EnvPool(self.renderer)
        self._workers = Workers(workers)
        self._max_live = max_live
        self._progress = progress

    @property
    def budget(self) -> Budget:
        """The limits of each episode; a context policy with a bound of its own tightens what it is set to."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = tighten(budget, self.context)

    def run(self, specs: Sequence[EpisodeSpec], *, temperature: float = 1.0) -> list[Episode]:
        """Play one episode per spec.

        Args:
            specs: what to play.
            temperature: of the policy's sampling; 0 is greedy.

        Returns:
            The episodes in the order of the specs, failed ones included.

        Raises:
            RolloutError: if every episode failed, since the cause is then in the set-up and not in an episode.
        """
        rollout = _Rollout(self, specs, temperature)
        try:
            rollout.drive()
        finally:
            rollout.abandon()
        self.stats = rollout.stats
        failures = [episode.failure for episode in rollout.episodes if episode.failure]
        if failures and len(failures) == len(specs):
            raise RolloutError(f"all {len(specs)} episodes failed; the first: {failures[0]}")
        return rollout.episodes

    def close(self) -> None:
        """Stop the workers and close the environments. The policy stays open: it belongs to the caller."""
        self._workers.close()
        self._envs.close()


class _Rollout:
    """The state of one call of `Runner.run`."""

    def __init__(self, runner: Runner, specs: Sequence[EpisodeSpec], temperature: float) -> None:
        self.runner = runner
        self.policy = runner.policy
        self.continuous = runner.policy.continuous
        self.context = runner.context
        self.budget = runner.budget
        self.temperature = temperature
        self.episodes = [Episode(spec) for spec in specs]
        self.stats = RolloutStats()
        self.waiting = list(range(len(specs)))[::-1]  # not started yet; popped from the end, so in order
        self.deadlines: dict[int, float] = {}  # live episodes and when their time is up
        self.started: dict[int, float] = {}
        self.busy: dict[int, Stage] = {}  # episodes that a worker is at
        self.requests: dict[int, int] = {}  # request id -> episode
        self.answers: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self.n_requests = 0
        self.bar = tqdm(total=len(specs), desc="episodes", disable=not runner._progress, leave=False)

    def drive(self) -> None:
        begin = time.perf_counter()
        while self.waiting or self.deadlines:
            while self.waiting and len(self.deadlines) < self.runner._max_live:
                self._start(self.waiting.pop())
            before = len(self.deadlines) + len(self.waiting)
            self._collect_answers()
            # An engine without continuous batching runs whatever it has to the end, so it is better handed a full
            # batch: it waits for the environments instead of starting with the first that answered.
            if self.policy.pending and (self.continuous or not self.busy):
                tick = time.perf_counter()
                finished = self.policy.poll()
                self.stats.engine_seconds += time.perf_counter() - tick
                for generation in finished:
                    self._act(generation)
            self._expire()
            self.bar.update(before - len(self.deadlines) - len(self.waiting))
        self.stats.wall_seconds = time.perf_counter() - begin
        self.stats.sampled_tokens = sum(episode.sampled_tokens for episode in self.episodes)

    def abandon(self) -> None:
        """Leave nothing in the engine, and the cursor on a line of its own, when the rollout was interrupted."""
        self.bar.close()
        for request in self.requests:
            self.policy.abort(request)

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
                    timeout = min(self.deadlines.values()) - tick
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
        return env, info

    def _step(self, episode: Episode, generation: Generation) -> Turn:
        env = episode.env
        assert env is not None
        text = self.runner.renderer.decode_action(generation.token_ids)
        tick = time.perf_counter()
        answer = env.step(Sampled(text, generation.token_ids, generation.logprobs))
        return Turn(generation, text, answer, time.perf_counter() - tick)

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
        record_opening(self.episodes[index], *answer)
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
        seed = episode.spec.sampling_seed
        params = SamplingParams(
            max_tokens=min(room, self.budget.max_turn_tokens),
            temperature=self.temperature,
            # These end an action; a summary may well quote one.
            stop=episode.stop if episode.asked == "act" else (),
            seed=None if seed is None else derive_seed(seed, len(episode.steps)),
        )
        self.n_requests += 1
        self.requests[self.n_requests] = index
        tick = time.perf_counter()
        self.policy.submit(Request(self.n_requests, list(row.token_ids), params, episode))
        self.stats.engine_seconds += time.perf_counter() - tick

    def _act(self, generation: Generation) -> None:
        index = self.requests.pop(generation.id, None)
        if index is None:
            return
        episode = self.episodes[index]
        if episode.asked == "act":
            self._launch(index, "env", self._take_turn, self._step, episode, generation)
        else:
            self._launch(index, "context", self._take_summary, self._read, generation)

    def _expire(self) -> None:
        if self.budget.max_seconds is None:
            return
        now = time.perf_counter()
        for index in [i for i, deadline in self.deadlines.items() if deadline <= now]:
            self._run_out(index)

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
        episode.failure = f"{type(error).__name__}: {error}"
        episode.env = None  # it broke, so that it does not go back into the pool
        self._finish(index)

    def _finish(self, index: int) -> None:
        episode = self.episodes[index]
        episode.seconds = time.perf_counter() - self.started[index]
        record_end(episode, self.budget.max_tokens)
        del self.deadlines[index]
        if episode.env is not None:
            self.runner._envs.give(episode.spec.env_id, episode.spec.env_kwargs, episode.env)
            episode.env = None
