"""Certificates: tests of an environment's promises, in minutes on a laptop.

    from agent_gym.certify import certify

    for record in certify("AgentR1/GSM8K-v0", quick=True):
        print(record.name, record.verdict, record.text)

Each check is a function from a `Subject` to a `Record`; the numbers by which they judge are in record.py. All play in a
thread that is not the one in which the environment was imported, as rollouts do, and in a separate process, which
announces each action, and which the kernel ends where that takes too long. So an environment that crashes, hangs or
computes for ever fails one check and costs the others nothing. docs/certify.md lists the limits of certificates.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

from agent_gym.certify.record import STEP_CPU_S, STILL_S, Record, SkippedCheck, Subject, cut
from agent_gym.errors import ConfigError, described, where_raised
from agent_gym.registry import resolve_env_id

__all__ = ["CHECKS", "Record", "Subject", "certify"]

CHECKS = {
    "contract": "contract",
    "determinism": "contract",
    "copies": "contract",
    "isolation": "contract",
    "fuzz": "fuzz",
    "solvable": "tasks",
    "leaks": "leaks",
    "splits": "splits",
    "attacks": "attacks",
    "speed": "contract",
    "model": "tasks",
    "learnable": "tasks",
}
"""Name of a check, which is also that of its function, to the module of this package; in the order they run in."""
_UNLIMITED = ("model", "learnable")  # other commands run, which may be silent for long
_WHY = {
    -9: "killed, perhaps for want of memory",
    -11: "a segmentation fault",
    -27: f"over {STEP_CPU_S} CPU seconds in a step",
}


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
        **settings: the other fields of `Subject`: quick, script, model, learn, env_processes.

    Raises:
        ConfigError: for an unknown id or check, or if the environment cannot be made.
    """
    env_id = resolve_env_id(env_id)
    if unknown := set(checks) - set(CHECKS):
        raise ConfigError(f"unknown check {sorted(unknown)}; known: {', '.join(CHECKS)}")
    subject, records = Subject(env_id, dict(env_kwargs or {}), **settings), list[Record]()
    while left := list(checks)[len(records) :]:
        for record in run_checks(subject, left):
            records.append(record)
            on_record(record)
    return records


def run_check(name: str, subject: Subject) -> Record:
    """Run one check in the subject's thread; an error makes it a fail, with the last action as evidence."""
    check = getattr(import_module(f"agent_gym.certify.{CHECKS[name]}"), name)
    try:
        resolve_env_id(subject.env_id)  # imported here, as a trainer does, and played there
        return subject.thread.submit(check, subject).result()
    except SkippedCheck as reason:
        return Record(name, "skipped", str(reason))
    except BaseException as error:  # whatever an environment raises, SystemExit too
        where = where_raised(error)
        text = cut(described(error)) + (f" ({where})" if where else "")
        return Record(name, "fail", text, evidence=[subject.doing])


def run_checks(subject: Subject, checks: Sequence[str]) -> Iterator[Record]:
    """Run checks in one process until it ends, and yield their records; the check in which it breaks fails.

    Raises:
        ConfigError: if the environment cannot be made.
    """
    here, there = Pipe()
    left = list(checks)
    with tempfile.TemporaryDirectory(prefix="certify-", ignore_cleanup_errors=True) as folder:
        code = f"import sys; sys.path[:] = {sys.path!r}; from agent_gym.certify import main; "
        command = [sys.executable, "-c", code + f"main({there.fileno()})"]
        environment = {**os.environ, "TMPDIR": folder}
        # The environment's output goes to the standard error, and Ctrl-C to the caller, who ends the process.
        fds = [there.fileno()]
        process = subprocess.Popen(command, env=environment, pass_fds=fds, stdout=2, start_new_session=True)
        there.close()
        doing = "the environment is made"
        try:
            here.send(({**vars(subject), "tell": None}, left))
            while left:
                if not here.poll(None if left[0] in _UNLIMITED else STILL_S):
                    process.kill()
                    doing += f" (no sign of life for {STILL_S} seconds)"
                kind, value = here.recv()
                if kind == "error":
                    raise ConfigError(value)
                if kind == "record":
                    left.pop(0)
                    yield value
                doing = value if kind == "doing" else doing
        except (EOFError, ConnectionError):
            ended = process.wait()
            why = _WHY.get(ended, f"exit code {ended}")
            yield Record(left[0], "fail", f"the process ended: {why}", evidence=[doing])
        finally:
            process.kill()
            process.wait()
            here.close()


def main(descriptor: int) -> None:
    """Run the checks that come through a connection, in the process that is made for them."""
    os.set_inheritable(descriptor, False)
    connection: Any = Connection(descriptor)

    def tell(doing: str, seconds: float) -> None:
        connection.send(("doing", doing))
        # Its signal ends the process, also inside of a regular expression; children do not inherit it.
        signal.setitimer(signal.ITIMER_PROF, seconds)

    settings, checks = connection.recv()
    subject = Subject(**settings)
    subject.tell = tell
    try:
        subject.make().close()
    except Exception as error:
        connection.send(("error", str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"))
        return
    for name in checks:
        record = run_check(name, subject)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(("record", record))
    os._exit(0)  # threads that the environment has left would keep the process
