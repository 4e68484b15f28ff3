"""Why an episode failed: the error, its place in the user's code, and the traceback.

A failure is text from the beginning, because it outlives the error: it is written to files, sent between processes, and
must not keep the environment alive that raised it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_gym.errors import RolloutError, causes, clipped, message_of, where_raised
from agent_gym.public import public_text
from agent_gym.tools import failed_calls

if TYPE_CHECKING:
    from agent_gym.rollout.episode import Episode

_MAX_CHARS = 300  # of a message in a summary


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of our machinery that ended an episode: the name of its type, its text, its traceback.

    `where` is "file:line" of the innermost frame outside of agent_gym, gymnasium and the standard library; if there is
    none, of the innermost frame. It is empty if nothing was raised.
    """

    kind: str
    message: str
    where: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    @property
    def line(self) -> str:
        text = clipped(" ".join(str(self).encode(errors="backslashreplace").decode().split()), _MAX_CHARS)
        return f"{text} ({self.where})" if self.where else text

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Read an error; never raises, whatever its own methods do."""
        if isinstance(error.__cause__, RaisedElsewhere):
            return error.__cause__.failure
        elsewhere = next((one.failure.where for one in causes(error) if isinstance(one, RaisedElsewhere)), "")
        where = elsewhere or where_raised(error)
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # of a type that overrides methods that a traceback reads
            text = "".join(traceback.format_tb(error.__traceback__))
        return cls(type(error).__name__, public_text(message_of(error)), where, public_text(text))

    def to_record(self) -> dict[str, Any]:
        return {"failure": str(self), "failure_details": {"where": self.where, "traceback": self.traceback}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Failure | None:
        # Files of older versions have no details.
        if record["failure"] is None:
            return None
        kind, _, message = record["failure"].partition(": ")
        return cls(kind, message, **record.get("failure_details", {}))


class RaisedElsewhere(Exception):
    """The cause of an error that was raised in another process or thread; its text is the traceback there."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return f"\n{self.failure.traceback or self.failure}"


def failure_summary(episodes: Iterable[Episode]) -> list[str]:
    """Return lines such as `3 x ValueError, the first: ValueError: gone (my_env.py:12)`, the most frequent first."""
    kinds = _by_kind([episode.failure for episode in episodes if episode.failure])
    return [f"{len(same)} x {kind}, the first: {same[0].line}" for kind, same in kinds.items()]


def warn_of_expert(episodes: Sequence[Episode]) -> None:
    """Warn if more than half of the tool calls of an expert failed: nothing is learned from such episodes."""
    complaint = failed_calls((step.tool_calls, step.error) for episode in episodes for step in episode.steps)
    if complaint:
        print(f"agent-gym: warning: {episodes[0].spec.env_id}: {complaint}", file=sys.stderr, flush=True)


def check_failures(failures: Sequence[Failure | None]) -> None:
    """Raise `RolloutError` if every episode failed (None where it went well): the cause is then in the set-up."""
    failed = [failure for failure in failures if failure is not None]
    if not failed or len(failed) < len(failures):
        return
    counts = [f"{len(same)} x {kind}" for kind, same in _by_kind(failed).items()]
    kinds = f"; by kind: {', '.join(counts)}" if len(counts) > 1 else ""
    message = f"all {len(failed)} episodes failed; the first: {failed[0].line}{kinds}"
    raise RolloutError(message) from RaisedElsewhere(failed[0])


def _by_kind(failures: Iterable[Failure]) -> dict[str, list[Failure]]:
    kinds: dict[str, list[Failure]] = {}
    for failure in failures:
        kinds.setdefault(failure.kind, []).append(failure)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))
