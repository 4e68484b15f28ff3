"""Writing down what happened: rows, steps and messages of a live episode change here and nowhere else.

These functions run in the thread that drives the engine, on what workers and engine hand over, so that an episode whose
time has run out stays as it was, however late a worker comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsFloat

import gymnasium

from agent_gym.errors import EnvFailure, described
from agent_gym.images import Shown
from agent_gym.policies.base import Generation
from agent_gym.rollout.contexts import AskSummary
from agent_gym.rollout.episode import Episode, Row, Step, StepKind
from agent_gym.transcript import PROMPT_STEP, Span


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
        EnvFailure: if the info lacks a field, or one cannot be read.
    """
    episode.env = env
    with reading("reset"):
        row = Row()
        row.extend(info["token_ids"], info["token_spans"], images=images)
        episode.tools, episode.stop, episode.task_id = info["tools"], tuple(info["stop"]), info["task_id"]
        episode.categories = dict(info.get("categories", {}))
        episode.messages += info["messages"]
    episode.rows.append(row)


def record_turn(episode: Episode, turn: Turn) -> None:
    """Add a step: its ids to the last row, its reward to the steps.

    Raises:
        EnvFailure: if the info lacks a field, or one cannot be read, or the environment reports other ids than those
            it was given. Nothing is added then.
    """
    generation, text, (observation, reward, *_, info), seconds, images = turn
    row, sampled, number = episode.rows[-1], generation.token_ids, len(episode.steps)
    start = len(row.token_ids)
    with reading("step"):
        ids, messages = info["token_ids"], [*info["messages"]]
        # Steps are numbered here and not by the environment, which does not know of summaries.
        spans = [span._replace(step=number) for span in info["token_spans"]]
        step = Step(
            row=len(episode.rows) - 1,
            start=start,
            stop=start + len(sampled),
            action=text,
            observation=observation,
            reward=float(reward),
            reward_terms=info["reward_terms"],
            tool_calls=info["tool_calls"],
            metrics=info["metrics"],
            error=info["error"],
            finish_reason=generation.finish_reason,
            env_seconds=seconds,
            process_reward=info.get("process_reward", 0.0),
            versions=generation.versions,
        )
        success = bool(info.get("is_success", False))
        if ids[: len(sampled)] != list(sampled):
            raise EnvFailure("the environment did not report the sampled ids it was given")
    row.extend(ids, spans, generation.logprobs, images)
    episode.messages += messages
    episode.steps.append(step)
    episode.success = success


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
