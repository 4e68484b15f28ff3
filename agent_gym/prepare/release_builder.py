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
from agent_gym.prepare.release_tasks import NoTask, build, write
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


def build_package(releases: Sequence[Sequence[Release]], folder: Path, progress: bool) -> None:
    """Make the tasks of a package's consecutive releases, in one series or more, and report.json with all pairs.

    Raises:
        ConfigError: if an archive cannot be fetched or has another checksum, or nothing can be tested here.
        SandboxError: if the sandbox failed.
    """
    shared_terminals()
    if not pytest_is_here():
        raise ConfigError("the tests of packages need pytest, which is not installed; run: pip install pytest")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pairs = []
    for old, new, one in (one for series in releases for one in _built(series)):
        pairs.append({"before": old.version, "after": new.version, **one})
        if progress:
            words = f"{one['task']}" if one["task"] else f"no task: {one['reason']}"
            print(f"agent-gym: {new.package} {old.version} -> {new.version}: {words}", file=sys.stderr, flush=True)
        if "made" in one:
            write(pairs[-1].pop("made"), folder / one["task"])
    if not pairs:
        pairs = [{"before": "", "after": "", "task": "", "reason": f"it has {len(releases[0])} releases, and needs two"}]
    about = {"package": releases[0][0].package, "pairs": pairs}
    (folder / REPORT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _built(releases: Sequence[Release]) -> Iterator[tuple[Release, Release, dict[str, Any]]]:
    trees: dict[Release, ReleaseTree] = {}
    for old, new in pairwise(releases):
        try:
            if new.package in _PYTEST:
                raise NoTask("pytest itself needs the package, so that its tests would run on pytest's copy")
            for one in (old, new):
                if one not in trees:
                    trees[one] = _tree(one)
            made = build(trees[old], trees[new])
            yield old, new, {"task": made.name, "reason": "", "made": made}
        except NoTask as reason:
            yield old, new, {"task": "", "reason": str(reason)}
        trees.pop(old, None)


def _tree(release: Release) -> ReleaseTree:
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
                yield f"no task: {read['package']} {pair['before']} -> {pair['after']}: {pair['reason']}"
    yield f"{tasks} tasks"
