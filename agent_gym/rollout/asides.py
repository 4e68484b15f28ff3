"""What completes the rewards of episodes that have ended, and the requests to the policy that this may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agent_gym.errors import ConfigError
from agent_gym.policies.base import Generation, Policy, Request, SamplingParams

if TYPE_CHECKING:
    from agent_gym.rollout.episode import Episode, EpisodeSpec
    from agent_gym.rollout.runner import Rollout

OnEnd = Callable[["Episode"], None]


class Judging(Protocol):
    """Completes rewards after episodes have ended, while others are played (`agent_gym.judges`)."""

    def follow(self, rollout: Rollout, specs: Sequence[EpisodeSpec], on_end: OnEnd) -> OnEnd:
        """Return what is called with each of these episodes as it ends, in the thread that plays.

        It has `on_end` called, in that thread, once the reward is complete: now or by `Rollout.later`.
        """

    def describe(self) -> dict[str, Any]:
        """Return what has to be equal for rewards to be comparable, as JSON."""

    def spent(self) -> Counter[str]:
        """Return what judging has cost so far, by name; from any thread."""


class Aside(NamedTuple):
    """A prompt that belongs to no episode, and who waits for the answer."""

    prompt_ids: list[int]
    params: SamplingParams
    answer: Future[Generation]


class Asides:
    """The prompts of a rollout's policy that belong to no episode. All methods are for the thread that plays."""

    def __init__(self, policy: Policy, numbers: Iterator[int]) -> None:
        self._policy, self._numbers = policy, numbers
        self._pending: dict[int, Aside] = {}

    def submit(self, aside: Aside) -> None:
        number = next(self._numbers)
        try:
            self._policy.submit(Request(number, aside.prompt_ids, aside.params))
        except ConfigError as error:  # for example, the prompt is too long
            return aside.answer.set_exception(error)
        self._pending[number] = aside

    def take(self, generation: Generation) -> None:
        """Hand over an answer, unless it was interrupted: then the prompt is submitted again by `go_on`."""
        if generation.finish_reason != "abort" and (aside := self._pending.pop(generation.id, None)):
            aside.answer.set_result(generation)

    def pause(self) -> None:
        for number in self._pending:
            self._policy.abort(number)

    def go_on(self) -> None:
        pending, self._pending = self._pending, {}
        for aside in pending.values():
            self.submit(aside)

    def abandon(self) -> None:
        self.pause()
        for aside in self._pending.values():
            aside.answer.cancel()
        self._pending = {}
