"""Certificates: what an environment keeps of its promises, tried on a laptop in minutes.

    from agent_gym.certify import certify

    for record in certify("AgentR1/GSM8K-v0", quick=True):
        print(record.name, record.verdict, record.text)

Each check is a function from a `Subject` to a `Record`; the numbers by which they judge are in record.py. All run in a
process of their own (process.py), so that an environment that crashes, hangs or computes for ever fails one check and
costs the others nothing. What a certificate cannot see is in docs/certify.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gym.certify.process import CHECKS, run_checks
from agent_gym.certify.record import Record, Subject
from agent_gym.errors import ConfigError
from agent_gym.registry import check_env_id

__all__ = ["CHECKS", "Record", "Subject", "certify"]


def certify(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    checks: Sequence[str] = tuple(CHECKS),
    on_record: Callable[[Record], None] = lambda record: None,
    **settings: Any,
) -> list[Record]:
    """Run the checks on an environment and return their records, in order.

    Args:
        env_id: an id, or `module:id`; every `TextEnv` that is registered with Gymnasium, adapters of
            `agent_gym.contrib` included.
        env_kwargs: its arguments, as JSON has them.
        checks: which of `CHECKS`.
        on_record: called with each record as soon as it is there.
        **settings: the other fields of `Subject`: quick, script, model, learn.

    Raises:
        ConfigError: for an unknown id or check, or if the environment cannot be made.
    """
    env_id = check_env_id(env_id)
    if unknown := set(checks) - set(CHECKS):
        raise ConfigError(f"unknown check {sorted(unknown)}; known: {', '.join(CHECKS)}")
    subject, records = Subject(env_id, dict(env_kwargs or {}), **settings), list[Record]()
    while left := list(checks)[len(records) :]:
        for record in run_checks(subject, left):
            records.append(record)
            on_record(record)
    return records
