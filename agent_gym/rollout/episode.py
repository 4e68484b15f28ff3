"""What a rollout produces: episodes, made of steps (what happened) and rows (what the model saw).

A step is one turn of the step-level MDP: an action, the world's answer, a reward. A row is one token sequence that the
model saw, with its spans. An episode whose context only grows has one row that holds all of its actions; an episode
whose context was rewritten has as many rows as contexts. Each step names its row and its place in it, so that rewards
and advantages follow the steps whatever the rows look like. Which tokens are the policy's the spans alone decide.

Rows and steps are written by the methods of `Episode` alone, in the thread that drives the engine: an episode whose
time has run out stays as it was, however late its environment answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import call
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, get_args

import gymnasium

from agent_gym.errors import MAX_REWARD, EnvFailure, described, plain_number, plain_numbers
from agent_gym.images import Shown
from agent_gym.transcript import PROMPT_STEP, Source, Span, action_mask, check_tiling

if TYPE_CHECKING:
    from agent_gym.policies.base import Generation
    from agent_gym.rollout.failures import Failure

StepKind = Literal["act", "summary"]
_BUG = "This is a mistake in the environment's code"


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
        return {key: value for key, value in (("split", self.split), ("index", self.index)) if value is not None}


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
        stop: position behind the last one. Which tokens in between are the policy's is decided by the row's spans.
        action: the action as the environment saw it.
        observation, reward, reward_terms, tool_calls, metrics, error: what the environment answered, see `Reply`.
        finish_reason: why generation stopped: "stop", "stop_string" or "length".
        env_seconds: time inside `env.step`.
        process_reward: the part of `reward` that judges this step and not the outcome (`TextEnv.process_terms`).
        versions: which weights sampled the policy's tokens of the step, as runs of (version, number of tokens): the
            optimizer step that made them, several where the turn was interrupted and went on under newer ones.
        kind: "act", or "summary" where the policy condensed its own context, with a reward of 0.
    """

    row: int
    start: int
    stop: int
    action: str
    observation: str = ""
    reward: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    finish_reason: str = "stop"
    env_seconds: float = 0.0
    process_reward: float = 0.0
    kind: StepKind = "act"
    versions: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Episode:
    """One episode, live or finished.

    Attributes:
        spec: what decided it.
        rows, steps: what the model saw, and what happened.
        messages: the whole conversation, whatever the rows show of it.
        tools: function schemas the policy was shown.
        stop: strings at which a turn may stop.
        task_id, categories: the environment's name of the task, and kinds that it is of, such as {"level": "hard"}.
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
    in_thread: Callable[[Callable[[], Any]], Any] = call
    asked: StepKind = "act"

    def open(self, env: gymnasium.Env[str, str], info: Mapping[str, Any], images: Sequence[Shown] = ()) -> None:
        """Begin the first row with what `env.reset` reported, and the images in it.

        Raises:
            EnvFailure: if the info lacks a field, or one cannot be read, or the spans are wrong, see `reported_spans`.
        """
        self.env = env
        with _reading("reset"):
            spans = reported_spans(info, PROMPT_STEP, f"{self.spec.env_id}, opening")
            row = Row()
            row.extend(info["token_ids"], spans, images=images)
            self.tools, self.stop, self.task_id = info["tools"], tuple(info["stop"]), info["task_id"]
            self.categories = dict(info.get("categories", {}))
            self.messages += info["messages"]
        self.rows.append(row)

    def record(
        self,
        sampled: Generation,
        text: str,
        answer: tuple[str, SupportsFloat, bool, bool, dict[str, Any]],
        seconds: float,
        images: Sequence[Shown] = (),
    ) -> None:
        """Add a step that the environment has answered: its ids to the last row, its reward to the steps.

        Args:
            sampled: the turn.
            text: the same, decoded.
            answer: what `env.step` returned.
            seconds: how long that took.
            images: what the answer shows, from the first sampled token on.

        Raises:
            EnvFailure: as `open`, and if the environment reports other ids than those it was given. Nothing is added
                then.
        """
        observation, reward, *_, info = answer
        row, n, where = self.rows[-1], len(sampled.token_ids), f"{self.spec.env_id}, turn {self.turns}"
        with _reading("step"):
            ids, messages = info["token_ids"], [*info["messages"]]
            if ids[:n] != list(sampled.token_ids):
                raise EnvFailure(f"{where}: the environment did not report the sampled ids it was given")
            # Steps are numbered here and not by the environment, which does not know of summaries.
            spans = reported_spans(info, len(self.steps), where, n)
            step = Step(
                row=len(self.rows) - 1,
                start=len(row.token_ids),
                stop=len(row.token_ids) + n,
                action=text,
                observation=observation,
                reward=plain_number(reward, "the reward", where, MAX_REWARD),
                reward_terms=plain_numbers(info["reward_terms"], "reward term", where),
                tool_calls=info["tool_calls"],
                metrics=plain_numbers(info["metrics"], "metric", where),
                error=info["error"],
                finish_reason=sampled.finish_reason,
                env_seconds=seconds,
                process_reward=plain_number(info.get("process_reward", 0.0), "process_reward", where, MAX_REWARD),
                versions=_versions(sampled, action_mask(spans, len(ids))),
            )
            success = bool(info.get("is_success", False))
        row.extend(ids, spans, sampled.logprobs, images)
        self.messages += messages
        self.steps.append(step)
        self.success = success

    def record_unanswered(self, sampled: Generation, text: str, kind: StepKind = "act") -> None:
        """Add a step that no environment has answered: a summary, or a turn in a chat."""
        row, n = self.rows[-1], len(sampled.token_ids)
        start = len(row.token_ids)
        row.extend(sampled.token_ids, [Span(0, n, "agent", len(self.steps))], sampled.logprobs)
        self.messages.append({"role": "assistant", "content": text})
        step = Step(len(self.rows) - 1, start, start + n, text, finish_reason=sampled.finish_reason, kind=kind)
        step.versions = sampled.versions
        self.steps.append(step)

    def replace_answer(self, token_ids: list[int]) -> None:
        """Let other words of the world follow the last sampled token."""
        row = self.rows[-1]
        row.cut(self.steps[-1].stop)
        row.extend(token_ids, [Span(0, len(token_ids), "env", len(self.steps) - 1)] if token_ids else [])

    def rewrite(self, token_ids: list[int], extends: bool) -> None:
        """Go on with a whole new context: in the same row if it agrees with that up to the last sampled token."""
        if extends:
            self.replace_answer(token_ids[self.steps[-1].stop :])
            return
        # One span and not many: turns that are quoted here were sampled elsewhere and must not be trained twice.
        row = Row()
        row.extend(token_ids, [Span(0, len(token_ids), "user", PROMPT_STEP)])
        self.rows.append(row)

    def end(self, max_tokens: int) -> None:
        """Drop what no turn came of, and let the environment go."""
        if self.steps:
            del self.rows[self.steps[-1].row + 1 :]
        for row, stop in {step.row: step.stop for step in self.steps}.items():
            # What the world said beyond the budget is an answer that nothing read in this row.
            self.rows[row].cut(max(stop, max_tokens))
        self.release()

    def release(self) -> None:
        """Let the environment and its thread go."""
        self.env, self.in_thread = None, call

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


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Make an `EnvFailure` of errors in reading what an environment returned: one that is not as the contract says."""
    try:
        yield
    except EnvFailure:
        raise
    except KeyError as error:
        raise EnvFailure(f"the info of {what} has no {error}; the contract of TextEnv asks for it") from error
    except Exception as error:
        raise EnvFailure(f"what {what} returned cannot be read: {described(error)}") from error


def reported_spans(info: Mapping[str, Any], step: int, where: str, sampled: int = 0) -> list[Span]:
    """Return the token spans that one call of an environment reported, from 0 on: they are the loss mask.

    An environment may give sampled tokens to the world, for example a prefix that it forced, or a whole turn. It may
    not give the policy a token that the policy did not sample.

    Args:
        info: what `reset` or `step` returned.
        step: the number that the spans get.
        where: environment and turn, for the message.
        sampled: how many of the ids the policy sampled; they come first.

    Raises:
        EnvFailure: if the spans leave a gap, overlap or end elsewhere than the ids do, name an unknown source, or give
            the policy a token that it did not sample. The episode fails and not the run: it may depend on what was
            sampled.
    """
    n, reported = len(info["token_ids"]), info["token_spans"]
    try:
        first = reported[0][0] if reported else 0
        spans = [Span(start - first, stop - first, source, step) for start, stop, source, _ in reported]
        check_tiling(spans, n)
    except (TypeError, ValueError) as error:
        raise EnvFailure(
            f"{where}: info['token_spans'] must cover the {n} ids of info['token_ids'] in order: {error}. {_BUG}"
        ) from error
    for start, stop, source, _ in spans:
        if source not in get_args(Source):
            raise EnvFailure(
                f"{where}: info['token_spans'] names the source {source!r} of tokens {start} to {stop}; known: "
                f"{', '.join(get_args(Source))}. {_BUG}"
            )
        if source == "agent" and stop > max(start, sampled):
            raise EnvFailure(
                f"{where}: info['token_spans'] gives tokens {max(start, sampled)} to {stop} of info['token_ids'] to "
                f"the policy, which sampled only the first {sampled}. {_BUG}"
            )
    return spans


def _versions(sampled: Generation, mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the versions of the policy's own tokens, as runs."""
    authors = [version for version, count in sampled.versions for _ in range(count)]
    kept = [version for version, mine in zip(authors, mask, strict=False) if mine]
    return [(version, len(list(run))) for version, run in groupby(kept)]
