"""The run of an episode, in one coroutine: `EpisodeRun.run`.

    reset -> [sample -> env.step -> context] ... -> end

A coroutine waits for a call in the thread of its environment (`EnvCall`) or for the policy (`SampleRequest`). runner.py
arranges both and resumes the coroutine with the answer, as an event loop of asyncio would. It is not asyncio's loop,
because engines are polled. All of this runs in the thread that drives the engine, and only that thread writes rows and
steps. So nothing here needs a lock, or a barrier between turns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agent_gym.env import Sampled
from agent_gym.errors import ConfigError, EnvFailure, message_of
from agent_gym.images import Shown
from agent_gym.policies.base import Generation, Request, SamplingParams, cut_at_stop
from agent_gym.rollout.episode import Episode
from agent_gym.rollout.failures import Failure, RaisedElsewhere
from agent_gym.rollout.live_episode import LiveEpisode

if TYPE_CHECKING:
    from agent_gym.chat import ChatRenderer
    from agent_gym.rollout.env_threads import EnvThread
    from agent_gym.rollout.runner import Rollout


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one episode. Reaching one truncates the episode; nothing is lost."""

    max_turn_tokens: int = 512  # that the policy may sample in one turn
    max_tokens: int = 4096  # of one context, prompt and answers of the world included: of each row, not of their sum
    max_turns: int | None = None  # besides the environment's own limit; summaries do not count
    max_seconds: float | None = None  # wall-clock time from reset on

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ConfigError(f"{field.name} is {value}; it must be positive")


OnEnd = Callable[[Episode], None]
"""Called once with an episode that has ended, its reward complete, in the thread that drives the engine."""


class EpisodeSettings(NamedTuple):
    """The budget, temperature and callback with which an episode is played."""

    budget: Budget
    temperature: float  # 0 is greedy
    on_end: OnEnd


@dataclass(slots=True)
class RolloutStats:
    """Where the time of playing went: seconds of the driving thread."""

    wall_seconds: float = 0.0
    engine_seconds: float = 0.0  # inside the policy, that is its `submit` and `poll`
    wait_seconds: float = 0.0  # no generation was running, and environments or the judge were busy
    sampled_tokens: int = 0

    @property
    def overhead_seconds(self) -> float:
        return self.wall_seconds - self.engine_seconds - self.wait_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.sampled_tokens / self.wall_seconds if self.wall_seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the same under the names of the training log."""
        return {
            "time/rollout": self.wall_seconds,
            "time/engine": self.engine_seconds,
            "time/env_wait": self.wait_seconds,
            "time/rollout_overhead": self.overhead_seconds,
            "rollout/tokens_per_s": self.tokens_per_second,
        }


@dataclass(frozen=True, slots=True)
class NewContext:
    """The next context of the policy, as a whole: `token_ids` (T,), the prompt of the next turn.

    Ids that agree with the present row up to its last sampled token extend that row.
    """

    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class AskSummary:
    """The next turn is a summary and not an action.

    `token_ids` are the world's answer once more, now with the words of the request to summarise; they replace the
    tokens after the last sampled token of the row
    """

    token_ids: list[int]
    request: str


class Context(Protocol):
    """Decides the policy's next context. It keeps no state: it may look at everything in the episode.

    Each sampled token is trained once, in the row it was sampled in. A later row may quote it in its prompt.
    """

    @property
    def tokens(self) -> int | None:
        """A bound on each context below the budget's `max_tokens`, None for the budget's own."""
        return None

    def is_due(self, episode: LiveEpisode, budget: Budget) -> bool:
        """Whether the next turn may need another context than the present row; by default each may.

        Called in the thread that drives the engine: compare numbers, and neither render nor tokenise.
        """
        return True

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext | AskSummary | None:
        """Return the policy's next context; None continues the present row.

        Called in the episode's thread, after at least one step. It must not change the episode.
        """


@dataclass(frozen=True, slots=True)
class RebuildContext(Context):
    """The environment writes each prompt itself (`TextEnv.state_prompt`), so that each turn is a row."""

    def rewrite(self, episode: LiveEpisode, renderer: ChatRenderer, budget: Budget) -> NewContext:
        return NewContext(env_attribute(episode, "prompt_ids")(env_attribute(episode, "state_prompt")()))


@dataclass(frozen=True, slots=True)
class AppendContext(RebuildContext):
    """Everything stays: one row per episode, and the engine's prefix cache is always warm.

    An environment whose protocol writes each prompt anew is asked for it.
    """

    def is_due(self, episode: LiveEpisode, budget: Budget) -> bool:
        return episode.rebuilds


def env_attribute(episode: LiveEpisode, name: str) -> Any:
    """Return an attribute of an episode's environment, below its wrappers."""
    assert episode.env is not None
    return episode.env.get_wrapper_attr(name)


class EpisodeRun:
    """One episode that is being played: its coroutine, its deadline, and the thread of its environment."""

    def __init__(self, episode: LiveEpisode, rollout: Rollout, thread: EnvThread, settings: EpisodeSettings) -> None:
        self.episode, self.rollout, self.thread, self.settings = episode, rollout, thread, settings
        self.budget = settings.budget
        # Times of `perf_counter`. If it still waits at `reminder`, a line is printed.
        self.started_at = self.waiting_since = self.reminder = time.perf_counter()
        limit = self.budget.max_seconds
        self.deadline = float("inf") if limit is None else self.started_at + limit
        self.pending: EnvCall | SampleRequest | None = None  # the call or sample that the coroutine waits for
        self.request_id = 0  # of the last request to the policy
        self.coroutine: Coroutine[EnvCall | SampleRequest, Any, None] = self.run()
        episode.in_thread = thread.run

    async def run(self) -> None:
        """Play the episode from reset to end."""
        episode, rollout = self.episode, self.rollout
        try:
            episode.open(*await self.call("reset", self.reset, env=True))
            if episode.roles and not isinstance(rollout.context, AppendContext):
                raise ConfigError(
                    f"{episode.spec.env_id} lets the policy play {', '.join(episode.roles)}, each with a context that "
                    "only grows: leave context out"
                )
            while self.room() > 0:
                turn = await self.sample()
                if episode.asked == "summary":
                    text = await self.call("summary", partial(self.decode, turn.token_ids))
                    episode.record_unanswered(turn, text, kind="summary")
                    episode.asked = "act"
                else:
                    step = partial(self.step, turn)
                    turn, text, answer, *rest = await self.call(f"step {episode.turns}", step, env=True)
                    episode.record(turn, text, answer, *rest)
                    _, _, episode.terminated, truncated, _ = answer
                    if episode.terminated:
                        return
                    if truncated or episode.turns == self.budget.max_turns:
                        return self.truncate("turns")
                if rollout.context.is_due(episode, self.budget):
                    rewrite = partial(rollout.context.rewrite, episode, rollout.renderer, self.budget)
                    self.change_context(await self.call("context", rewrite))
            self.truncate("tokens")
        except DeadlineExceeded:
            if episode.steps:
                return self.truncate("seconds")
            episode.failure = Failure("EnvFailure", f"no first turn in {self.budget.max_seconds} s")
        except RaisedElsewhere as error:
            episode.failure = error.failure
        except EnvFailure as error:
            episode.failure = Failure.of(error)

    async def sample(self) -> Generation:
        """Let the policy write one turn, to its end, however often playing is paused meanwhile.

        Sampled tokens stay: the beginning becomes part of the prompt, and each token keeps the logprob and the version
        of the weights that sampled it. Importance sampling corrects for weights that change during a turn.
        """
        turn: Generation | None = None
        while turn is None or turn.finish_reason == "abort":
            piece = await wait(SampleRequest(turn.token_ids if turn else ()))
            if piece.error is not None:
                raise EnvFailure(message_of(piece.error)) from piece.error
            if piece.token_ids or piece.finish_reason != "abort":
                piece.versions = [(self.rollout.runner.version, len(piece.token_ids))]
            self.rollout.stats.sampled_tokens += len(piece.token_ids)
            turn = turn.joined(piece) if turn else piece
        return turn

    async def call(self, name: str, function: Callable[[], Any], *, env: bool = False) -> Any:
        """Run a function in the episode's thread. Time that runs out in the environment is a failure."""
        try:
            answer, error = await wait(EnvCall(name, function))
        except DeadlineExceeded:
            if not env:
                raise
            message = f"no answer from the environment in {self.budget.max_seconds} s"
            raise RaisedElsewhere(Failure("EnvFailure", message)) from None
        if isinstance(error, ConfigError):
            raise error  # the user's mistake is the same for every episode: report it once, at once
        if error is not None:
            raise RaisedElsewhere(error)
        return answer

    def room(self) -> int:
        """How many tokens the context has left; `EnvFailure` if the prompt alone fills it."""
        limit, length = self.budget.max_tokens, len(self.episode.row.token_ids)
        if length >= limit and not self.episode.steps:
            cure = f"raise it above {length} (--max_tokens; max_episode_tokens of a trainer)"
            words = f"{cure}, or shorten the prompt (system_prompt, tools)"
            raise EnvFailure(f"the prompt has {length} tokens, max_tokens is {limit}: {words}")
        return limit - length

    def request(self, begun: Sequence[int]) -> Request:
        """Return the request for a turn, or for the rest of one; its id is `number`."""
        episode, rollout = self.episode, self.rollout
        seed = episode.spec.sampling_seed
        # The rest of a turn needs other random numbers than its beginning, whose numbers are used up.
        place = (len(episode.steps), len(begun)) if begun else (len(episode.steps),)
        params = SamplingParams(
            max_tokens=min(self.room(), self.budget.max_turn_tokens, episode.turn_tokens or sys.maxsize) - len(begun),
            temperature=0.0 if episode.spec.greedy else self.settings.temperature,
            stop=episode.stop if episode.asked == "act" else (),  # a summary may well quote a stop string
            seed=None if seed is None else derive_seed(seed, *place),
        )
        row, vision = episode.row, rollout.renderer.vision
        ids = [*row.token_ids, *begun]
        if vision is None:
            return Request(self.request_id, ids, params, episode)
        return Request(self.request_id, vision.readable(ids, row.images), params, episode, images=[*row.images])

    def truncate(self, reason: str) -> None:
        self.episode.truncated, self.episode.truncation = True, reason

    def change_context(self, change: NewContext | AskSummary | None) -> None:
        episode = self.episode
        if isinstance(change, AskSummary):
            episode.replace_answer(change.token_ids)
            episode.messages.append({"role": "user", "content": change.request})
            episode.asked = "summary"
        elif change is not None:
            episode.rewrite(change.token_ids)

    def slow_call_message(self, now: float, others: str) -> str:
        """Return a line about the environment's call that has not answered."""
        assert isinstance(self.pending, EnvCall)
        spec, waited, limit = self.episode.spec, now - self.waiting_since, self.budget.max_seconds
        task = self.episode.task_id or f"{spec.split or 'default'}/{'?' if spec.index is None else spec.index}"
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        end = "no max_seconds is set, so the rollout waits for it" if limit is None else f"max_seconds is {limit:g}"
        complaint = f"{self.pending.name} has not answered for {waited:.3g} s, since {clock}{others}"
        return f"{spec.env_id}, task {task}, seed {spec.seed}: {complaint}; {end}"

    # In the thread of the environment.

    def reset(self) -> tuple[Any, dict[str, Any], list[Shown]]:
        spec = self.episode.spec
        env = self.thread.env(spec)
        _, info = env.reset(seed=spec.seed, options=spec.options)
        return env, info, self.images_in(info)

    def step(self, turn: Generation) -> tuple[Any, ...]:
        env = self.episode.env
        assert env is not None
        turn = cut_at_stop(turn, self.episode.stop, self.decode)
        text = self.decode(turn.token_ids)
        tick = time.perf_counter()
        answer = env.step(Sampled(text, turn.token_ids, turn.logprobs))
        seconds = time.perf_counter() - tick
        return turn, text, answer, seconds, self.images_in(answer[-1], len(turn.token_ids))

    def images_in(self, info: dict[str, Any], n_sampled: int = 0) -> list[Shown]:
        vision = self.rollout.renderer.vision
        if vision is None:
            return []
        shown = vision.place(info["token_ids"][n_sampled:], info["messages"])
        rebuilds = info.get("rebuilds", self.episode.rebuilds)
        if shown and (rebuilds or not isinstance(self.rollout.context, AppendContext)):
            # The positions of images are known in rows that only grow, and not in text quoted or rendered again.
            cure = "an environment that writes each prompt anew can show none" if rebuilds else "leave context out"
            spec = self.episode.spec
            raise ConfigError(f"{spec.env_id} shows images, which only the context 'append' carries along: {cure}")
        return [image.moved(n_sampled) for image in shown]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.rollout.renderer.decode_action(token_ids)


class EnvCall(NamedTuple):
    """A function that runs in the thread of the environment; its result and its error are sent to the coroutine.

    The function reads the episode and never changes it: the deadline may pass while the function runs.
    """

    name: str
    function: Callable[[], Any]


class SampleRequest(NamedTuple):
    """A turn for the policy to sample, from the ids that it begins with; its `Generation` is sent to the coroutine."""

    begun: Sequence[int]


class SideRequest(NamedTuple):
    """A prompt for the policy that belongs to no episode, and the future that gets the answer."""

    prompt_ids: list[int]
    params: SamplingParams
    answer: Future[Generation]


class DeadlineExceeded(Exception):
    """The deadline of an episode has passed. It is thrown into the coroutine, wherever that waits."""


@types.coroutine
def wait(pending: EnvCall | SampleRequest) -> Generator[EnvCall | SampleRequest, Any, Any]:
    """Wait until the answer is sent, or an error is thrown."""
    return (yield pending)


def derive_seed(*parts: int) -> int:
    """Mix integers into one 31-bit seed; the same parts give the same seed everywhere."""
    # Not numpy's SeedSequence, which takes (3, 4) and (3, 4, 0) for the same.
    digest = hashlib.blake2b(",".join(str(int(part)) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
