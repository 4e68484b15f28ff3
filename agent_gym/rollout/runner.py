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
from typing import Any

from tqdm import tqdm

from agent_gym.chat import ChatRenderer
from agent_gym.env import Sampled
from agent_gym.errors import ConfigError, EnvFailure, RolloutError
from agent_gym.policies.base import Generation, Policy, Request, SamplingParams
from agent_gym.rollout.budget import Budget, RolloutStats, derive_seed
from agent_gym.rollout.envs import EnvPool
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.workers import Workers


class Runner:
    """Runs episodes with one policy, keeping worker threads and environments between rollouts.

    Args:
        policy: submits ids, gets sampled ids with logprobs.
        tokenizer: a tokenizer or `ChatRenderer`.
        budget: limits of each episode.
        workers: threads that run environments.
        max_live: episodes alive at the same time, which bounds the number of environments.
        progress: show a progress bar.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        budget: Budget | None = None,
        *,
        workers: int = 32,
        max_live: int = 512,
        progress: bool = False,
    ) -> None:
        """Start the worker threads."""
        self.policy = policy
        self.renderer = ChatRenderer.of(tokenizer)
        self.budget = budget or Budget()
        self.stats = RolloutStats()
        self._envs = EnvPool(self.renderer)
        self._workers = Workers(workers)
        self._max_live = max_live
        self._progress = progress

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
        self.budget = runner.budget
        self.temperature = temperature
        self.episodes = [Episode(spec) for spec in specs]
        self.stats = RolloutStats()
        self.waiting = list(range(len(specs)))[::-1]  # not started yet; popped from the end, so in order
        self.deadlines: dict[int, float] = {}  # live episodes and when their time is up
        self.started: dict[int, float] = {}
        self.in_env: set[int] = set()
        self.requests: dict[int, int] = {}  # request id -> episode
        self.answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
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
            if self.policy.pending and (self.continuous or not self.in_env):
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
        self._launch(index, self._reset, self.episodes[index])

    def _launch(self, index: int, function: Any, *args: Any) -> None:
        self.in_env.add(index)

        def work() -> None:
            try:
                self.answers.put((index, function(*args)))
            except BaseException as error:  # whatever an environment raises ends this episode; SystemExit, too
                self.answers.put((index, error))

        self.runner._workers.submit(work)

    def _reset(self, episode: Episode) -> tuple[Any, ...]:
        spec = episode.spec
        env = self.runner._envs.take(spec.env_id, spec.env_kwargs)
        _, info = env.reset(seed=spec.seed, options=spec.options)
        return env, info

    def _step(self, episode: Episode, generation: Generation) -> tuple[Any, ...]:
        env = episode.env
        assert env is not None
        text = self.runner.renderer.decode_action(generation.token_ids)
        tick = time.perf_counter()
        answer = env.step(Sampled(text, generation.token_ids, generation.logprobs))
        return generation, text, time.perf_counter() - tick, answer

    def _collect_answers(self) -> None:
        block = bool(self.in_env) and not (self.policy.pending and self.continuous)
        while self.in_env:
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
            index, answer = item
            if index not in self.deadlines:  # its time ran out while the environment worked
                continue
            self.in_env.discard(index)
            self._take_answer(index, answer)

    def _take_answer(self, index: int, answer: Any) -> None:
        episode = self.episodes[index]
        if isinstance(answer, ConfigError):
            raise answer  # the user's mistake is the same for every episode: say it once, at once
        if isinstance(answer, BaseException):
            self._fail(index, answer)
        elif not episode.rows:
            episode.env, info = answer
            episode.messages += info["messages"]
            episode.tools, episode.stop, episode.task_id = info["tools"], tuple(info["stop"]), info["task_id"]
            row = Row()
            row.extend(info["token_ids"], info["token_spans"])
            episode.rows.append(row)
            self._ask(index)
        else:
            self._record(index, *answer)

    def _record(self, index: int, generation: Generation, text: str, seconds: float, answer: Any) -> None:
        episode = self.episodes[index]
        observation, reward, terminated, truncated, info = answer
        row, sampled = episode.rows[-1], generation.token_ids
        if info["token_ids"][: len(sampled)] != list(sampled):
            self._fail(index, EnvFailure("the environment did not report the sampled ids it was given"))
            return
        start = len(row.token_ids)
        row.extend(info["token_ids"], info["token_spans"], generation.logprobs)
        episode.messages += info["messages"]
        episode.steps.append(
            Step(
                row=len(episode.rows) - 1,
                start=start,
                stop=start + len(sampled),
                action=text,
                observation=observation,
                reward=reward,
                reward_terms=info["reward_terms"],
                tool_calls=info["tool_calls"],
                metrics=info["metrics"],
                error=info["error"],
                finish_reason=generation.finish_reason,
                env_seconds=seconds,
                process_reward=info.get("process_reward", 0.0),
            )
        )
        episode.success = bool(info.get("is_success", False))
        if terminated:
            episode.terminated = True
            self._finish(index)
        elif truncated:
            self._truncate(index, "turns")
        else:
            self._ask(index)

    def _ask(self, index: int) -> None:
        """Ask the policy for the next turn, unless a budget is used up."""
        episode = self.episodes[index]
        row = episode.rows[-1]
        room = self.budget.max_tokens - len(row.token_ids)
        if self.budget.max_turns is not None and len(episode.steps) >= self.budget.max_turns:
            self._truncate(index, "turns")
        elif room <= 0:
            if not episode.steps:
                limit = self.budget.max_tokens
                self._fail(index, EnvFailure(f"the prompt has {len(row.token_ids)} tokens, max_tokens is {limit}"))
                return
            self._truncate(index, "tokens")
        else:
            seed = episode.spec.sampling_seed
            params = SamplingParams(
                max_tokens=min(room, self.budget.max_turn_tokens),
                temperature=self.temperature,
                stop=episode.stop,
                seed=None if seed is None else derive_seed(seed, len(episode.steps)),
            )
            self.n_requests += 1
            self.requests[self.n_requests] = index
            tick = time.perf_counter()
            self.policy.submit(Request(self.n_requests, list(row.token_ids), params, episode))
            self.stats.engine_seconds += time.perf_counter() - tick

    def _act(self, generation: Generation) -> None:
        index = self.requests.pop(generation.id, None)
        if index is not None:
            self._launch(index, self._step, self.episodes[index], generation)

    def _expire(self) -> None:
        if self.budget.max_seconds is None:
            return
        now = time.perf_counter()
        for index in [i for i, deadline in self.deadlines.items() if deadline <= now]:
            episode = self.episodes[index]
            if index in self.in_env:
                # The thread cannot be stopped, so the environment is given up, and the episode counts as broken: the
                # policy did nothing wrong.
                self.in_env.discard(index)
                self.runner._workers.replace_one()
                self._fail(index, EnvFailure(f"no answer from the environment in {self.budget.max_seconds} s"))
                continue
            for request in [r for r, i in self.requests.items() if i == index]:
                self.policy.abort(request)
                del self.requests[request]
            if episode.steps:
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
        if episode.steps:
            # What the world said beyond the budget is an answer that nobody will read.
            episode.rows[-1].cut(max(episode.steps[-1].stop, self.budget.max_tokens))
        del self.deadlines[index]
        if episode.env is not None:
            self.runner._envs.give(episode.spec.env_id, episode.spec.env_kwargs, episode.env)
            episode.env = None
