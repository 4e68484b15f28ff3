"""Judges a task of the embedded set, after Harbor's rules: a script beside expected.py that writes a reward.

What it judges was written by a policy, and is data: nothing of it is run, imported or followed, and nothing is
configured by it. Files are read where they are plain files in plain folders; a database is read from memory, with a
bound on what a query may take; of a repository the objects and names of commits are copied into a new one, without
hooks and settings.

The reward is the share of the goals that are reached, 0 if something that had to stay is not as it was.
"""

from __future__ import annotations

# A test runs at the end of each episode, and most of its time goes into imports: what only some tasks need is imported
# there, and what is expected is no JSON.
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_BYTES = 1 << 22
_STEPS = 1_000_000  # of SQLite's machine, per query
_REWARD, _CLEAN = "/logs/verifier/reward.txt", "/logs/clean.git"
_GIT = {"PATH": os.defpath, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_NO_REPLACE_OBJECTS": "1"}


def content(path: str) -> bytes | None:
    """Return what a plain file holds; None for anything else, such as a link to the answer."""
    if os.path.realpath(path) != path:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(file, "rb") as reader:
        found = os.fstat(file)
        return reader.read() if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES else None


def same(data: bytes | None, wanted: str) -> bool:
    """Whether a file holds these lines, whatever spaces end them."""
    if data is None:
        return False
    lines = data.decode(errors="replace").strip().splitlines()
    return [line.rstrip() for line in lines] == [line.rstrip() for line in wanted.strip().splitlines()]


def rows(path: str, query: str) -> list[list[Any]] | None:
    """Return what a query finds in a database."""
    data = content(path)
    if data is None:
        return None
    import sqlite3

    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data)
        database.execute("PRAGMA trusted_schema = OFF")
        database.set_progress_handler(lambda: 1, _STEPS)
        return [list(row) for row in database.execute(query).fetchmany(1000)]
    except (sqlite3.Error, OverflowError):
        return None


def git(folder: str, *arguments: str) -> str | None:
    """Run a command of git on a clean copy of a repository; return what it prints, None if it fails."""
    if not os.path.isdir(_CLEAN):
        _copy(os.path.join(folder, ".git"), _CLEAN)
        if _output("fsck", "--no-dangling", "--no-progress") is None:  # objects under names that are not theirs
            _write(os.path.join(_CLEAN, "HEAD"), b"")
    return _output(*arguments)


def _output(*arguments: str) -> str | None:
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawnp("git", ["git", "--git-dir", _CLEAN, *arguments], _GIT, file_actions=actions)
    os.close(writing)
    with open(reading, "rb") as reader:
        printed = reader.read(_MOST_BYTES)
    return printed.decode(errors="replace") if os.waitpid(pid, 0)[1] == 0 else None


def _copy(source: str, clean: str) -> None:
    """Make a repository that has objects and names of another one and nothing else of it."""
    for top in ("objects", "refs"):
        os.makedirs(os.path.join(clean, top))
        for root, folders, names in os.walk(os.path.join(source, top)):
            inner = os.path.join(clean, os.path.relpath(root, source))
            for folder in folders:
                os.mkdir(os.path.join(inner, folder))
            for name in names:
                _write(os.path.join(inner, name), content(os.path.join(root, name)) or b"")
    _write(os.path.join(clean, "packed-refs"), content(os.path.join(source, "packed-refs")) or b"")
    _write(os.path.join(clean, "HEAD"), b"ref: refs/heads/main\n")
    _write(os.path.join(clean, "config"), b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n")


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def holds(check: list[Any]) -> bool:
    """Whether a check of expected.py holds: its name and arguments."""
    name, place, *rest = check
    if name == "text":
        return same(content(place), rest[0])
    if name == "gone":
        return not os.path.lexists(place)
    if name == "rows":
        return rows(place, rest[0]) == rest[1]
    if name == "merged":  # a commit into a branch
        return git(place, "merge-base", "--is-ancestor", rest[1], f"refs/heads/{rest[0]}") is not None
    branch, wanted = rest
    if name == "message":
        return (git(place, "log", "-1", "--format=%B", f"refs/heads/{branch}") or "").strip() == wanted
    lines = (git(place, "ls-tree", "-r", f"refs/heads/{branch}") or "").splitlines()
    return {path: about.split()[-1] for about, _, path in (line.partition("\t") for line in lines)} == wanted


def main() -> None:
    """Judge, and write the reward."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    expected = __import__("expected")  # beside this file, where the tests run
    kept = all(holds(check) for check in expected.GUARDS)
    goals = [holds(check) for check in expected.GOALS]
    os.makedirs(os.path.dirname(_REWARD), exist_ok=True)
    with open(_REWARD, "w", encoding="utf-8") as file:
        file.write(f"{sum(goals) / len(goals) if kept else 0.0}\n")


if __name__ == "__main__":
    main()
