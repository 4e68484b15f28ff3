"""The tasks of a package: its releases from the list or the index, each with the one before it, and a report."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.prepare.release_functions import function_tasks
from agent_gym.prepare.release_tasks import NoTask, SoftwareTask, build, write
from agent_gym.prepare.release_tree import ReleaseTree
from agent_gym.prepare.releases import Release, fetch, normal, on_index, unpack
from agent_gym.sandbox.terminal import pytest_is_here, shared_terminals

REPORT = "report.json"
_PYTEST = frozenset({"pytest", "pluggy", "iniconfig", "packaging", "pygments"})  # which would test themselves
_SHARES = {"train": 70, "validation": 85, "test": 100}  # percent, cumulated


def split_of(package: str) -> str:
    """Return the split of all tasks of a package, by its name alone."""
    place = int.from_bytes(hashlib.sha256(normal(package).encode()).digest()[:4]) % 100
    return next(split for split, end in _SHARES.items() if place < end)


def listed_packages(file: str) -> dict[str, list[dict[str, str]]]:
    """Return the listed packages: series of consecutive releases, the sha256 of the source archives by version."""
    listed: dict[str, list[dict[str, str]]] = json.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))
    return listed


def releases_of(package: str, listed: Sequence[Mapping[str, str]] | None, pairs: int) -> list[list[Release]]:
    """Return series of releases of a package to make tasks of: the listed ones, or the newest of the index.

    Raises:
        ConfigError: if a listed one is not on the index any more, or is another file.
    """
    found = on_index(package)
    if listed is None:
        return [found[-pairs - 1 :]]
    by_version = {one.version: one for one in found}
    for version, digest in (one for series in listed for one in series.items()):
        if version not in by_version:
            raise ConfigError(f"the index has no source archive of {package} {version} any more; name other packages")
        if by_version[version].sha256 not in ("", digest):
            raise ConfigError(f"{package} {version} has another checksum on the index than in the list; it is not used")
    return [[by_version[version]._replace(sha256=digest) for version, digest in one.items()] for one in listed]


def build_package(releases: Sequence[Sequence[Release]], folder: Path, progress: bool, functions: int = 0) -> None:
    """Make the tasks of a package, a folder each, and report.json with all pairs.

    Args:
        releases: series of consecutive ones: two of them are a pair.
        folder: of the tasks.
        progress: whether each result is printed.
        functions: so many tasks of one function of the newest release, instead of pairs.

    Raises:
        ConfigError: if an archive cannot be fetched or has another checksum, or nothing can be tested here.
        SandboxError: if the sandbox failed.
    """
    shared_terminals()
    if not pytest_is_here():
        raise ConfigError("the tests of packages need pytest, which is not installed; run: pip install pytest")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    newest = max((one for series in releases for one in series), key=lambda one: one.rank)
    built = _functions(newest, functions) if functions else (one for series in releases for one in _built(series))
    pairs = []
    for one, task in built:
        pairs.append(one)
        if progress:
            words = one["task"] or f"no task: {one['reason']}"
            print(f"agent-gym: {newest.package} {_versions(one)}: {words}", file=sys.stderr, flush=True)
        if task:
            write(task, folder / task.name)
    if not pairs:
        pairs = [_pair("", "", f"it has {len(releases[0])} releases, and needs two")]
    about = {"package": newest.package, "pairs": pairs}
    (folder / REPORT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _pair(before: str, after: str, reason: str = "", task: str = "") -> dict[str, str]:
    return {"before": before, "after": after, "task": task, "reason": reason}


def _versions(pair: Mapping[str, str]) -> str:
    return " -> ".join(filter(None, (pair["before"], pair["after"])))


def _built(releases: Sequence[Release]) -> Iterator[tuple[dict[str, str], SoftwareTask | None]]:
    trees: dict[Release, ReleaseTree] = {}
    for old, new in pairwise(releases):
        try:
            for one in (old, new):
                if one not in trees:
                    trees[one] = _tree(one)
            made = build(trees[old], trees[new])
            yield _pair(old.version, new.version, task=made.name), made
        except NoTask as reason:
            yield _pair(old.version, new.version, str(reason)), None
        trees.pop(old, None)


def _functions(newest: Release, count: int) -> Iterator[tuple[dict[str, str], SoftwareTask | None]]:
    try:
        for made in function_tasks(_tree(newest), count):
            yield _pair("", newest.version, task=made.name), made
    except NoTask as reason:
        yield _pair("", newest.version, str(reason)), None


def _tree(release: Release) -> ReleaseTree:
    if release.package in _PYTEST:
        raise NoTask("pytest itself needs the package, so that its tests would run on pytest's copy")
    data = fetch(release)
    digest = hashlib.sha256(data).hexdigest()
    try:
        files = unpack(data, f"{release.package} {release.version}")
    except ConfigError as error:
        raise NoTask(str(error)) from None
    source = release.source if release.source.startswith("http") else Path(release.source).name
    return ReleaseTree(release._replace(sha256=digest, source=source), files)


def report_lines(folder: Path, pieces: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each pair of releases that makes no task, with the reason, and the number of tasks."""
    tasks = 0
    for path in pieces:
        read = json.loads((folder / path / REPORT).read_text(encoding="utf-8"))
        for pair in read["pairs"]:
            tasks += bool(pair["task"])
            if not pair["task"]:
                yield f"no task: {read['package']} {_versions(pair)}: {pair['reason']}"
    yield f"{tasks} tasks"
