"""What a rollout produces: episodes, made of steps (what happened) and rows (what the model saw).

An episode whose context only grows has one row; one whose context was rewritten has a row for each context, and one
in which the policy plays several roles has a row for each role. The spans of a row alone decide which tokens are the
policy's. Rows and steps are written by the methods of `Episode` alone, in
the thread that drives the engine: an episode whose time is over stays as it was, however late its environment answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat, starmap, takewhile
from operator import call as call_here
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

import gymnasium

from agent_gym.errors import EnvFailure, described, whole_number
from agent_gym.images import Shown
from agent_gym.rewards import MAX_REWARD, plain_number, plain_numbers, sum_by_name
from agent_gym.transcript import KINDS, PROMPT_STEP, Span, action_mask, check_tiling, kind_of

if TYPE_CHECKING:
    from agent_gym.policies.base import Generation
    from agent_gym.rollout.failures import Failure

StepKind = Literal["act", "summary"]
_BUG = "This is a mistake in the environment's code"


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides an episode before it starts."""

    env_id: str  # what `gymnasium.make` gets, as is the next
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

    `logprobs` (T,) are those of the policy's tokens under the weights that sampled them, 0.0 elsewhere.
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
    """One turn: what the policy did and what it got."""

    row: int  # index of the row that holds the action
    start: int  # where the turn begins and stops in that row, as the engine sampled it
    stop: int
    action: str  # as the environment saw it
    observation: str = ""  # what the environment answered, as are the next five; see `Reply`
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
    # several where the turn was interrupted and went on under newer ones.
    versions: list[tuple[int, int]] = field(default_factory=list)
    # What each role earned with this turn, by term, where the policy plays several; `reward` is the sum.
    role_terms: dict[str, dict[str, float]] = field(default_factory=dict)
    role_process: dict[str, float] = field(default_factory=dict)  # the same of `process_reward`


@dataclass(slots=True)
class Episode:
    """One episode, live or finished."""

    spec: EpisodeSpec
    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)  # the whole conversation, whatever the rows show of it
    opened: int | None = None  # how many of them stand before the policy's first turn; None in self-play
    tools: list[dict[str, Any]] = field(default_factory=list)  # function schemas that the policy was shown
    stop: tuple[str, ...] = ()  # strings at which a turn may stop
    task_id: str = ""
    categories: dict[str, str] = field(default_factory=dict)  # kinds that the task is of, such as {"level": "hard"}
    terminated: bool = False  # the task ended
    truncated: bool = False  # a limit ended it
    truncation: str | None = None  # which one: "turns", "tokens" or "seconds"
    success: bool = False  # whether the task was solved
    failure: Failure | None = None  # the error of our machinery that ended it: its reward is NaN, it is not trained on
    seconds: float = 0.0  # wall-clock time from reset to end
    env: gymnasium.Env[str, str] | None = None  # the live environment, None once the episode is over
    # Calls a function in the thread of the environment; while the episode is live, nothing else may.
    in_thread: Callable[[Callable[[], Any]], Any] = call_here
    asked: StepKind = "act"  # the kind of the next step, while the episode is live
    at: int = -1  # index of the row that the policy sees, while the episode is live
    turn_tokens: int | None = None  # most tokens of the next turn, where the environment allows fewer than the budget
    rebuilds: bool = False  # whether the environment writes each prompt anew, by `TextEnv.situation`
    roles: tuple[str, ...] = ()  # those that the policy plays, where they are several (`PlayersEnv`)
    role: str = ""  # whose turn is next
    rows_of: dict[str, int] = field(default_factory=dict)  # the row of each role that has begun

    def open(self, env: gymnasium.Env[str, str], info: Mapping[str, Any], images: Sequence[Shown] = ()) -> None:
        """Begin the first row with what `env.reset` reported; `EnvFailure` if that cannot be read."""
        self.env = env
        with _reading("reset"):
            row, spans = Row(), reported_spans(info, PROMPT_STEP, f"{self.spec.env_id}, opening")
            row.extend(info["token_ids"], spans, images=images)
            self.tools, self.task_id = info["tools"], info["task_id"]
            self._limit_turns(info["stop"], info)
            self.categories = dict(info.get("categories", {}))
            self.rebuilds = bool(info.get("rebuilds"))
            self.roles, self.role = tuple(info.get("roles", ())), info.get("role", "")
            self._say(info["messages"])
        self.rows.append(row)
        if self.roles:
            self.rows_of[self.role] = 0
        else:
            self.opened = len(self.messages)

    def record(
        self,
        sampled: Generation,
        text: str,
        answer: tuple[str, SupportsFloat, bool, bool, dict[str, Any]],
        seconds: float,
        images: Sequence[Shown] = (),
    ) -> None:
        """Add a turn, decoded as `text`, that `env.step` answered in so many seconds.

        `images` are those that the ids show, counted from the first sampled one.

        Raises:
            EnvFailure: as `open`, and if the environment reports other ids than it was given. Nothing is added then.
        """
        observation, reward, *_, info = answer
        where = f"{self.spec.env_id}, turn {self.turns}"
        with _reading("step"):
            ids, messages = info["token_ids"], [*info["messages"]]
            step = self._step(sampled, text)
            if ids[: step.stop - step.start] != list(sampled.token_ids):
                raise EnvFailure(f"{where}: the environment did not report the sampled ids it was given")
            # Steps are numbered here and not by the environment, which does not know of summaries.
            spans = reported_spans(info, len(self.steps), where, len(sampled.token_ids))
            step.observation, step.env_seconds = observation, seconds
            step.reward = plain_number(reward, "the reward", where, MAX_REWARD)
            step.process_reward = plain_number(info.get("process_reward", 0.0), "process_reward", where, MAX_REWARD)
            step.reward_terms = plain_numbers(info["reward_terms"], "reward term", where)
            earned = info.get("role_terms", {})
            step.role_terms = {role: plain_numbers(terms, "reward term", where) for role, terms in earned.items()}
            step.role_process = plain_numbers(info.get("role_process", {}), "process reward of role", where)
            following = info.get("next")  # what another role reads, which acts next
            if following is not None:
                following_spans = reported_spans(following, self._last_step(following["role"]), where)
            step.metrics = plain_numbers(info["metrics"], "metric", where)
            step.tool_calls, step.error = info["tool_calls"], info["error"]
            # The weights that sampled each token, without the tokens that the environment gave to the world.
            authors = [*chain.from_iterable(starmap(repeat, sampled.versions))]
            kept = [v for span in spans if kind_of(span.source) == "agent" for v in authors[span.start : span.stop]]
            step.versions = [*Counter(kept).items()]  # these are runs, since weights only become newer
            success = bool(info.get("is_success", False))
            self._limit_turns(info.get("stop", self.stop), info)
        self.row.extend(ids, spans, sampled.logprobs, images)
        self._say(messages)
        self.steps.append(step)
        self.success = success
        if following is not None:
            self.role = following["role"]
            if self.role not in self.rows_of:
                self.rows_of[self.role] = len(self.rows)
                self.rows.append(Row())
            self.at = self.rows_of[self.role]
            self.row.extend(following["token_ids"], following_spans)
            self._say(following["messages"])

    def _last_step(self, role: str) -> int:
        """The index of a role's last step, `PROMPT_STEP` if it has none."""
        place = self.rows_of.get(role)
        return next((k for k in reversed(range(len(self.steps))) if self.steps[k].row == place), PROMPT_STEP)

    def _say(self, messages: Iterable[dict[str, Any]]) -> None:
        self.messages += [{**one, "player": self.role} for one in messages] if self.roles else messages

    def record_unanswered(self, sampled: Generation, text: str, kind: StepKind = "act") -> None:
        """Add a step that no environment has answered: a summary, or a turn in a chat."""
        step = self._step(sampled, text)
        step.kind, step.versions = kind, sampled.versions
        span = Span(0, len(sampled.token_ids), "agent", len(self.steps))
        self.row.extend(sampled.token_ids, [span], sampled.logprobs)
        self.messages.append({"role": "assistant", "content": text})
        self.steps.append(step)

    def _step(self, sampled: Generation, text: str) -> Step:
        start = len(self.row.token_ids)
        stop = start + len(sampled.token_ids)
        return Step(self.at % len(self.rows), start, stop, text, finish_reason=sampled.finish_reason)

    def _limit_turns(self, stop: Iterable[str], info: Mapping[str, Any]) -> None:
        most = info.get("max_tokens")
        self.stop, self.turn_tokens = tuple(stop), None if most is None else whole_number("max_tokens", most, 1)

    def replace_answer(self, token_ids: list[int]) -> None:
        """Let other words of the world follow the last sampled token of the row that the policy sees."""
        number = max(k for k, step in enumerate(self.steps) if step.row == self.at % len(self.rows))
        self.row.cut(self.steps[number].stop)
        self.row.extend(token_ids, [Span(0, len(token_ids), "env", number)] if token_ids else [])

    def rewrite(self, token_ids: list[int]) -> None:
        """Go on with a whole new context, in the row that agrees with it up to that row's last sampled token.

        Of several the one that agrees longest, of equals the newest; where there is none a new row begins. A row that
        is left may be gone on with later: conversations of one episode may take turns.
        """
        ends = {step.row: step.stop for step in self.steps}
        agreeing = [(stop, at) for at, stop in ends.items() if token_ids[:stop] == self.rows[at].token_ids[:stop]]
        if agreeing:
            stop, self.at = max(agreeing)
            return self.replace_answer(token_ids[stop:])
        # One span and not many: turns that are quoted here were sampled elsewhere and must not be trained twice.
        self.rows.append(Row())
        self.at = -1
        self.row.extend(token_ids, [Span(0, len(token_ids), "user", PROMPT_STEP)])

    def cut(self, max_tokens: int) -> None:
        """Drop rows and answers that no turn followed: a row without a step, and what stands beyond `max_tokens`."""
        if self.steps:
            del self.rows[max(step.row for step in self.steps) + 1 :]
        for row, stop in {step.row: step.stop for step in self.steps}.items():
            self.rows[row].cut(max(stop, max_tokens))

    def release(self) -> None:
        self.env, self.in_thread = None, call_here

    @property
    def row(self) -> Row:
        """The row that the policy sees."""
        return self.rows[self.at]

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
    def opening(self) -> list[dict[str, Any]]:
        """The messages before the policy's first turn; an agent may give it examples of turns there."""
        if self.opened is not None:
            return self.messages[: self.opened]
        return list(takewhile(lambda message: message["role"] != "assistant", self.messages))

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


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Make an `EnvFailure` of errors in reading what an environment returned."""
    try:
        yield
    except EnvFailure:
        raise
    except KeyError as error:
        raise EnvFailure(f"the info of {what} has no {error}; the contract of TextEnv asks for it") from error
    except Exception as error:
        raise EnvFailure(f"what {what} returned cannot be read: {described(error)}") from error


def reported_spans(info: Mapping[str, Any], step: int, where: str, sampled: int = 0) -> list[Span]:
    """Return the token spans that `reset` or `step` reported in its info, from 0 on: they are the loss mask.

    An environment may give sampled tokens to the world, for example a prefix that it forced.

    Raises:
        EnvFailure: if the spans do not tile the ids, name an unknown source, or give the policy other tokens than the
            first `sampled` ones.
    """
    n, reported = len(info["token_ids"]), info["token_spans"]
    try:
        first = reported[0][0] if reported else 0
        spans = [Span(start - first, stop - first, source, step) for start, stop, source, _ in reported]
        check_tiling(spans, n)
    except (TypeError, ValueError) as error:
        wrong = f"must cover the {n} ids of info['token_ids'] in order: {error}"
        raise EnvFailure(f"{where}: info['token_spans'] {wrong}. {_BUG}") from error
    for start, stop, source, _ in spans:
        if kind_of(source) not in KINDS:
            wrong = f"names the source {source!r} of tokens {start} to {stop}; known: {', '.join(KINDS)}"
        elif kind_of(source) == "agent" and stop > max(start, sampled):
            wrong = (
                f"gives tokens {max(start, sampled)} to {stop} of info['token_ids'] to the policy, which sampled only "
                f"the first {sampled}"
            )
        else:
            continue
        raise EnvFailure(f"{where}: info['token_spans'] {wrong}. {_BUG}")
    return spans
