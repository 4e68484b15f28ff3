"""The tasks of a package: its releases from the list or the index, each with the one before it, and a report."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, write_whole
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
    """Make the tasks of a package's series of consecutive releases, or `functions` of the newest one, and report.json.

    Raises:
        ConfigError: if an archive cannot be fetched or has another checksum, or nothing can be tested here.
        SandboxError: if the sandbox failed.
    """
    shared_terminals()
    if not pytest_is_here():
        raise ConfigError("the tests of packages need pytest, which is not installed; run: pip install pytest")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _tree.cache_clear()  # archives of this machine may be others now
    newest = max((one for series in releases for one in series), key=lambda one: one.rank)
    tries: list[tuple[Release, ...]] = [(newest,)] if functions else [two for one in releases for two in pairwise(one)]
    pairs: list[dict[str, str]] = []
    for some in tries:
        made, reason = list[SoftwareTask](), ""
        try:
            trees = [_tree(one) for one in some]
            made = function_tasks(trees[0], functions) if functions else [build(*trees)]
        except NoTask as error:
            reason = str(error)
        versions = {"before": "" if functions else some[0].version, "after": some[-1].version}
        for task in made:
            write(task, folder / task.name)
        for name in [task.name for task in made] or [""]:
            pairs.append({**versions, "task": name, "reason": reason})
            if progress:
                words = f"{newest.package} {_versions(versions)}: {name or f'no task: {reason}'}"
                print(f"agent-gym: {words}", file=sys.stderr, flush=True)
    if not pairs:
        reason = f"it has {len(releases[0])} releases, and needs two"
        pairs = [{"before": "", "after": "", "task": "", "reason": reason}]
    about = {"package": newest.package, "pairs": pairs}
    write_whole(folder / REPORT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def _versions(pair: Mapping[str, str]) -> str:
    return " -> ".join(filter(None, (pair["before"], pair["after"])))


@functools.lru_cache(maxsize=2)  # of two pairs the release between them
def _tree(release: Release) -> ReleaseTree:
    if release.package in _PYTEST:
        raise NoTask("pytest itself needs the package, so that its tests would run on pytest's copy")
    data = fetch(release)
    source = release.source if release.source.startswith("http") else Path(release.source).name
    known = release._replace(sha256=hashlib.sha256(data).hexdigest(), source=source)
    try:
        tree = ReleaseTree(known, unpack(data, f"{release.package} {release.version}"))
        assert tree.package  # which nothing may tell
    except ConfigError as error:
        raise NoTask(str(error)) from None
    return tree


def report_lines(folder: Path, pieces: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each pair of releases that makes no task, with the reason, and the number of tasks."""
    read = [json.loads((folder / path / REPORT).read_text(encoding="utf-8")) for path in pieces]
    pairs = [(one["package"], pair) for one in read for pair in one["pairs"]]
    yield from (f"no task: {name} {_versions(pair)}: {pair['reason']}" for name, pair in pairs if not pair["task"])
    yield f"{sum(bool(pair['task']) for _, pair in pairs)} tasks"
