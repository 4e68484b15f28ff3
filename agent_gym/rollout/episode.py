"""What a rollout produces: episodes, made of steps (what happened) and rows (what the model saw).

A step is one turn of the step-level MDP: an action, the world's answer, a reward. A row is one token sequence that the
model saw, with its spans. An episode whose context only grows has one row that holds all of its actions; an
episode whose context was rewritten has as many rows as contexts. Each step names its row and its place in it, so
that rewards and advantages follow the steps whatever the rows look like. Which tokens are the policy's is decided by
the spans alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

import gymnasium

from agent_gym.images import Shown
from agent_gym.rollout.failures import Failure
from agent_gym.transcript import Span, action_mask

StepKind = Literal["act", "summary"]


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides an episode before it starts.

    Attributes:
        env_id: the Gymnasium id.
        env_kwargs: arguments of `gymnasium.make`.
        seed: the environment's seed. Members of a group share it, so that they face the same start.
        split: the split of the task, or None for the environment's default.
        index: the task within the split, or None to let the seed pick.
        group: episodes of one group answer the same task and are compared with each other.
        member: the place within the group.
        sampling_seed: seeds the policy's sampling in this episode, turn by turn; None leaves it to the engine.
        source: the number of the task's source in a mixture of data sets.
        greedy: the policy takes its most likely token in this episode, whatever the temperature of the rollout.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    split: str | None = None
    index: int | None = None
    group: int = 0
    member: int = 0
    sampling_seed: int | None = None
    source: int = 0
    greedy: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The `options` of `reset`."""
        picked = {"split": self.split, "index": self.index}
        return {key: value for key, value in picked.items() if value is not None}


@dataclass(slots=True)
class Row:
    """One token sequence as the model saw it.

    Attributes:
        token_ids: (T,) ids.
        spans: token spans that tile `[0, T)`.
        logprobs: (T,) logprob of each token of the policy under the weights that sampled it, 0.0 elsewhere.
        images: those that the row shows, in their order.
    """

    token_ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Shown] = field(default_factory=list)

    def extend(
        self, ids: Sequence[int], spans: Sequence[Span], logprobs: Sequence[float] = (), images: Sequence[Shown] = ()
    ) -> None:
        """Append what one call of the environment reported.

        Args:
            ids: (n,) new ids.
            spans: their spans, which tile the ids; the positions may be those of any transcript.
            logprobs: logprobs of the first `len(logprobs)` ids; those of tokens outside the policy's spans are dropped.
            images: where the ids show images.
        """
        self.images += [image.moved(len(self.token_ids)) for image in images]
        length, first = len(self.token_ids), spans[0].start if spans else 0
        new = [Span(s.start - first, s.stop - first, s.source, s.step) for s in spans]
        known = [*logprobs, *[0.0] * (len(ids) - len(logprobs))]
        mask = action_mask(new, len(ids))
        self.token_ids += ids
        self.spans += [s._replace(start=s.start + length, stop=s.stop + length) for s in new]
        self.logprobs += [value if mine else 0.0 for value, mine in zip(known, mask, strict=True)]

    def cut(self, length: int) -> None:
        """Drop everything from position `length` on, and from the beginning of an image that would be cut."""
        length = min([length, *(image.start for image in self.images if image.stop > length)])
        self.images = [image for image in self.images if image.stop <= length]
        del self.token_ids[length:], self.logprobs[length:]
        kept = [Span(s.start, min(s.stop, length), s.source, s.step) for s in self.spans if s.start < length]
        self.spans[:] = kept

    @property
    def action_mask(self) -> list[bool]:
        """(T,) True where the policy sampled the token."""
        return action_mask(self.spans, len(self.token_ids))

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first sampled one; T if there is none."""
        return next((s.start for s in self.spans if s.source == "agent"), len(self.token_ids))


@dataclass(slots=True)
class Step:
    """One turn: what the policy did and what it got.

    Attributes:
        row: index of the row that holds the action.
        start: position of the first token of the turn in that row, as the engine sampled it.
        stop: position behind the last one. Which tokens in between are the policy's is for the row's spans to say.
        action: the action as the environment saw it.
        observation: the world's answer.
        reward: what the step earned.
        reward_terms: the same by name.
        tool_calls: records of the calls that ran.
        metrics: the environment's numbers.
        error: what the policy did wrong, if anything.
        finish_reason: why generation stopped: "stop", "stop_string" or "length".
        env_seconds: time inside `env.step`.
        process_reward: the part of `reward` that judges this step and not the outcome (`TextEnv.process_terms`).
        versions: which weights sampled the policy's tokens of the step, as runs of (version, number of tokens): the
            optimizer step that made them, several where the turn was interrupted and went on under newer ones.
        kind: "act", or "summary" for a turn in which the policy condensed its own context and the environment took no
            part; its reward is 0.
    """

    row: int
    start: int
    stop: int
    action: str
    observation: str
    reward: float
    reward_terms: dict[str, float]
    tool_calls: list[dict[str, Any]]
    metrics: dict[str, float]
    error: str | None
    finish_reason: str
    env_seconds: float
    process_reward: float = 0.0
    kind: StepKind = "act"
    versions: list[tuple[int, int]] = field(default_factory=list)


def _call(function: Callable[[], Any]) -> Any:
    return function()


@dataclass(slots=True)
class Episode:
    """One episode, live or finished.

    Attributes:
        spec: what decided it.
        rows: what the model saw.
        steps: what happened.
        messages: the opening messages, then those of each step: the whole conversation, whatever the rows show of it.
        tools: function schemas the policy was shown.
        stop: strings at which a turn may stop.
        task_id: the environment's name of the task.
        categories: kinds that the task is of, by name, such as {"level": "hard"}; where the environment says so.
        terminated: the task ended.
        truncated: we stopped it; `truncation` says why: "turns", "tokens" or "seconds".
        success: whether the task was solved.
        failure: the error of our machinery that ended it, if one did. Its reward is NaN and it is not trained on.
        seconds: wall-clock time from reset to end.
        env: the live environment, None once the episode is over.
        in_thread: calls a function in the thread of the environment, and returns or raises what it returns or raises;
            while the episode is live, nothing else may call the environment.
        asked: what the policy is asked for while the episode is live, an action or a summary; scripts may want to know.
    """

    spec: EpisodeSpec
    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    stop: tuple[str, ...] = ()
    task_id: str = ""
    categories: dict[str, str] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    truncation: str | None = None
    success: bool = False
    failure: Failure | None = None
    seconds: float = 0.0
    env: gymnasium.Env[str, str] | None = None
    in_thread: Callable[[Callable[[], Any]], Any] = _call
    asked: StepKind = "act"

    def release(self) -> None:
        """Let the environment and its thread go."""
        self.env, self.in_thread = None, _call

    @property
    def reward(self) -> float:
        """The sum of the step rewards, NaN for a failed episode."""
        return math.nan if self.failure else sum(step.reward for step in self.steps)

    @property
    def reward_terms(self) -> dict[str, float]:
        """The sum of each reward term over the steps."""
        totals: dict[str, float] = {}
        for step in self.steps:
            for name, value in step.reward_terms.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    @property
    def turns(self) -> int:
        """How many turns the environment answered; summaries are steps, but no turns."""
        return sum(step.kind == "act" for step in self.steps)

    @property
    def opening(self) -> list[dict[str, Any]]:
        """The messages before the policy's first turn."""
        return list(takewhile(lambda message: message["role"] != "assistant", self.messages))

    @property
    def last_answers(self) -> list[dict[str, Any]]:
        """The messages behind the policy's last turn."""
        return list(takewhile(lambda message: message["role"] != "assistant", reversed(self.messages)))[::-1]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens are the policy's, by the spans of all rows."""
        return sum(span.stop - span.start for row in self.rows for span in row.spans if span.source == "agent")
