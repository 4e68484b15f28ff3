"""Tasks as `agent-gym prepare swe` writes them: folders in Harbor's form, with tests/swe.json for the verdict."""

from __future__ import annotations

import functools
import io
import tarfile
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError, quoted
from agent_gym.row_splits import SPLIT_NAMES
from agent_gym.sandbox.suites import Suite
from agent_gym.sandbox.terminal import FOLDERS, PYTEST_VARIABLES, Files, Terminal, pack, shared_terminals
from agent_gym.sandbox.verdicts import Hidden
from agent_gym.untrusted import read_json

FOLDER = "/app"
LEVELS = ("names", "changelog", "traceback", "function")
_FACTS = "tests/swe.json"
_CURE = "run: agent-gym prepare swe"
_SHAPE = {"name": str, "package": str, "own": [str], "root": str, "config": str, "files": [str]}


@dataclass(frozen=True)
class SweTask:
    """The sources of one episode."""

    before: Mapping[str, bytes]  # the files that the policy finds, by their paths in `FOLDER`
    own: tuple[str, ...]  # the folders and modules of the package: the policy may change them
    suite: Suite  # of the policy's tree, with the next release's tests
    hidden: Hidden
    patch: str  # the next release's difference


def open_tasks(data: str | Path | None, level: str) -> tuple[dict[str, list[dict[str, str]]], dict[str, Path]]:
    """Return the tasks by split, as rows with their name, the same on every machine, and their folders by name.

    Args:
        data: a folder of tasks, at any depth, or with one such folder per split; None is that of `prepare swe`, or of
            `prepare swe-functions` for the level "function".
        level: of the instruction. Tasks that have none of this level are left out, with a warning that counts them.

    Raises:
        ConfigError: if there are none.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {quoted(level)}; it must be one of {', '.join(LEVELS)}")
    name = "swe-functions" if level == "function" else "swe"
    folder = cache_folder() / name / "tasks" if data is None else Path(data).expanduser()
    splits = {split: _find(folder / split) for split in SPLIT_NAMES if (folder / split).is_dir()}
    splits = {split: found for split, found in splits.items() if found} or {"train": _find(folder)}
    if not any(splits.values()):
        cure = f"data is a folder of them, or run: agent-gym prepare {name}"
        raise ConfigError(f"no tasks of software are in {str(folder)!r}; {cure}")
    rows: dict[str, list[dict[str, str]]] = {}
    folders: dict[str, Path] = {}
    for split, paths in splits.items():
        told = [path for path in paths if level in _facts(path)["instructions"]]
        if told:
            rows[split] = [{"name": str(_facts(path)["name"])} for path in told]
            folders |= {str(_facts(path)["name"]): path for path in told}
    without = sum(map(len, splits.values())) - sum(map(len, rows.values()))
    if not rows:
        known = {one for paths in splits.values() for path in paths for one in _facts(path)["instructions"]}
        cure = f"use level={' or '.join(map(repr, sorted(known)))}"
        raise ConfigError(f"no task in {str(folder)!r} has an instruction of level {level!r}; {cure}")
    if without:
        warnings.warn(f"{without} tasks have no instruction of level {level!r}, and are left out", stacklevel=2)
    return rows, folders


def _find(folder: Path) -> list[Path]:
    return sorted(path.parents[1] for path in folder.rglob(_FACTS))


@functools.lru_cache(maxsize=4096)
def _facts(folder: Path) -> dict[str, Any]:
    try:
        shape = {**_SHAPE, "instructions": dict, "hidden": dict}
        return dict(read_json(folder / _FACTS, shape))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / _FACTS} cannot be read: {error}; make it again: {_CURE}") from error


def instruction_of(folder: Path, level: str) -> str:
    """Return the instruction of a task."""
    return str(_facts(folder)["instructions"][level])


@functools.lru_cache(maxsize=64)
def read_task(folder: Path) -> SweTask:
    """Read a task; `ConfigError` if its folder is damaged."""
    facts = _facts(folder)
    try:
        before = _unpacked(folder / "environment" / "app.tar.gz")
        tests = _unpacked(folder / "tests" / "tree.tar.gz")
        hidden = Hidden.from_json(facts["hidden"])
        patch = (folder / "solution" / "golden.patch").read_bytes().decode()
    except (OSError, ValueError, TypeError, KeyError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ConfigError(f"the task in {str(folder)!r} cannot be read: {error}; make it again: {_CURE}") from error
    roots = tuple(dict.fromkeys((facts["root"], "")))
    suite = Suite(tests, roots, tuple(facts["files"]), facts["config"])
    return SweTask(before, tuple(facts["own"]), suite, hidden, patch)


def _unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        streams = {member.name: tar.extractfile(member) for member in tar if member.isreg()}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


@functools.lru_cache(maxsize=64)
def _files(folder: Path) -> Files:
    packed = {f"{FOLDER}/{path}": data for path, data in read_task(folder).before.items()}
    return pack(packed, FOLDERS, FOLDER)


def opened(folder: Path) -> Terminal:
    """Open a session with the files of a task, in which Python finds the package and pytest."""
    root = f"{FOLDER}/{read_task(folder).suite.roots[0]}".rstrip("/")
    variables = {**PYTEST_VARIABLES, "PYTHONPATH": f"{PYTEST_VARIABLES['PYTHONPATH']}:{root}"}
    return shared_terminals().open(_files(folder), folder=FOLDER, environment=variables)
