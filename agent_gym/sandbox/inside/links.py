"""Links of a session that lead to places of its tests' own: they are removed before the tests begin.

A test that compares /app/out with /tests/expected would compare that file with itself if the policy had made /app/out
a link to it; and a test that writes its log to /app/log would write wherever the link leads. No link that a task asks
for leads to /tests, /logs, /proc, or the fresh /tmp and /run: the session never had their files.

The links are followed here, one name at a time, and not by the kernel: some lead to files that tests are yet to make,
and some (/proc/self/cwd) lead elsewhere in each process. No process of the session is left that could change them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_FOLLOWED = 50  # the kernel follows 40 of one name
_NAMES = 200_000  # that are looked up in all, two seconds: a link that is not checked by then is removed
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Links:
    """The search for links to some file systems."""

    own: Collection[int]  # devices of the file systems that hold the tests' own places
    passed: int  # device of /proc, through which no link may pass
    left: int = _NAMES

    def remove(self, folders: Iterable[str]) -> list[str]:
        """Remove the links beneath folders that lead to `own`, and return their paths."""
        return [path for folder in folders for path in self._beneath(folder)]

    def _beneath(self, top: str) -> list[str]:
        """Visit a tree of any depth with one descriptor, because its paths may be longer than the kernel takes."""
        removed: list[str] = []
        names = [name for name in top.split("/") if name]
        here = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        todo = [self._visit(here, names, removed)]
        while todo:
            if not todo[-1]:
                todo.pop()
                step = ".."
                names.pop()
            else:
                step = todo[-1].pop()
                names.append(step)
            if not todo:
                break
            inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
            if step != "..":
                todo.append(self._visit(here, names, removed))
        os.close(here)
        return removed

    def _visit(self, folder: int, names: list[str], removed: list[str]) -> list[str]:
        """Remove links in one folder, and return the names of the folders in it."""
        inner: list[str] = []
        for entry in [*os.scandir(folder)]:
            if entry.is_symlink():
                if self._leads(folder, names, entry.name):
                    os.unlink(entry.name, dir_fd=folder)
                    removed.append("/" + "/".join([*names, entry.name]))
            elif entry.is_dir(follow_symlinks=False):
                inner.append(entry.name)
        return inner

    def _leads(self, folder: int, names: list[str], name: str) -> bool:
        """Whether a link in a folder leads to a place of the tests, also if nothing is there yet."""
        here, at, todo, followed = os.dup(folder), [*names], [name], 0
        try:
            while todo:
                self.left -= 1
                if self.left < 0:
                    return True
                name = todo.pop()
                if name in ("", "."):
                    continue
                if name == "..":
                    found = os.open("..", _HERE, dir_fd=here) if at else os.dup(here)
                    at = at[:-1]
                else:
                    try:
                        found = os.open(name, _HERE, dir_fd=here)
                    except OSError:
                        if ".." not in todo:
                            break  # nothing is there, and what would be is in this folder
                        # Tests may make the folder: then these dots lead out of it again.
                        path = os.path.normpath("/" + "/".join([*at, name, *reversed(todo)]))
                        found, at, todo = os.open("/", _HERE), [], _parts(path)
                        followed += 1
                    else:
                        at.append(name)
                status = os.fstat(found)
                if stat.S_ISLNK(status.st_mode):
                    target = os.readlink("", dir_fd=found)
                    os.close(found)
                    todo += _parts(target)
                    at.pop()
                    followed += 1
                    found = os.open("/", _HERE) if target.startswith("/") else os.dup(here)
                    at = [] if target.startswith("/") else at
                os.close(here)
                here = found
                if status.st_dev == self.passed:
                    return True
                if followed > _FOLLOWED:
                    return False
            return os.fstat(here).st_dev in self.own
        finally:
            os.close(here)


def _parts(path: str) -> list[str]:
    """Return the names of a path, the first one at the end."""
    return path.split("/")[::-1]
