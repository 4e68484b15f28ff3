"""`Runner`: what rollouts share, and the plain way to play one. The loop itself is in loop.py.

A crash inside an environment ends one episode (`Episode.failure`, reward NaN). A crash of the engine is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.policies.base import Policy
from agent_gym.rollout.budget import Budget, RolloutStats
from agent_gym.rollout.contexts import Context, make_context, tighten
from agent_gym.rollout.env_processes import EnvProcesses
from agent_gym.rollout.envs import EnvPool
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.failures import check_failures
from agent_gym.rollout.loop import Loop
from agent_gym.workers import Workers


class Runner:
    """Runs episodes with one policy, keeping worker threads and environments between rollouts.

    Args:
        policy: submits ids, gets sampled ids with logprobs.
        tokenizer: a tokenizer or `ChatRenderer`.
        budget: limits of each episode.
        context: what the policy sees next, by name ("append", "window:4", see `contexts.CONTEXTS`) or as an object.
        workers: threads that run environments.
        env_processes: processes that run them instead, while the threads wait; 0 for none. For environments that
            compute in Python or are not thread-safe.
        max_live: episodes alive at the same time, which bounds the number of environments.
        progress: show a progress bar.

    Attributes:
        version: of the policy's weights, which every token it samples is marked with. A trainer sets it when it hands
            over weights.
        stats: where the time of the last rollout went.

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
        env_processes: int = 0,
        max_live: int = 512,
        progress: bool = False,
    ) -> None:
        """Start the worker threads."""
        self.policy = policy
        self.renderer = ChatRenderer.of(tokenizer)
        self.context = make_context(context)
        self.budget = budget or Budget()
        self.stats = RolloutStats()
        self.version = 0
        self._envs = EnvPool(self.renderer)
        if env_processes:
            self._envs = EnvProcesses(self.renderer, env_processes, lambda: self.budget.max_seconds)
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

    def run(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        temperature: float = 1.0,
        on_end: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Play one episode per spec.

        Args:
            specs: what to play.
            temperature: of the policy's sampling; 0 is greedy.
            on_end: called with each episode as it ends, in this thread, for example to write it down.

        Returns:
            The episodes in the order of the specs, failed ones included.

        Raises:
            RolloutError: if every episode failed, since the cause is then in the set-up and not in an episode.
        """
        episodes = self.run_share(specs, temperature=temperature, on_end=on_end)
        check_failures([episode.failure for episode in episodes])
        return episodes

    def run_share(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        temperature: float = 1.0,
        on_end: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Play one process's share of a rollout: as `run`, but all of it may fail while other processes succeed.

        Whoever divides a rollout among processes calls `check_failures` for all of them together.
        """
        loop = Loop(self)
        episodes = loop.add(specs)
        loop.play(temperature, on_end=on_end)
        self.stats = loop.stats
        return episodes

    def close(self) -> None:
        """Stop the workers and close the environments. The policy stays open: it belongs to the caller."""
        self._workers.close()
        self._envs.close()
