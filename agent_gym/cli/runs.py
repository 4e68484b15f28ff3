"""Runs on disk: listing, resuming, and one run for each of several seeds.

The facts of a run are in `run.json` in its folder (trainers/run_file.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.cli.parser import CommandParser, left_out, take_option, with_underscores
from agent_gym.errors import ConfigError
from agent_gym.evaluate.report import align, with_interval
from agent_gym.evaluate.statistics import mean
from agent_gym.public import MASK, public
from agent_gym.trainers.run_file import FILE, read, write
from agent_gym.untrusted import say

_DEPTH = 3  # folders below the given one in which runs are looked for
_OURS = {"command", "argv", "cwd", "status"}  # the keys of each run.json; others write files of this name, too


def status_of(about: Mapping[str, Any]) -> str:
    """Return the status of a run; one that is noted as running and whose process is gone was killed."""
    pid = about.get("pid")
    if about.get("status") != "running" or about.get("host") != platform.node() or not isinstance(pid, int):
        return str(about.get("status"))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "killed"
    except PermissionError:  # it is there, and another user's
        pass
    return "running"


def _last_checkpoint(folder: Path) -> int | None:
    steps = [one.name.rpartition("-")[2] for one in folder.glob("checkpoint-*")]
    return max((int(step) for step in steps if step.isdecimal()), default=None)


def runs(argv: Sequence[str]) -> int:
    """List the runs in a folder: status, step, last numbers."""
    parser = CommandParser("runs", runs.__doc__)
    parser.flag("folder FOLDER", "where to look", nargs="?", default="runs")
    parser.flag("--json", "print JSON instead of a table", action="store_true")
    arguments = parser.parse(argv)
    root = Path(arguments.folder)
    if not root.is_dir():
        raise ConfigError(f"no folder at {root}; name the one that holds the runs: agent-gym runs FOLDER")
    found = [path for depth in range(_DEPTH + 1) for path in root.glob("*/" * depth + FILE)]
    known = {path.parent: about for path in found if _OURS <= (about := read(path, left_out=left_out)).keys()}
    order = sorted(known, key=lambda folder: known[folder].get("started", 0.0), reverse=True)
    if arguments.json:
        rows = [{"folder": str(one), **known[one], "status": status_of(known[one])} for one in order]
        print(json.dumps(rows, indent=2))
        return 0
    if not order:
        say(f"no runs in {root}: no folder there holds a {FILE}")
        return 0
    table: list[tuple[str, ...]] = [("RUN", "COMMAND", "STATUS", "STEP", "REWARD", "SUCCESS", "CHECKPOINT", "STARTED")]
    parts: dict[Path | None, list[Path]] = {None: []}  # by the run that they belong to, the earliest first
    for one in reversed(order):
        parts.setdefault(next((above for above in one.parents if above in known), None), []).append(one)
    for folder in reversed(parts[None]):
        table.append(_row(folder, str(folder), known[folder]))
        table += [_row(one, f"  {one.relative_to(folder)}", known[one]) for one in parts.get(folder, ())]
    say(align(table, numbers={3, 4, 5, 6}))
    return 0


def _row(folder: Path, name: str, about: Mapping[str, Any]) -> tuple[str, ...]:
    last, numbers = _last_checkpoint(folder), about.get("numbers", {})
    step = f"{about['step']}/{about.get('max_steps', '?')}" if "step" in about else "-"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(about.get("started", 0.0)))
    shown = [f"{numbers[name]:.3f}" if name in numbers else "-" for name in ("reward", "eval_success")]
    command = str(about.get("trainer", "python") if about.get("command") == "python" else about.get("command"))
    return name, command, status_of(about), step, *shown, "-" if last is None else str(last), started


def resume(argv: Sequence[str]) -> int:
    """Resume a run from its last checkpoint, with the settings that it was started with."""
    from agent_gym.cli.main import main

    parser = CommandParser("resume", resume.__doc__)
    parser.flag("folder RUN", "the run's folder; settings behind it win, for example --max_steps 200")
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help"):  # all flags belong to the run's command
        raise ConfigError(f"resume: name the run's folder before {argv[0]}: agent-gym resume RUN --max_steps 200")
    arguments = parser.parse(argv[:1])
    folder = Path(arguments.folder).absolute()
    about = read(folder / FILE)
    if not _OURS <= about.keys():
        raise ConfigError(f"{arguments.folder} holds no {FILE}; agent-gym runs lists the runs that can be gone on with")
    command, status, again = about["command"], status_of(about), shlex.join(["agent-gym", "resume", arguments.folder])
    if status == "running" and about.get("host") == platform.node():
        raise ConfigError(f"{arguments.folder} is still running, as process {about.get('pid')}: stop it first")
    # Whether a process of another machine still runs cannot be seen from here, so that the user has to say it.
    if status == "running" and take_option(with_underscores(argv), "--resume_from_checkpoint")[0] is None:
        raise ConfigError(
            f"{arguments.folder} was running on {about.get('host')}, as process {about.get('pid')}, and two processes "
            f"must not train in one folder; if it is gone: {again} --resume_from_checkpoint true"
        )
    if command == "python":
        program = shlex.join(["python", *about["argv"]])
        raise ConfigError(
            f"{arguments.folder} was trained by a program ({program:.200}): start it again, with "
            "trainer.train(resume_from_checkpoint=True) in it"
        )
    if command == "speedrun":
        start = shlex.join(["agent-gym", "speedrun", *about["argv"]])
        raise ConfigError(f"{arguments.folder} is a speedrun, which starts from the beginning each time: {start}")
    if command not in ("grpo", "ppo", "sft"):
        raise ConfigError(f"{arguments.folder} is a run of {command}, which has no checkpoints: start it again")
    if _last_checkpoint(folder) is None:
        raise ConfigError(
            f"{arguments.folder} has no checkpoint yet: start it again; save_steps sets when one is saved"
        )
    if status == "done" and len(argv) < 2:
        raise ConfigError(f"{arguments.folder} is finished; to train on: {again} --max_steps N")
    try:
        os.chdir(about["cwd"])  # relative paths of its command line are meant from there
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        gone = f"{arguments.folder} was started in {about['cwd']}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(f"{gone}; make that folder again, its relative paths are meant from there") from error
    own = ("--output_dir", "--resume_from_checkpoint")
    words = [*_without_masked(about["argv"], argv[1:]), *argv[1:]]
    words = _without(words, *own)
    return main([command, *words, "--output_dir", str(folder), "--resume_from_checkpoint", "true"])


def _without(argv: Sequence[str], *flags: str) -> list[str]:
    arguments = with_underscores(argv)
    for flag in flags:
        found: str | None = ""
        while found is not None:  # a run that was gone on with has some of them twice
            found, arguments = take_option(arguments, flag)
    return arguments


def _without_masked(then: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return the words of a stored command line without the flags whose values it does not tell, and name these."""
    words, hidden = with_underscores(then), list[str]()
    for at in [at for at, word in enumerate(words) if MASK in word][::-1]:
        begin = at if words[at].startswith("-") else at - 1
        hidden.insert(0, words[begin].partition("=")[0])
        del words[begin : at + 1]
    given = {word.partition("=")[0] for word in with_underscores(now)}
    if missing := [flag for flag in hidden if flag not in given]:
        print(
            f"agent-gym: {FILE} does not tell the value of {', '.join(missing)}, which is a secret: the run continues "
            "without it; give it again after the folder if it is needed",
            file=sys.stderr,
            flush=True,
        )
    return words


def over_seeds(
    command: str,
    argv: Sequence[str],
    seeds: Sequence[int],
    folder: str | Path,
    start: Callable[[Sequence[str]], object],
) -> int:
    """Run a command once for each seed, one after the other, into FOLDER/seed_N, and print their last numbers.

    `start` runs a command line to its end. A seed that fails does not stop the next ones. One that is done is not run
    again, one with a checkpoint is resumed; `ConfigError` if it was another command, or is still running.
    """
    for seed in seeds:
        check_part(command, argv, Path(folder, f"seed_{seed}"))
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        place = Path(folder, f"seed_{seed}")
        print(f"agent-gym: seed {seed} in {place}", file=sys.stderr, flush=True)
        about = run_part(command, [*_without(argv, "--seed", "--output_dir"), "--seed", str(seed)], place, start)
        rows.append({"seed": seed, "status": status_of(about), "step": about.get("step"), **about.get("numbers", {})})
    measures = [name for name in ("reward", "eval_reward", "eval_success", "loss") if any(name in row for row in rows)]
    table: list[tuple[str, ...]] = [("SEED", "STATUS", "STEP", *measures)]
    for row in rows:
        values = [f"{row[name]:.4g}" if name in row else "-" for name in measures]
        table.append((str(row["seed"]), str(row["status"]), str(row["step"]), *values))
    found = {}
    for name in measures:
        known = [float(row[name]) for row in rows if row["status"] == "done" and name in row]
        found[name] = mean(known, [1] * len(known)) if len(known) > 1 else None
    table.append(("mean", "", "", *(with_interval(name, measure) for name, measure in found.items())))
    print(align(table, numbers=range(2, 3 + len(measures))))
    means = {name: measure and dataclasses.asdict(measure) for name, measure in found.items()}
    write(Path(folder, "seeds.json"), {"command": command, "runs": rows, "mean": means})
    return int(any(row["status"] != "done" for row in rows))


def run_part(command: str, argv: Sequence[str], place: Path, start: Callable[..., object]) -> dict[str, Any]:
    """Run a command into a folder, from its last checkpoint if it has one, unless it is done; return its `run.json`."""
    if status_of(read(place / FILE)) != "done":
        words = [*argv, "--output_dir", str(place)]
        words += ["--resume_from_checkpoint", "true"] if _last_checkpoint(place) is not None else []
        start([sys.executable, "-m", "agent_gym", command, *words])
    return read(place / FILE)


def check_part(command: str, argv: Sequence[str], place: Path) -> None:
    """Refuse a run that another process is writing, or that is kept and was started by another command line."""
    about = read(place / FILE)
    status = status_of(about)
    host, resumed = about.get("host"), take_option(with_underscores(argv), "--resume_from_checkpoint")[0]
    if status == "running" and (host == platform.node() or resumed is None):
        cure = "stop it first" if host == platform.node() else "if that is gone, add --resume_from_checkpoint true"
        raise ConfigError(f"{place} is still running, as process {about.get('pid')} of {host}: {cure}")
    if not about or (status != "done" and _last_checkpoint(place) is None):
        return  # nothing of it is kept
    own = ("--seed", "--output_dir", "--resume_from_checkpoint")
    then, now = (
        shlex.join([name, *_without(words, *own)])
        for name, words in ((about["command"], about["argv"]), (command, public(argv)))
    )
    if then != now:
        raise ConfigError(f"{place} is a run of `{then}`, and this is `{now}`: give the same, or another --output_dir")
