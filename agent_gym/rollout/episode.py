"""The records of a rollout: episodes, made of steps (the turns) and rows (the tokens that the model saw).

An episode whose context only grows has one row; one whose context was rewritten has a row for each context, and one
in which the policy plays several roles has a row for each role. The spans of a row alone decide which tokens are the
policy's. live_episode.py writes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from agent_gym.images import Shown
from agent_gym.renamed import warn_of
from agent_gym.reply import sum_by_name
from agent_gym.transcript import Span, action_mask, check_tiling, kind_of

if TYPE_CHECKING:
    from agent_gym.rollout.failures import Failure

StepKind = Literal["act", "summary"]


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides an episode before it starts."""

    env_id: str  # an argument of `gymnasium.make`, as is the next
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0  # of the environment; members of a group share it, so that they face the same start
    split: str | None = None  # of the task, None for the environment's default
    index: int | None = None  # of the task in its split, None for the seed's
    group: int = 0  # episodes of one group answer the same task and are compared
    member: int = 0  # the place within the group
    sampling_seed: int | None = None  # seeds the policy's sampling, turn by turn; None leaves it to the engine
    source: int = 0  # the number of the task's source in a mixture of data sets
    greedy: bool = False  # the policy takes its most likely token, whatever the temperature of the rollout
    role: str = ""  # the one whose part of an episode this is, "" for the whole of it; see `by_role`

    @property
    def options(self) -> dict[str, Any]:
        """The `options` of `reset`."""
        return {key: value for key, value in (("split", self.split), ("index", self.index)) if value is not None}


@dataclass(slots=True)
class Row:
    """One token sequence as the model saw it: (T,) ids and images, with spans that tile `[0, T)`.

    `logprobs` (T,) belong to the policy's tokens under the weights that sampled them, 0.0 elsewhere.
    """

    token_ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Shown] = field(default_factory=list)

    def extend(
        self, ids: Sequence[int], spans: Sequence[Span], logprobs: Sequence[float] = (), images: Sequence[Shown] = ()
    ) -> None:
        """Append n ids with spans that tile `[0, n)`; logprobs of tokens outside the policy's spans are dropped."""
        check_tiling(spans, len(ids))
        length, known = len(self.token_ids), [*logprobs, *[0.0] * (len(ids) - len(logprobs))]
        self.token_ids += ids
        for start, stop, source, step in spans:
            self.spans.append(Span(start + length, stop + length, source, step))
            self.logprobs += known[start:stop] if kind_of(source) == "agent" else [0.0] * (stop - start)
        self.images += [image.moved(length) for image in images]

    def cut(self, length: int) -> None:
        """Drop everything from position `length` on, and from the beginning of an image that would be cut."""
        length = min([length, *(image.start for image in self.images if image.stop > length)])
        self.images = [image for image in self.images if image.stop <= length]
        del self.token_ids[length:], self.logprobs[length:]
        self.spans[:] = [span._replace(stop=min(span.stop, length)) for span in self.spans if span.start < length]

    @property
    def action_mask(self) -> list[bool]:
        """(T,) True where the policy sampled the token."""
        return action_mask(self.spans, len(self.token_ids))

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first sampled one; T if there is none."""
        return next((s.start for s in self.spans if kind_of(s.source) == "agent"), len(self.token_ids))


@dataclass(slots=True)
class Step:
    """One turn: the policy's action and the environment's answer."""

    row: int  # index of the row that holds the action
    start: int  # where the turn begins and stops in that row, as the engine sampled it
    stop: int
    action: str  # as the environment saw it
    observation: str = ""  # the environment's answer, as are the next five; see `Reply`
    reward: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    finish_reason: str = "stop"  # why generation stopped: "stop", "stop_string" or "length"
    env_seconds: float = 0.0  # inside `env.step`
    process_reward: float = 0.0  # the part of `reward` that judges the step, not the outcome (`TextEnv.process_terms`)
    kind: StepKind = "act"  # or "summary" where the policy condensed its own context, with a reward of 0
    # The optimizer step of the weights that sampled the policy's tokens, as runs of (version, number of tokens):
    # several where the turn was interrupted and resumed under newer ones.
    versions: list[tuple[int, int]] = field(default_factory=list)
    # The reward terms of each role in this turn, where the policy plays several; `reward` is the sum.
    role_terms: dict[str, dict[str, float]] = field(default_factory=dict)
    role_process: dict[str, float] = field(default_factory=dict)  # the same of `process_reward`


@dataclass(slots=True)
class Episode:
    """The record of one episode; `LiveEpisode` writes it while the episode is played."""

    spec: EpisodeSpec
    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)  # the whole conversation, whatever the rows show of it
    opened: int | None = None  # how many of them come before the policy's first turn; None in self-play
    tools: list[dict[str, Any]] = field(default_factory=list)  # function schemas that the policy was shown
    task_id: str = ""
    categories: dict[str, str] = field(default_factory=dict)  # kinds that the task is of, such as {"level": "hard"}
    terminated: bool = False  # the task ended
    truncated: bool = False  # a limit ended it
    truncation: str | None = None  # which one: "turns", "tokens" or "seconds"
    success: bool = False  # whether the task was solved
    failure: Failure | None = None  # the error of our machinery that ended it: its reward is NaN, it is not trained on
    seconds: float = 0.0  # wall-clock time from reset to end
    roles: tuple[str, ...] = ()  # the roles that the policy plays, where there are several (`PlayersEnv`)
    rows_of: dict[str, int] = field(default_factory=dict)  # the row of each role that has begun

    @property
    def reward(self) -> float:
        """The sum of the step rewards, NaN for a failed episode."""
        return math.nan if self.failure else sum(step.reward for step in self.steps)

    @property
    def reward_terms(self) -> dict[str, float]:
        return sum_by_name(step.reward_terms for step in self.steps)

    @property
    def turns(self) -> int:
        """How many turns the environment answered; summaries are steps, but no turns."""
        return [step.kind for step in self.steps].count("act")

    @property
    def initial_messages(self) -> list[dict[str, Any]]:
        """The messages before the policy's first turn; an agent may give it examples of turns there."""
        if self.opened is not None:
            return self.messages[: self.opened]
        return list(takewhile(lambda message: message["role"] != "assistant", self.messages))

    @property
    def opening(self) -> list[dict[str, Any]]:
        """The old name of `initial_messages`."""
        warn_of("Episode.opening", "initial_messages")
        return self.initial_messages

    @property
    def sampled_tokens(self) -> int:
        return sum(span.stop - span.start for row in self.rows for span in row.spans if kind_of(span.source) == "agent")


def episode_values(episode: Episode) -> dict[str, float]:
    """Return the numbers of one episode, by the names of the logs; a name that is missing is 0.

    `episode/parse_errors` are calls that could not be read or of a tool that is not there (`tool/invalid`), `env/...`
    the environment's own numbers at the last step.
    """
    values = {
        "episode/success": float(episode.success),
        "episode/turns": float(episode.turns),
        "episode/tokens": float(episode.sampled_tokens),
        "episode/truncated": float(episode.truncated),
        "episode/tool_calls": 0.0,
        "episode/parse_errors": 0.0,
    }
    values |= {f"reward/{term}": value for term, value in episode.reward_terms.items()}
    values |= {f"env/{name}": value for name, value in (episode.steps[-1].metrics if episode.steps else {}).items()}
    counts = []
    for name, call in _calls(episode):
        counts.append({"episode/tool_calls": 1.0, "episode/parse_errors": float(name == "invalid")})
        counts.append({f"tool/{name}/calls": 1.0, f"tool/{name}/errors": float(call["error"])})
    return sum_by_name([values, *counts])


def call_seconds(episode: Episode) -> dict[str, float]:
    """Return the seconds that the calls of each tool took, by the tool's name."""
    return sum_by_name({name: call["seconds"]} for name, call in _calls(episode))


def _calls(episode: Episode) -> Iterator[tuple[str, dict[str, Any]]]:
    known = {schema["function"]["name"] for schema in episode.tools}
    for step in episode.steps:
        for call in step.tool_calls:
            yield call["name"] if call["name"] in known or call.get("offered") else "invalid", call
