"""Programs that try to get out, to take all there is, or to fool those who read their output.

`CANARY`, `PORT` and `VICTIM` stand for the folder of a secret file that all users may read and write, a port of this
machine where a server listens, and the process id of a bystander. A program that gets what it wants prints ESCAPED;
what it does without printing is looked for from outside (sandbox_judge.py). Run them nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path

# `call` makes a system call by its number, as machine code could; every one of these must be refused.
_CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
room = ctypes.create_string_buffer(4096)
def call(name, number, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    print("ESCAPED by" if result >= 0 else "refused", name, result, ctypes.get_errno())
"""

_SYSCALLS = {
    "io_uring": ("io_uring_setup", 425, "8, room"),
    "io_uring_enter": ("io_uring_enter", 426, "0, 0, 0, 0, 0"),
    "userfaultfd": ("userfaultfd", 323, "0"),
    "memfd_create": ("memfd_create", 319, "room, 0"),
    "memfd_secret": ("memfd_secret", 447, "0"),
    "keyctl": ("keyctl", 250, "0, -3, 1"),
    "add_key": ("add_key", 248, "b'user', b'x', b'y', 1, -3"),
    "pidfd_open": ("pidfd_open", 434, "VICTIM, 0"),
    "pidfd_getfd": ("pidfd_getfd", 438, "0, 0, 0"),
    "pidfd_send_signal": ("pidfd_send_signal", 424, "0, 9, 0, 0"),
    "process_vm_writev": ("process_vm_writev", 311, "os.getppid(), room, 0, room, 0, 0"),
    "process_madvise": ("process_madvise", 440, "0, room, 0, 4, 0"),
    "kcmp": ("kcmp", 312, "os.getppid(), os.getpid(), 0, 0, 0"),
    "ptrace_traceme": ("ptrace", 101, "0, 0, 0, 0"),
    "ptrace_seize": ("ptrace", 101, "0x4206, os.getppid(), 0, 0"),
    "bpf": ("bpf", 321, "0, room, 128"),
    "perf_event_open": ("perf_event_open", 298, "room, 0, -1, -1, 0"),
    "landlock_again": ("landlock_create_ruleset", 444, "0, 0, 1"),
    "seccomp_again": ("seccomp", 317, "0, 0, 0"),
    "clone_process": ("clone", 56, "17, 0, 0, 0, 0"),
    "clone_user_namespace": ("clone", 56, "0x10000000 | 0x10f00, 0, 0, 0, 0"),
    "clone3": ("clone3", 435, "room, 88"),
    "vfork": ("vfork", 58, ""),
    "setns": ("setns", 308, "0, 0"),
    "unshare": ("unshare", 272, "0x10000000"),
    "mount": ("mount", 165, "b'x', b'/tmp', b'tmpfs', 0, 0"),
    "new_mount_api": ("fsopen", 430, "b'tmpfs', 0"),
    "open_tree": ("open_tree", 428, "-100, b'/', 1"),
    "chroot": ("chroot", 161, "b'/'"),
    "open_by_handle": ("open_by_handle_at", 304, "-100, room, 0"),
    "openat2": ("openat2", 437, "-100, b'/etc/passwd', room, 24"),
    "chmod": ("chmod", 90, "b'CANARY/secret', 0o777"),
    "fchmodat2": ("fchmodat2", 452, "-100, b'CANARY/secret', 0o777, 0"),
    "chown": ("chown", 92, "b'CANARY/secret', 12345, 12345"),
    "utimensat": ("utimensat", 280, "-100, b'CANARY/secret', 0, 0"),
    "setxattr": ("setxattr", 188, "b'CANARY/secret', b'user.x', b'y', 1, 0"),
    "personality": ("personality", 135, "0x0040000"),
    "setuid": ("setresuid", 117, "0, 0, 0"),
    "capset": ("capset", 126, "room, room"),
    "prctl_dumpable": ("prctl", 157, "4, 1, 0, 0, 0"),
    "prctl_parent_death": ("prctl", 157, "1, 0, 0, 0, 0"),
    "prctl_subreaper": ("prctl", 157, "36, 1, 0, 0, 0"),
    "prlimit_of_parent": ("prlimit64", 302, "os.getppid(), 0, room, 0"),
    "setrlimit": ("setrlimit", 160, "0, room"),
    "setpriority": ("setpriority", 141, "0, VICTIM, 19"),
    "sched_setattr": ("sched_setattr", 314, "0, room, 0"),
    "sched_setaffinity": ("sched_setaffinity", 203, "VICTIM, 8, room"),
    "ioprio_set": ("ioprio_set", 251, "1, VICTIM, 0"),
    "tkill": ("tkill", 200, "VICTIM, 0"),
    "sigqueue": ("rt_sigqueueinfo", 129, "VICTIM, 0, room"),
    "tgkill": ("tgkill", 234, "VICTIM, VICTIM, 0"),
    "kill_group": ("kill", 62, "0, 0"),
    "kill_all": ("kill", 62, "-1, 0"),
    "setpgid": ("setpgid", 109, "0, os.getppid()"),
    "timer_create": ("timer_create", 222, "0, 0, room"),
    "timerfd": ("timerfd_create", 283, "0, 0"),
    "signalfd": ("signalfd4", 289, "-1, room, 8, 0"),
    "inotify": ("inotify_init1", 294, "0"),
    "fanotify": ("fanotify_init", 300, "0, 0"),
    "shmget": ("shmget", 29, "0, 4096, 0o1777"),
    "msgget": ("msgget", 68, "0, 0o1777"),
    "mq_open": ("mq_open", 240, "b'q', 0o102, 0o777, 0"),
    "socket_inet": ("socket", 41, "2, 1, 0"),
    "socket_packet": ("socket", 41, "17, 3, 3"),
    "socket_netlink": ("socket", 41, "16, 3, 0"),
    "socket_alg": ("socket", 41, "38, 5, 0"),
    "socket_vsock": ("socket", 41, "40, 1, 0"),
    "socket_unix": ("socket", 41, "1, 1, 0"),
    "socketpair_inet": ("socketpair", 53, "2, 1, 0, room"),
    "execveat": ("execveat", 322, "-100, b'/bin/true', 0, 0, 0"),
    "acct": ("acct", 163, "0"),
    "swapoff": ("swapoff", 168, "b'/x'"),
    "reboot": ("reboot", 169, "0, 0, 0, 0"),
    "sethostname": ("sethostname", 170, "b'x', 1"),
    "settimeofday": ("settimeofday", 164, "room, 0"),
    "quotactl": ("quotactl", 179, "0, 0, 0, room"),
    "init_module": ("init_module", 175, "room, 0, b''"),
    "kexec": ("kexec_load", 246, "0, 0, 0, 0"),
    "modify_ldt": ("modify_ldt", 154, "0, room, 16"),
    "iopl": ("iopl", 172, "3"),
    "remap_file_pages": ("remap_file_pages", 216, "0, 0, 0, 0, 0"),
    "vmsplice": ("vmsplice", 278, "1, room, 0, 0"),
    "sendmsg": ("sendmsg", 46, "1, room, 0"),
    "sendto_address": ("sendto", 44, "1, b'x', 1, 0, room, 16"),
    "pipe_size": ("fcntl", 72, "os.pipe()[0], 1031, 1 << 20"),
    "seal_output": ("fcntl", 72, "1, 1033, 8"),
    "own_signal": ("fcntl", 72, "0, 8, VICTIM"),
    "file_lease": ("fcntl", 72, "0, 1024, 0"),
    "tiocsti": ("ioctl", 16, "0, 0x5412, b'x'"),
    "fioasync": ("ioctl", 16, "0, 0x5452, room"),
    "lsm_list": ("lsm_list_modules", 461, "room, room, 0"),
    "unknown": ("one that does not exist yet", 999, "0"),
}

_DATA = Path(__file__).parent / "data"


def read_programs(name: str) -> dict[str, str]:
    """Read a file of programs, each under a line `=== its name`."""
    _, *parts = re.split(r"^=== (.+)\n", (_DATA / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: code.rstrip("\n") + "\n" for title, code in zip(parts[::2], parts[1::2], strict=True)}


QUICK: dict[str, str] = {
    f"syscall: {name}": f"{_CALL}\ncall({what!r}, {number}{', ' if arguments else ''}{arguments})\n"
    for name, (what, number, arguments) in _SYSCALLS.items()
}

QUICK |= read_programs("hostile_quick.txt")
SLOW = read_programs("hostile_slow.txt")

# What a text file cannot hold, or what needs `call`.
QUICK |= {
    "x32 table": _CALL + "\ncall('socket of the x32 table', 0x40000000 + 41, 2, 1, 0)\n",
    "NUL in the source": "print(1)\0\nprint(2)\n",
    "surrogate in the source": "print('\ud800')\n",
}
SLOW |= {
    # Threads without stacks or memory of their own, which no limit of memory would stop: clone, then pause for ever.
    "threads by machine code": _CALL
    + """
import mmap
code, stack = mmap.mmap(-1, 4096, prot=7), mmap.mmap(-1, 4096)
code.write(bytes.fromhex("b822000000" "0f05" "ebf7"))
address = lambda memory: ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.c_long.from_address(address(stack) + 2048).value = address(code)
n = 0
while n < 3000 and libc.syscall(56, 0x10f00, ctypes.c_long(address(stack) + 2048), 0, 0, 0) > 0:
    n += 1
print(n, ctypes.get_errno(), "ESCAPED" if n > 1500 else "bounded")
""",
}
