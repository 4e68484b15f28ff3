"""Control groups of memory, one for each command, where this process may make them: version 1 or 2 of the kernel's.

They count all that a command has made the kernel keep, also tables, buffers and kernel records that no process's
figures have. See cgroups(7), and the kernel's admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

_NAME = "agent-gym-terminals-"
_CACHE = {"total_inactive_file", "total_active_file", "inactive_file", "active_file", "slab_reclaimable"}
_FILES = {1: ("memory.usage_in_bytes", "memory.limit_in_bytes"), 2: ("memory.current", "memory.max")}


@dataclass
class Groups:
    """The folder of the groups of one fork server."""

    outer: int  # descriptors of folders: their paths are gone when the fork server has its own root
    folder: int
    version: int

    def enter(self, name: str, memory: int) -> Group | None:
        """Make a group, bounded at twice the bytes of `memory`, and move this process into it; None if that fails."""
        counted, bound = _FILES[self.version]
        try:
            os.mkdir(name, dir_fd=self.folder)
            _write(self.folder, f"{name}/{bound}", str(2 * memory))
            _write(self.folder, f"{name}/cgroup.procs", "0")
            files = [os.open(f"{name}/{one}", os.O_RDONLY, dir_fd=self.folder) for one in (counted, "memory.stat")]
        except OSError:  # an administrator may have removed the folder
            return None
        group = Group(*files)
        group.before = group.memory()
        return group

    def leave(self, name: str) -> None:
        """Remove a group whose processes have ended."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self.folder)

    def end(self) -> None:
        """Remove the folder, in which no process is left."""
        with suppress(OSError):
            os.rmdir(f"{_NAME}{os.getpid()}", dir_fd=self.outer)


@dataclass
class Group:
    """The counters of one command."""

    counted: int  # descriptors of its files
    parts: int
    before: int = 0

    def memory(self) -> int:
        """Return the bytes that it has taken, without files' pages that the kernel can drop."""
        used = int(os.pread(self.counted, 100, 0))
        words = [line.split() for line in os.pread(self.parts, 1 << 14, 0).decode().splitlines()]
        known = {name: int(value) for name, value in words}
        # Version 1 has each figure twice: of the group alone, and ("total_") with the groups inside of it.
        totals = {name for name in known if name.startswith("total_")}
        dropped = sum(value for name, value in known.items() if name in _CACHE and (name in totals or not totals))
        return used - dropped - self.before


def make_groups() -> Groups | None:
    """Make a folder for the groups of this process; None if it may not, or memory is not counted there."""
    found = _own()
    if found is None:
        return None
    version, place = found
    with suppress(OSError):
        for entry in os.scandir(place):  # of fork servers that were killed
            if entry.name.startswith(_NAME) and not os.path.exists(f"/proc/{entry.name.removeprefix(_NAME)}"):
                _remove(entry.path)
    folder = f"{place}/{_NAME}{os.getpid()}"
    try:
        os.mkdir(folder)
    except OSError:
        return None
    try:
        if version == 2:
            _write(None, f"{folder}/cgroup.subtree_control", "+memory")
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.mkdir("try", dir_fd=opened)
        tried = all(os.access(f"{folder}/try/{name}", os.R_OK | os.W_OK) for name in _FILES[version][1:])
        os.rmdir("try", dir_fd=opened)
        if tried:
            return Groups(os.open(place, os.O_RDONLY | os.O_DIRECTORY), opened, version)
        os.close(opened)
    except OSError:
        pass
    with suppress(OSError):
        _remove(folder)
    return None


def _own() -> tuple[int, str] | None:
    """Return the version and the folder of the group that counts this process's memory."""
    paths: dict[int, str] = {}
    with suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file.read().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                paths[2] = path
            elif "memory" in controllers.split(","):
                paths[1] = path
    with suppress(OSError), open("/proc/self/mountinfo") as file:
        for line in file.read().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            version = {"cgroup2": 2}.get(kind) or (1 if kind == "cgroup" and "memory" in options.split(",") else 0)
            root, place = before.split()[3:5]
            if version in paths and (version == 1 or 1 not in paths):
                inner = os.path.relpath(paths[version], root)
                if not inner.startswith(".."):
                    return version, os.path.normpath(f"{place}/{inner}")
    return None


def _remove(folder: str) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir():
            os.rmdir(entry.path)
    os.rmdir(folder)


def _write(folder: int | None, name: str, text: str) -> None:
    file = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
