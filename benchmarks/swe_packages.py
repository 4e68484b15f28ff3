"""Which packages belong on the list of software tasks: reads their releases, builds the pairs that may be tasks.

    python benchmarks/swe_packages.py FOLDER NAME...     # can be ended and run again: FOLDER keeps what was found
    python benchmarks/swe_packages.py FOLDER --list      # the list, for agent_gym/prepare/packages.json

A pair is built if the package differs little and a changed test file imports nothing that is not here. The first pair
of each package comes first. The tasks lie in FOLDER/tasks, as `agent-gym prepare swe` lays them.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.prepare.release_builder import split_of
from agent_gym.prepare.release_tasks import NoTask, build, check, suite_of, write
from agent_gym.prepare.release_tree import ReleaseTree
from agent_gym.prepare.releases import Release, fetch, on_index, release_of, unpack

_NEWEST = 11  # releases of a package
_HERE = frozenset(sys.stdlib_module_names) | {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"}
_PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "Python Software", "PSF", "Public Domain", "Unlicense", "Zlib", "HPND")


def tree_of(release: Release, folder: Path) -> ReleaseTree:
    """Read a release, from the folder if it is there."""
    path = folder / PurePosixPath(release.source).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fetch(release))
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return ReleaseTree(release._replace(sha256=digest), unpack(data, path.name))


def outside(old: ReleaseTree, new: ReleaseTree) -> str:
    """Return why a pair cannot be a task, as far as reading shows; "" if nothing does."""
    try:
        check(old, new)
    except (NoTask, ConfigError) as reason:
        return str(reason)
    if not any(word.lower() in new.licence.lower() for word in _PERMISSIVE):
        return f"its licence is {new.licence}"
    inside = {part.removesuffix(".py") for path in new.files for part in PurePosixPath(path).parts} | _HERE
    changed = [path for path in suite_of(old, new).files if old.files.get(path) != new.files[path]]
    needed = {path: _imported(new.files[path]) - inside for path in changed}
    if all(needed.values()):
        return f"its changed tests need {', '.join(sorted(set().union(*needed.values()))) or 'nothing: there are none'}"
    return ""


def _imported(source: bytes) -> set[str]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {"another Python"}
    names = [one.name for node in body if isinstance(node, ast.Import) for one in node.names]
    names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {""}


def survey(package: str, archives: Path) -> Iterator[dict[str, Any]]:
    """Yield each pair of the newest releases, with the reason if it cannot be a task."""
    trees: dict[Release, ReleaseTree | str] = {}
    for old, new in pairwise(on_index(package)[-_NEWEST:]):
        for one in (old, new):
            if one not in trees:
                try:
                    trees[one] = tree_of(one, archives)
                except ConfigError as error:
                    trees[one] = str(error)
        before, after = trees.pop(old), trees[new]
        reason = before if isinstance(before, str) else after if isinstance(after, str) else outside(before, after)
        size = sum(map(len, after.tests().values())) if isinstance(after, ReleaseTree) else 0
        yield {
            "package": package,
            "before": PurePosixPath(old.source).name,
            "after": PurePosixPath(new.source).name,
            "reason": reason,
            "bytes": size,
        }


def rounds(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order pairs: small tests first, and the newest pair of a package long before its second."""
    by_package: dict[str, list[dict[str, Any]]] = {}
    for one in pairs:
        if not one["reason"]:
            by_package.setdefault(one["package"], []).insert(0, one)
    ranked = [(one["bytes"] * (1 + place), one) for some in by_package.values() for place, one in enumerate(some)]
    return [one for _, one in sorted(ranked, key=lambda rank: rank[0])]


def build_pair(one: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Build a pair, and write its task if it is one."""
    begun, cpu = time.perf_counter(), time.process_time()
    old, new = (_read(one[side], folder / "archives") for side in ("before", "after"))
    record = {"package": one["package"], "before": old.release.version, "after": new.release.version}
    record |= {"sha256": [old.release.sha256, new.release.sha256], "task": "", "reason": ""}
    try:
        made = build(old, new)
        write(made, folder / "tasks" / split_of(one["package"]) / one["package"] / made.name)
        record["task"] = made.name
    except NoTask as reason:
        record["reason"] = str(reason)
    return record | {"seconds": round(time.perf_counter() - begun, 1), "own_cpu": round(time.process_time() - cpu, 1)}


def _read(file: str, archives: Path) -> ReleaseTree:
    release = release_of(file, str(archives / file))
    assert release is not None
    return tree_of(release, archives)


def listed(records: list[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Return the list: of each package, chains of releases of which each makes a task with the one before it."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in sorted((one for one in records if one["task"]), key=lambda one: _rank(one["before"])):
        chains = found.setdefault(one["package"], [])
        before, after = one["sha256"]
        chain = next((chain for chain in chains if list(chain)[-1] == one["before"]), None)
        if chain is None:
            chains.append(chain := {one["before"]: before})
        chain[one["after"]] = after
    return dict(sorted(found.items()))


def _rank(version: str) -> tuple[tuple[int, ...], int]:
    return Release("", version, "").rank


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, records: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    surveyed, built = asked.folder / "survey.jsonl", asked.folder / "built.jsonl"
    if asked.list:
        print(json.dumps(listed(_lines(built)), indent=1))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names:
        if name not in {one["package"] for one in _lines(surveyed)}:
            _append(surveyed, list(survey(name, asked.folder / "archives")))
            print(name, *(one["reason"] or "may be a task" for one in _lines(surveyed) if one["package"] == name))
    done = {(one["package"], one["after"]) for one in _lines(built)}
    for more in (False, True):  # first until each package has a task
        for one in rounds(_lines(surveyed)):
            release = release_of(one["after"], "")
            has = more or one["package"] not in {record["package"] for record in _lines(built) if record["task"]}
            if release and has and (one["package"], release.version) not in done:
                record = build_pair(one, asked.folder)
                done.add((one["package"], release.version))
                _append(built, [record])
                print(
                    record["package"], record["before"], record["after"], record["task"] or record["reason"], flush=True
                )


if __name__ == "__main__":
    main()
