"""Writing down what happened: rows, steps and messages of a live episode change here and nowhere else.

These functions run in the thread that drives the engine, on what workers and engine hand over, so that an episode whose
time has run out stays as it was, however late a worker comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple, SupportsFloat, get_args

import gymnasium

from agent_gym.errors import MAX_REWARD, EnvFailure, described, plain_number, plain_numbers
from agent_gym.images import Shown
from agent_gym.policies.base import Generation
from agent_gym.rollout.contexts import AskSummary
from agent_gym.rollout.episode import Episode, Row, Step, StepKind
from agent_gym.transcript import PROMPT_STEP, Source, Span, action_mask, check_tiling

_BUG = "This is a mistake in the environment's code"


class Turn(NamedTuple):
    """One answered turn, as a worker hands it over.

    Attributes:
        generation: what was sampled.
        text: the same, decoded.
        answer: what `env.step` returned.
        seconds: how long that took.
        images: what the answer shows, from the first sampled token on.
    """

    generation: Generation
    text: str
    answer: tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
    seconds: float
    images: Sequence[Shown] = ()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Make an `EnvFailure` of errors in reading what an environment returned: one that is not as the contract says."""
    try:
        yield
    except EnvFailure:
        raise
    except KeyError as error:
        raise EnvFailure(f"the info of {what} has no {error}; the contract of TextEnv asks for it") from error
    except Exception as error:
        raise EnvFailure(f"what {what} returned cannot be read: {described(error)}") from error


def record_opening(
    episode: Episode, env: gymnasium.Env[str, str], info: Mapping[str, Any], images: Sequence[Shown] = ()
) -> None:
    """Begin the first row with what `env.reset` returned, and the images in it.

    Raises:
        EnvFailure: if the info lacks a field, or one cannot be read, or the spans are wrong, see `reported_spans`.
    """
    episode.env = env
    with reading("reset"):
        spans = reported_spans(info, PROMPT_STEP, f"{episode.spec.env_id}, opening")
        row = Row()
        row.extend(info["token_ids"], spans, images=images)
        episode.tools, episode.stop, episode.task_id = info["tools"], tuple(info["stop"]), info["task_id"]
        episode.categories = dict(info.get("categories", {}))
        episode.messages += info["messages"]
    episode.rows.append(row)


def record_turn(episode: Episode, turn: Turn) -> None:
    """Add a step: its ids to the last row, its reward to the steps.

    Raises:
        EnvFailure: if the info lacks a field, or one cannot be read, or the environment reports other ids than those
            it was given, or wrong spans, see `reported_spans`. Nothing is added then.
    """
    generation, text, (observation, reward, *_, info), seconds, images = turn
    row, sampled, number = episode.rows[-1], generation.token_ids, len(episode.steps)
    start, where = len(row.token_ids), f"{episode.spec.env_id}, turn {episode.turns}"
    with reading("step"):
        ids, messages = info["token_ids"], [*info["messages"]]
        if ids[: len(sampled)] != list(sampled):
            raise EnvFailure(f"{where}: the environment did not report the sampled ids it was given")
        # Steps are numbered here and not by the environment, which does not know of summaries.
        spans = reported_spans(info, number, where, len(sampled))
        step = Step(
            row=len(episode.rows) - 1,
            start=start,
            stop=start + len(sampled),
            action=text,
            observation=observation,
            reward=plain_number(reward, "the reward", where, MAX_REWARD),
            reward_terms=plain_numbers(info["reward_terms"], "reward term", where),
            tool_calls=info["tool_calls"],
            metrics=plain_numbers(info["metrics"], "metric", where),
            error=info["error"],
            finish_reason=generation.finish_reason,
            env_seconds=seconds,
            process_reward=plain_number(info.get("process_reward", 0.0), "process_reward", where, MAX_REWARD),
            versions=_versions(generation, action_mask(spans, len(ids))),
        )
        success = bool(info.get("is_success", False))
    row.extend(ids, spans, generation.logprobs, images)
    episode.messages += messages
    episode.steps.append(step)
    episode.success = success


def reported_spans(info: Mapping[str, Any], step: int, where: str, sampled: int = 0) -> list[Span]:
    """Check the token spans that one call of an environment reported: they are the loss mask.

    An environment may give sampled tokens to the world, for example a prefix that it forced, or a whole turn. It may
    not give the policy a token that the policy did not sample.

    Args:
        info: what `reset` or `step` returned.
        step: the number that the spans get.
        where: environment and turn, for the message.
        sampled: how many of the ids the policy sampled; they come first.

    Returns:
        Spans from 0 on.

    Raises:
        EnvFailure: if the spans leave a gap, overlap or end elsewhere than the ids do, name an unknown source, or give
            the policy a token that it did not sample. It is a mistake in the environment's code. The episode fails and
            not the run, because it may depend on what was sampled.
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


def _versions(generation: Generation, mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the versions of the policy's tokens: those that the environment gave to the world have none."""
    authors = [version for version, count in generation.versions for _ in range(count)]
    kept = [version for version, mine in zip(authors, mask, strict=False) if mine]
    return [(version, len(list(run))) for version, run in groupby(kept)]


def record_request(episode: Episode, request: AskSummary) -> None:
    """Replace the world's last answer in the row by the one that also asks for a summary."""
    _continue_row(episode, request.token_ids)
    episode.messages.append({"role": "user", "content": request.request})
    episode.asked = "summary"


def record_summary(episode: Episode, generation: Generation, text: str) -> None:
    """Add a summary, a step in which the environment takes no part."""
    record_said(episode, generation, text, kind="summary")
    episode.asked = "act"


def record_said(episode: Episode, generation: Generation, text: str, *, kind: StepKind = "act") -> None:
    """Add what the policy said as a step to which nobody has answered yet."""
    row, number = episode.rows[-1], len(episode.steps)
    start, n = len(row.token_ids), len(generation.token_ids)
    row.extend(generation.token_ids, [Span(0, n, "agent", number)], generation.logprobs)
    episode.messages.append({"role": "assistant", "content": text})
    episode.steps.append(
        Step(
            row=len(episode.rows) - 1,
            start=start,
            stop=start + n,
            action=text,
            observation="",
            reward=0.0,
            reward_terms={},
            tool_calls=[],
            metrics={},
            error=None,
            finish_reason=generation.finish_reason,
            env_seconds=0.0,
            kind=kind,
            versions=generation.versions,
        )
    )


def record_context(episode: Episode, token_ids: list[int], extends: bool) -> None:
    """Go on with a new context: in the same row if it extends that one, else in a new one.

    Args:
        episode: the episode.
        token_ids: the whole context.
        extends: whether it agrees with the last row up to the last sampled token.
    """
    if extends:
        _continue_row(episode, token_ids[episode.steps[-1].stop :])
        return
    # One span and not many: turns that are quoted here were sampled elsewhere and must not be trained twice.
    row = Row()
    row.extend(token_ids, [Span(0, len(token_ids), "user", PROMPT_STEP)])
    episode.rows.append(row)


def record_end(episode: Episode, max_tokens: int) -> None:
    """Drop what no turn came of."""
    if episode.steps:
        del episode.rows[episode.steps[-1].row + 1 :]
    for row, stop in {step.row: step.stop for step in episode.steps}.items():
        # What the world said beyond the budget is an answer that nobody read in this row.
        episode.rows[row].cut(max(stop, max_tokens))


def _continue_row(episode: Episode, token_ids: list[int]) -> None:
    """Let other words of the world follow the last sampled token."""
    step, row = episode.steps[-1], episode.rows[-1]
    row.cut(step.stop)
    row.extend(token_ids, [Span(0, len(token_ids), "env", len(episode.steps) - 1)] if token_ids else [])
