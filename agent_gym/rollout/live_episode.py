"""An episode while it is played: the record, its environment, and the methods that write rows and steps.

Only the thread that drives the engine calls these methods. An episode that has ended therefore stays as it was, however
late its environment answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat, starmap
from operator import call as call_here
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium

from agent_gym.errors import EnvFailure, described, whole_number
from agent_gym.images import Shown
from agent_gym.reply import MAX_REWARD, plain_number, plain_numbers
from agent_gym.rollout.episode import Episode, Row, Step, StepKind
from agent_gym.transcript import KINDS, PROMPT_STEP, Span, check_tiling, kind_of

if TYPE_CHECKING:
    from agent_gym.policies.base import Generation

_BUG = "This is a mistake in the environment's code"


@dataclass(slots=True)
class LiveEpisode(Episode):
    """An episode that is played. Once it is over it is a record, without an environment."""

    stop: tuple[str, ...] = ()  # strings at which a turn may stop
    env: gymnasium.Env[str, str] | None = None  # the live environment, None once the episode is over
    # Calls a function in the thread of the environment; while the episode is live, nothing else may.
    in_thread: Callable[[Callable[[], Any]], Any] = call_here
    asked: StepKind = "act"  # the kind of the next step, while the episode is live
    at: int = -1  # index of the row that the policy sees, while the episode is live
    turn_tokens: int | None = None  # most tokens of the next turn, where the environment allows fewer than the budget
    rebuilds: bool = False  # whether the environment writes each prompt anew, by `TextEnv.state_prompt`
    role: str = ""  # whose turn is next

    def open(self, env: gymnasium.Env[str, str], info: Mapping[str, Any], images: Sequence[Shown] = ()) -> None:
        """Begin the first row with the info of `env.reset`; `EnvFailure` if that cannot be read."""
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
        generation: Generation,
        text: str,
        answer: tuple[str, SupportsFloat, bool, bool, dict[str, Any]],
        seconds: float,
        images: Sequence[Shown] = (),
    ) -> None:
        """Add a turn, decoded as `text`, that `env.step` answered in so many seconds.

        `images` are the images that the ids show, counted from the first sampled one.

        Raises:
            EnvFailure: as `open`, and if the environment reports other ids than it was given. Nothing is added then.
        """
        observation, reward, *_, info = answer
        where = f"{self.spec.env_id}, turn {self.turns}"
        with _reading("step"):
            ids, messages = info["token_ids"], [*info["messages"]]
            step = self._step(generation, text)
            if ids[: step.stop - step.start] != list(generation.token_ids):
                raise EnvFailure(f"{where}: the environment did not report the sampled ids it was given")
            # Steps are numbered here and not by the environment, which does not know of summaries.
            spans = reported_spans(info, len(self.steps), where, len(generation.token_ids))
            step.observation, step.env_seconds = observation, seconds
            step.reward = plain_number(reward, "the reward", where, MAX_REWARD)
            step.process_reward = plain_number(info.get("process_reward", 0.0), "process_reward", where, MAX_REWARD)
            step.reward_terms = plain_numbers(info["reward_terms"], "reward term", where)
            earned = info.get("role_terms", {})
            step.role_terms = {role: plain_numbers(terms, "reward term", where) for role, terms in earned.items()}
            step.role_process = plain_numbers(info.get("role_process", {}), "process reward of role", where)
            following = info.get("next")  # the text that the next role reads
            if following is not None:
                following_spans = reported_spans(following, self._last_step(following["role"]), where)
            step.metrics = plain_numbers(info["metrics"], "metric", where)
            step.tool_calls, step.error = info["tool_calls"], info["error"]
            # The weights that sampled each token, without the tokens that the environment gave to the world.
            authors = [*chain.from_iterable(starmap(repeat, generation.versions))]
            kept = [v for span in spans if kind_of(span.source) == "agent" for v in authors[span.start : span.stop]]
            step.versions = [*Counter(kept).items()]  # these are runs, since weights only become newer
            success = bool(info.get("is_success", False))
            self._limit_turns(info.get("stop", self.stop), info)
        self.row.extend(ids, spans, generation.logprobs, images)
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

    def record_unanswered(self, generation: Generation, text: str, kind: StepKind = "act") -> None:
        """Add a step that no environment has answered: a summary, or a turn in a chat."""
        step = self._step(generation, text)
        step.kind, step.versions = kind, generation.versions
        span = Span(0, len(generation.token_ids), "agent", len(self.steps))
        self.row.extend(generation.token_ids, [span], generation.logprobs)
        self.messages.append({"role": "assistant", "content": text})
        self.steps.append(step)

    def _step(self, generation: Generation, text: str) -> Step:
        start = len(self.row.token_ids)
        stop = start + len(generation.token_ids)
        return Step(self.at % len(self.rows), start, stop, text, finish_reason=generation.finish_reason)

    def _limit_turns(self, stop: Iterable[str], info: Mapping[str, Any]) -> None:
        most = info.get("max_tokens")
        self.stop, self.turn_tokens = tuple(stop), None if most is None else whole_number("max_tokens", most, 1)

    def replace_answer(self, token_ids: list[int]) -> None:
        """Let other words of the world follow the last sampled token of the row that the policy sees."""
        number = max(k for k, step in enumerate(self.steps) if step.row == self.at % len(self.rows))
        self.row.cut(self.steps[number].stop)
        self.row.extend(token_ids, [Span(0, len(token_ids), "env", number)] if token_ids else [])

    def rewrite(self, token_ids: list[int]) -> None:
        """Continue with a whole new context, in the row that agrees with it up to that row's last sampled token.

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
        """Drop rows and answers that no turn followed: a row without a step, and tokens beyond `max_tokens`."""
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


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Make an `EnvFailure` of errors in reading an environment's answer."""
    try:
        yield
    except EnvFailure:
        raise
    except KeyError as error:
        raise EnvFailure(f"the info of {what} has no {error}; the contract of TextEnv asks for it") from error
    except Exception as error:
        raise EnvFailure(f"what {what} returned cannot be read: {described(error)}") from error


def reported_spans(info: Mapping[str, Any], step: int, where: str, n_sampled: int = 0) -> list[Span]:
    """Return the token spans that `reset` or `step` reported in its info, from 0 on: they are the loss mask.

    An environment may give sampled tokens to the world, for example a prefix that it forced.

    Raises:
        EnvFailure: if the spans do not tile the ids, name an unknown source, or give the policy other tokens than the
            first `n_sampled` ones.
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
        elif kind_of(source) == "agent" and stop > max(start, n_sampled):
            wrong = (
                f"gives tokens {max(start, n_sampled)} to {stop} of info['token_ids'] to the policy, which sampled "
                f"only the first {n_sampled}"
            )
        else:
            continue
        raise EnvFailure(f"{where}: info['token_spans'] {wrong}. {_BUG}")
    return spans
