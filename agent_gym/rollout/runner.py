"""`Runner`: what rollouts share, and the plain way to play one (scheduler.py).

A crash inside an environment ends one episode (`Episode.failure`, reward NaN). A crash of the engine is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.policies.base import Policy
from agent_gym.rollout.budget import Budget, RolloutStats
from agent_gym.rollout.contexts import Context, make_context, tighten
from agent_gym.rollout.env_processes import EnvProcesses
from agent_gym.rollout.env_threads import EnvThreads
from agent_gym.rollout.envs import make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.failures import check_failures
from agent_gym.rollout.scheduler import Rollout


class Runner:
    """Runs episodes with one policy, keeping threads and environments between rollouts.

    Args:
        policy: submits ids, gets sampled ids with logprobs.
        tokenizer: a tokenizer or `ChatRenderer`.
        budget: limits of each episode.
        context: what the policy sees next, by name ("append", "window:4", see `contexts.CONTEXTS`) or as an object.
        workers: calls of environments that compute at the same time; those that wait for a server or a clock are not
            counted.
        env_processes: processes that run the environments, while the threads wait; 0 for none. For environments that
            compute in Python or are not thread-safe.
        max_live: episodes alive at the same time, each with an environment in a thread of its own.
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
        """Start nothing yet: threads come with the first episodes."""
        self.policy = policy
        self.renderer = ChatRenderer.of(tokenizer)
        self.context = make_context(context)
        self.budget = budget or Budget()
        self.stats = RolloutStats()
        self.version = 0
        self.max_live = max_live
        self.progress = progress
        self._processes: EnvProcesses | None = None
        if env_processes:
            self._processes = EnvProcesses(self.renderer, env_processes, lambda: self.budget.max_seconds)
        make = self._processes.make if self._processes else partial(make_env, tokenizer=self.renderer)
        self.threads = EnvThreads(make, max_live, workers)

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
        rollout = Rollout(self)
        episodes = rollout.add(specs)
        rollout.play(temperature, on_end=on_end)
        self.stats = rollout.stats
        return episodes

    def close(self) -> None:
        """Close the environments, each in its thread. The policy stays open: it belongs to the caller."""
        if self._processes is not None:
            self._processes.close()
        self.threads.close()
