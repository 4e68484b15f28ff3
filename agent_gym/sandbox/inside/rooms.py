"""Namespaces, where the system lets a process make them: no network, and a root that holds only what may be read.

They come on top of Landlock and the filter, and stand in for Landlock on kernels without it. Docker's default profile
and restricted pods refuse them, and so do some distributions; then there are none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

from . import confine, libc

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


def leave_network() -> None:
    """Move this process into namespaces of its own: network, IPC, host name, mounts, and users unless it is root.

    Raises:
        OSError: if that is not allowed here; this process must end then.
    """
    flags = _NEW_MOUNTS | _NEW_HOSTNAME | _NEW_IPC | _NEW_NETWORK
    user, group = os.getuid(), os.getgid()
    if confine.capable(confine.CAP_SYS_ADMIN):
        libc.unshare(flags)
        return
    if user == 0:
        # A namespace of users would have root alone, and programs could not be given users of their own.
        raise OSError(errno.EPERM, "root without CAP_SYS_ADMIN")
    libc.unshare(flags | _NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def furnish(readable: Sequence[str], hidden: Iterable[str], devices: Iterable[str]) -> None:
    """Make a root of which everything but `readable` is missing, read-only, and move into it.

    Args:
        readable: files and folders, by their real paths.
        hidden: folders inside of these that are to be empty; what is readable inside of them stays.
        devices: special files to keep, writable.

    Raises:
        OSError: if a mount fails. This process then has half a root, and must end.
    """
    libc.mount("none", "/", None, _PRIVATE | _RECURSIVE)
    # The new root lies over /tmp, where something readable may lie as well: take hold of everything before.
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*readable, *devices)}
    root = "/tmp"
    libc.mount("sandbox", root, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=4m,nr_inodes=16k,mode=755")
    for path in sorted(readable, key=len):
        _show(held[path], root + path, _READ_ONLY | _NO_SETUID | _NO_DEVICES)
        for folder in hidden:
            if folder.startswith(path + "/") and os.path.isdir(root + folder):
                libc.mount("hidden", root + folder, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=1m,nr_inodes=4k,mode=755")
    for path in devices:
        _show(held[path], root + path, _NO_SETUID)
    for name in os.listdir("/"):  # /lib is a link to /usr/lib on most systems, and programs name it
        if os.path.islink("/" + name) and not os.path.lexists(f"{root}/{name}"):
            os.symlink(os.readlink("/" + name), f"{root}/{name}")
    for descriptor in held.values():
        os.close(descriptor)
    os.chdir(root)
    libc.pivot_root(".", ".")  # the old root now lies over the new one, and is taken away
    libc.unmount(".")
    os.chdir("/")
    # Not a read-only mount: the answer would be EROFS here and EACCES elsewhere, and observations must not differ.
    os.chmod("/", 0o555)


def _show(source: int, target: str, flags: int) -> None:
    """Mount what a descriptor holds at a path, which is made for it."""
    if os.path.isdir(f"/proc/self/fd/{source}"):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    libc.mount(f"/proc/self/fd/{source}", target, None, _BIND)
    # What the original is mounted with must be repeated: a user's namespace may add to it and take nothing away. Most
    # of statvfs's bits are mount's own.
    found = os.statvfs(target).f_flag
    same = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    relatime = 1 << 21 if found & os.ST_RELATIME else 0
    libc.mount("none", target, None, _REMOUNT | _BIND | flags | found & same | relatime)
