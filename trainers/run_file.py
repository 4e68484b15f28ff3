"""`run.json` in the folder of a run: its command line, its process, its status, its step and its last numbers.

The process that a user has started writes the file at the beginning and at the end. The trainer may be another process;
it writes its numbers in between, and it writes all its logs into `log.jsonl`. A speedrun is a run whose parts, such as
`grpo`, are runs in folders inside its folder. This module imports neither torch nor TRL.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_gym.errors import AgentGymError, whole_file
from agent_gym.public import public
from agent_gym.trainers.run_lock import announced_run, held
from agent_gym.untrusted import Values, count, finite, lines_of, misfit, number, open_regular, parse_json, read_json

FILE, LOG = "run.json", "log.jsonl"
RL_PARTS = ("grpo", "ppo", "rpp")
"""The parts of a speedrun that train by reinforcement learning, as the names of their folders; a run has one."""
_SHAPE = {
    "command?": str,
    "argv?": [str],
    "cwd?": str,
    "host?": str,
    "pid?": lambda pid: count(pid) and pid < 1 << 31,
    "status?": str,
    "run?": str,
    "part?": RL_PARTS.__contains__,
    "trainer?": str,
    "env?": str,
    "model?": str,
    "started?": lambda time: number(time) and 0 <= time < 1 << 37,
    "ended?": number,
    "step?": count,
    "max_steps?": int,
    "numbers?": Values(number),
}
_NUMBERS = ("reward", "eval_success", "eval_reward", "loss")


@contextmanager
def recorded(command: str, argv: Sequence[str], folder: str | Path, meeting: str = "") -> Iterator[dict[str, int]]:
    """Write the file while a command trains into a folder.

    The yielded dict may get the exit code as `code`, which is 0 by default. `meeting` is the address at which the
    machines of a run meet, if it has several. Raises `ConfigError` if another run trains into the folder.
    """
    with held(folder, announced=True, meeting=meeting), recording(command, argv, Path(folder, FILE)) as outcome:
        yield outcome


@contextmanager
def recording(command: str, argv: Sequence[str], path: Path) -> Iterator[dict[str, int]]:
    """Write the file of a run whose folder this process holds (`run_lock.held`); yields what `recorded` does."""
    about = {"command": command, "argv": [*argv], "cwd": os.getcwd(), "host": platform.node(), "pid": os.getpid()}
    about |= {"run": run} if (run := announced_run()) else {}
    write(path, {**about, "status": "running", "started": time.time()})
    status, outcome = "failed", dict[str, int]()
    try:
        yield outcome
        status = "failed" if outcome.get("code") else "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        write(path, {**read(path), "status": status, "ended": time.time()})


def of_this_run(folder: str | Path) -> bool:
    """Return whether the folder's file is that of the announced run to which this process belongs."""
    about = read(Path(folder, FILE))
    return about.get("status") == "running" and about.get("run") == (announced_run() or "none is announced")


def add(folder: str | Path, facts: Mapping[str, Any]) -> None:
    """Add facts to the file of a run."""
    path = Path(folder, FILE)
    write(path, {**read(path), **facts})


def rl_part(folder: Path) -> Path:
    """Return the folder of a run's reinforcement learning: a part of a speedrun, and of other runs their folder."""
    about = read(folder / FILE)
    part = folder / about.get("part", RL_PARTS[0])
    return part if about.get("command") == "speedrun" and part.is_dir() else folder


def note(folder: str | Path, step: int, max_steps: int, logs: Mapping[str, Any]) -> None:
    """Add the step and the last numbers of a run, if its folder has the file."""
    path = Path(folder, FILE)
    if about := read(path):
        numbers = {name: float(logs[name]) for name in _NUMBERS if name in logs}
        limit = {"max_steps": max_steps} if max_steps < 10**9 else {}  # a run that ends by its seconds has none
        write(path, {**about, "step": step, **limit, "numbers": {**about.get("numbers", {}), **numbers}})


def log(folder: str | Path, step: int, logs: Mapping[str, Any]) -> None:
    """Append the logs of a trainer's step. A full disk does not end the run here."""
    with suppress(OSError), Path(folder, LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**logs, "step": step}) + "\n")


def history(folder: str | Path) -> list[dict[str, Any]]:
    """Read the logs, in the order of steps.

    A resumed run has gone back to a checkpoint. Its earlier logs after that checkpoint are lost with the weights, and
    the last log of a step counts. An incomplete line is left out, and so is a value that is not a finite number.
    """
    found: dict[tuple[int, bool], dict[str, Any]] = {}
    with suppress(OSError, ValueError), open_regular(Path(folder, LOG)) as file:
        for line in lines_of(file):
            with suppress(ValueError):
                logs = parse_json(line.decode("utf-8", "replace"))
                if misfit(logs, {"step": count}) is None:
                    logs = finite(logs)
                    key = int(logs["step"]), "eval_success" in logs
                    found = {one: known for one, known in found.items() if one[0] <= key[0]}
                    found[key] = {**found.get(key, {}), **logs}
    return [found[key] for key in sorted(found)]


def read(path: Path, *, left_out: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Read the file; a file that cannot be read, or has another shape, is named to `left_out` and counts as empty."""
    if not path.exists():
        return {}
    try:
        about: dict[str, Any] = read_json(path, _SHAPE)
    except ValueError as error:
        left_out(f"{path}: {error}")
        return {}
    return about


def write(path: Path, about: Mapping[str, Any]) -> None:
    """Replace the file as a whole, so that a reader never sees half of it. A full disk does not end the run here."""
    try:
        with whole_file(path) as aside:
            aside.touch(0o600)
            aside.chmod(0o600)  # `public` knows names and forms of secrets, and a command line may hold others
            aside.write_text(json.dumps(public(about), indent=2) + "\n", encoding="utf-8")
    except AgentGymError as error:
        print(f"agent-gym: {error}", file=sys.stderr)
