"""What a program sees of files and of the network: Landlock, and namespaces where the system lets a process make them.

Landlock: a process gives up the rights to all files but a few, without any privilege. Linux 5.13 and later, see
https://docs.kernel.org/userspace-api/landlock.html. It decides who opens, lists and changes files, and (from ABI 4) who
connects by TCP, (from 6) who signals and speaks to abstract sockets outside. It does not watch stat, chmod, chown,
utimes, extended attributes, opening for neither reading nor writing, and (before ABI 3, Linux 6.2) truncation: those
are left to the filter of system calls.

Namespaces: no network, and a root that holds only what may be read. They come on top of Landlock and the filter, and
stand in for Landlock on kernels without it. Docker's default profile and restricted pods refuse them, and so do some
distributions; then there are none.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence

from . import kernel, seccomp

READ_FILE, READ_DIR, WRITE_FILE, TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights on files an ABI knows; bits from 0
_BIND_AND_CONNECT_TCP = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3
_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64)]


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def abi() -> int:
    """The version that the kernel speaks; 0 where there is none."""
    ask_for_version = 1
    try:
        return kernel.syscall(seccomp.number("landlock_create_ruleset"), None, 0, ask_for_version)
    except OSError:
        return 0


def ruleset(rules: Iterable[tuple[str, int]]) -> int:
    """Make a set of rules that refuses everything but `rules`: pairs of a path and the rights beneath it.

    Returns:
        A descriptor, for `apply`.
    """
    version = abi()
    handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    wanted = _Ruleset(handled, _BIND_AND_CONNECT_TCP, _SCOPE_SOCKETS_AND_SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # the record grew with the versions
    create = seccomp.number("landlock_create_ruleset")
    try:
        made = kernel.syscall(create, ctypes.byref(wanted), size, 0)
    except OSError:
        # Some kernels of RHEL 9 claim version 6 without the scopes.
        made = kernel.syscall(create, ctypes.byref(wanted), min(size, 16), 0)
    for path, rights in rules:
        where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= READ_FILE | WRITE_FILE | TRUNCATE
            rule = _Rule(rights & handled, where)
            beneath = 1
            kernel.syscall(seccomp.number("landlock_add_rule"), made, beneath, ctypes.byref(rule), 0)
        finally:
            os.close(where)
    return made


def apply(made: int) -> None:
    """Put this process under the rules, for good; it must have set no_new_privs before."""
    kernel.syscall(seccomp.number("landlock_restrict_self"), made, 0)


def leave_network() -> None:
    """Move this process into namespaces of its own: network, IPC, host name, mounts, and users unless it is root."""
    flags = _NEW_MOUNTS | _NEW_HOSTNAME | _NEW_IPC | _NEW_NETWORK
    user, group = os.getuid(), os.getgid()
    if kernel.capable(kernel.CAP_SYS_ADMIN):
        kernel.unshare(flags)
        return
    if user == 0:
        # A namespace of users would have root alone, and programs could not be given users of their own.
        raise OSError(errno.EPERM, "root without CAP_SYS_ADMIN")
    kernel.unshare(flags | _NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def furnish(readable: Sequence[str], hidden: Iterable[str], devices: Iterable[str]) -> None:
    """Make a root of which everything but `readable` is missing, read-only, and move into it.

    `hidden` folders inside of these are to be empty; what is readable inside of them stays. Devices are kept writable.
    If a mount fails this process has half a root, and must end.
    """
    kernel.mount("none", "/", None, _PRIVATE | _RECURSIVE)
    # The new root lies over /tmp, where something readable may lie as well: take hold of everything before.
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*readable, *devices)}
    root = "/tmp"
    kernel.mount("sandbox", root, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=4m,nr_inodes=16k,mode=755")
    for path in sorted(readable, key=len):
        _show(held[path], root + path, _READ_ONLY | _NO_SETUID | _NO_DEVICES)
        for folder in hidden:
            if folder.startswith(path + "/") and os.path.isdir(root + folder):
                kernel.mount(
                    "hidden", root + folder, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=1m,nr_inodes=4k,mode=755"
                )
    for path in devices:
        _show(held[path], root + path, _NO_SETUID)
    for name in os.listdir("/"):  # /lib is a link to /usr/lib on most systems, and programs name it
        if os.path.islink("/" + name) and not os.path.lexists(f"{root}/{name}"):
            os.symlink(os.readlink("/" + name), f"{root}/{name}")
    for descriptor in held.values():
        os.close(descriptor)
    os.chdir(root)
    kernel.pivot_root(".", ".")  # the old root now lies over the new one, and is taken away
    kernel.unmount(".")
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
    kernel.mount(f"/proc/self/fd/{source}", target, None, _BIND)
    # What the original is mounted with must be repeated: a user's namespace may add to it and take nothing away. Most
    # of statvfs's bits are mount's own.
    found = os.statvfs(target).f_flag
    same = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    relatime = 1 << 21 if found & os.ST_RELATIME else 0
    kernel.mount("none", target, None, _REMOUNT | _BIND | flags | found & same | relatime)
