"""Which system calls a policy's program may make, and why: a filter for the kernel (seccomp-bpf), without libseccomp.

It is a list of the allowed calls: whatever else the kernel has or will have is answered with EPERM. That keeps out, for
example, io_uring (which would do file and network work past any filter), ptrace, pidfd_getfd and kcmp (other
processes), memfd_create (memory that no limit counts), shmget and msgget (memory that outlives the process), the
scheduler of others, and chmod, chown, utimes and setxattr, which Landlock does not watch.

The kernel runs the filter before each system call, on this record: the number of the call (4 bytes), the architecture
(4), the address of the instruction (8), and six arguments of 8 bytes. See seccomp(2), and linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterable

from . import kernel

# By which `usage.Meter` hears of calls and answers: SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND.
NOTIFICATIONS = RECEIVE, SEND = 0xC0502100, 0xC0182101

_Numbers = dict[str, list[str]]


def _numbers(*groups: str) -> _Numbers:
    """Read the names of calls with their numbers on x86_64 and aarch64, from the headers of Linux 6.

    A dash marks a call that a newer one replaced.
    """
    entries = [entry.split() for entry in ", ".join(groups).split(", ")]
    return {name: numbers for name, *numbers in entries}


# The hot ones first: the filter is read from the top.
_ALLOWED = _numbers(
    # Read and write open files: standard input, the two outputs, and files that Landlock let it open.
    "read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57, "
    "close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24",
    # Memory; RLIMIT_AS counts all of it. PROT_EXEC stays possible (ctypes and libffi need it), and costs nothing:
    # native code meets the same filter.
    "mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214",
    # Threads: locks, their bookkeeping in glibc, and the number of cores. Making one is judged below.
    "futex 202 98, set_robust_list 273 99, rseq 334 293, sched_yield 24 124, sched_getaffinity 204 123",
    # Look at files. Names and sizes of known paths can be asked for; contents are a matter of Landlock.
    "fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, "
    "faccessat2 439 439, readlink 89 -, readlinkat 267 78, getcwd 79 17, chdir 80 49, fchdir 81 50, getdents 78 -, "
    "getdents64 217 61, statfs 137 43, fstatfs 138 44, fadvise64 221 223, umask 95 166",
    # On a file that can only be read these do nothing, and programs call them out of habit. flock does something:
    # a lock on a file of the standard library would be seen by the programs of others, and so be a way to speak.
    "fsync 74 82, fdatasync 75 83",
    # Ask who and where one is. They change nothing, and Python asks some of them at the start of a module.
    "getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, "
    "getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155, "
    "getsid 124 156, uname 63 160, sysinfo 99 179, times 100 153, getrusage 98 165, getrlimit 97 163",
    # Time: read it, sleep, and be woken. Timers send signals to their own process only. timer_create is left out:
    # each of its timers takes kernel memory, and Python has no use for it.
    "clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169, "
    "time 201 -, alarm 37 -, setitimer 38 103, getitimer 36 102, pause 34 -",
    # Signals to oneself. restart_syscall continues a sleep that a stopped session was in.
    "rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133, "
    "rt_sigtimedwait 128 137, sigaltstack 131 132, restart_syscall 219 128",
    # Pipes to oneself and waiting for them: asyncio and the queues of threads. Their size cannot be raised (fcntl).
    "pipe 22 -, pipe2 293 59, select 23 -, pselect6 270 72, poll 7 -, ppoll 271 73, epoll_create 213 -, "
    "epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, recvfrom 45 207",
    # Children do not exist; the honest answer (ECHILD) is better than a refusal.
    "wait4 61 260, waitid 247 95, getrandom 318 278, exit 60 93, exit_group 231 94",
)

# Allowed for some arguments, which `template` names.
_JUDGED = _numbers(
    "openat 257 56, open 2 -, clone 56 220, kill 62 129, tgkill 234 131, fcntl 72 25, ioctl 16 29, prctl 157 167, "
    "prlimit64 302 261, socketpair 53 199, sendto 44 206, mmap 9 222",
)

# They change the file system. Landlock and a read-only root refuse them too, with this same answer, so that programs
# read the same wherever they run.
_FILE_CHANGES = _numbers(
    "unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -, mkdirat 258 34, "
    "rmdir 84 -, symlink 88 -, symlinkat 266 36, link 86 -, linkat 265 37, truncate 76 45, ftruncate 77 46, creat 85 -"
)
# No other programs and no network. Python's own error messages explain EACCES best.
_REFUSED_WITH_EACCES = _FILE_CHANGES | _numbers("execve 59 221, execveat 322 281, socket 41 198")

# The further calls of a shell's programs: start others, and change files as far as their mounts allow. A socket is
# still refused. So are the calls by which a process reaches into another one, and new namespaces.
_SHELL = _FILE_CHANGES | _numbers(
    # At the start of every program, and of others by it.
    "execve 59 221, fork 57 -, vfork 58 -, arch_prctl 158 -, set_tid_address 218 96, setpgid 109 154, setsid 112 157, "
    # Bash asks whether it was started over the network, and takes a refusal for a yes (getpeername).
    "getpriority 140 141, capget 125 90, getpeername 52 205, tkill 200 130",
    # Files: all folders that hold none of the session are read-only.
    "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, lchown 94 -, fchown 93 55, "
    "fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, mknod 133 -, mknodat 259 33, "
    "flock 73 32, fallocate 285 47, copy_file_range 326 285, sendfile 40 71, splice 275 76, sync 162 81, "
    "syncfs 306 267, msync 26 227, preadv 295 69, pwritev 296 70, readahead 187 213, getxattr 191 8, lgetxattr 192 9, "
    "fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13",
)

# glibc tries the newer call first and falls back to the older one, whose arguments a filter can see: the arguments of
# clone3 and openat2 lie in memory, where another thread could change them after they were judged.
_REFUSED_WITH_ENOSYS = _numbers("clone3 435 435, openat2 437 437")
# As file systems without extended attributes answer: `sed -i` and `cp -p` then say nothing of it.
_REFUSED_TO_SHELLS = _numbers("setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7")

# fcntl: descriptors and their flags. Left out are F_SETOWN and F_SETSIG, by which the kernel can be made to send any
# signal to any process of the same user when a file becomes readable; F_SETPIPE_SZ, memory that no limit counts;
# F_ADD_SEALS, which would freeze the output of a session; leases and directory notification.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC, _F_GETPIPE_SZ = 0, 1, 2, 3, 4, 1030, 1032
_F_LOCKS = (5, 6, 7, 36, 37, 38)  # of databases, in a session's own files
_FCNTL_COMMANDS = (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC, _F_GETPIPE_SZ)

# ioctl: Python's calls for an open file. TIOCSTI, which types into a terminal, and everything of devices is left out.
_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451
_IOCTL_COMMANDS = (_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)

# prctl: the name of a thread. Nothing that could undo a protection (dumpable, the signal when the parent dies).
_PR_SET_NAME, _PR_GET_NAME = 15, 16

_AF_UNIX = 1
# mmap: a mapping of one process alone. Of the large pages of a machine, which no figure of a process has, none.
_MAP_TYPE, _MAP_PRIVATE, _MAP_HUGETLB = 0xF, 0x2, 0x40000
_CLONE_THREAD = 0x10000
_CLONE_NAMESPACES = 0x7E020080
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and __O_TMPFILE: the flags of an open for writing.
_OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000
# The parts of O_ACCMODE that not all versions of Landlock watch and O_TRUNC: access mode 3, a descriptor for neither
# reading nor writing, for which it asks no right, and, before version 3, a file that is opened for reading and emptied.
OPEN_UNWATCHED = (0o3, 0o3 | 0o1000, 0o0 | 0o1000)

MACHINE = os.uname().machine
COLUMNS = {"x86_64": 0, "aarch64": 1}  # of the numbers
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # a second set of numbers on x86_64, which would pass a filter of the first unseen
_SECCOMP = {"x86_64": 317, "aarch64": 277}

_LOAD, _AND, _JUMP_EQ, _JUMP_GE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _TELL = 0x7FFF0000, 0x80000000, 0x7FC00000
_NEW_LISTENER = 1 << 3
_NUMBER, _ARCHITECTURE = 0, 4

# Holds the place of the process id in the program until `for_process` sets it; above any process id.
_OWN_PID = 0x7FFFFFFE

_Instruction = tuple[int, int, int, int]


def template(landlock: bool, shell: bool = False, told: bool = True) -> bytes:
    """Build the filter, with a placeholder for the process id. Without Landlock no file may be opened for writing.

    That of a `shell` has no placeholder: its signals are held by the namespace of processes that it runs in. Its
    processes can share memory, and the first one is told of that (`listen`); or none may, unless `told`.
    """
    judged = {
        "openat": _opening(2, landlock),
        "open": _opening(1, landlock),
        # One process is one execution: a process that cannot fork can be killed completely, and its limits cover all
        # that it does.
        "clone": _thread_only(),
        "kill": _one_of(0, [_OWN_PID], errno.EPERM),
        "tgkill": _one_of(0, [_OWN_PID], errno.EPERM),
        "fcntl": _one_of(1, _FCNTL_COMMANDS, errno.EPERM),
        "ioctl": _one_of(1, _IOCTL_COMMANDS, errno.ENOTTY),
        "prctl": _one_of(0, [_PR_SET_NAME, _PR_GET_NAME], errno.EPERM),
        "prlimit64": _only_without(2),  # the new limit: reading one's limits is all right
        # A pair is connected to itself alone; asyncio wakes its loop by one. Nothing is sent to an address, and sendmsg
        # is not allowed at all: descriptors in flight are counted by no limit.
        "socketpair": _one_of(0, [_AF_UNIX], errno.EACCES),
        "sendto": _only_without(4),
        "mmap": [_return(_ALLOW)],
    }
    allowed = _ALLOWED
    if shell:
        allowed = {name: numbers for name, numbers in (_ALLOWED | _SHELL).items() if name != "mmap"}
        sharing = _return(_TELL) if told else _refuse(errno.ENOMEM)
        judged |= {
            "mmap": _private_or(sharing),
            "socketpair": [_argument(0), (_JUMP_EQ, 0, 1, _AF_UNIX), sharing, _refuse(errno.EACCES)],
        }
        judged |= dict.fromkeys(("openat", "open", "kill", "tgkill"), [_return(_ALLOW)])
        judged |= {"clone": _no_namespace(), "fcntl": _one_of(1, (*_FCNTL_COMMANDS, *_F_LOCKS), errno.EPERM)}
        # For the first process alone: no other can get a descriptor of the kind that understands these.
        judged["ioctl"] = _one_of(1, (*_IOCTL_COMMANDS, *NOTIFICATIONS), errno.ENOTTY)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQ, 1, 0, _ARCHITECTURES[MACHINE]),
        _return(_KILL),  # int 0x80 and the like: another table of numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if MACHINE == "x86_64":
        program += [(_JUMP_GE, 0, 1, _X32), _return(_KILL)]

    def on(calls: _Numbers, body: Callable[[str], list[_Instruction]]) -> None:
        for name, numbers in calls.items():
            number, then = numbers[COLUMNS[MACHINE]], body(name)
            if number != "-" and (calls is allowed or name not in allowed):
                program.extend([(_JUMP_EQ, 0, len(then), int(number)), *then])

    on(allowed, lambda name: [_return(_ALLOW)])
    on(_JUDGED, lambda name: judged[name])
    on(_REFUSED_WITH_EACCES, lambda name: [_refuse(errno.EACCES)])
    if shell:
        on(_REFUSED_TO_SHELLS, lambda name: [_refuse(errno.EOPNOTSUPP)])
    on(_REFUSED_WITH_ENOSYS, lambda name: [_refuse(errno.ENOSYS)])
    program.append(_refuse(errno.EPERM))
    return assembled(program)


def assembled(program: Iterable[_Instruction]) -> bytes:
    """Return the instructions as the kernel reads them."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def for_process(template: bytes, pid: int) -> bytes:
    """Put the process id into the filter: signals go to this process only."""
    return template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))


def apply(program: bytes) -> None:
    """Put this process under the filter, for good."""
    _apply(program, 0)


def listen(program: bytes) -> int:
    """Put this process under the filter, for good, and return a descriptor that reads the calls it tells of.

    Needs Linux 5.5, and no other filter above it that does the same, as some containers have.
    """
    return _apply(program, _NEW_LISTENER)


def _apply(program: bytes, flags: int) -> int:
    set_mode_filter = 1
    code = ctypes.create_string_buffer(program, len(program))
    record = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    return kernel.syscall(_SECCOMP[MACHINE], set_mode_filter, flags, record)


def _return(verdict: int) -> _Instruction:
    return _RETURN, 0, 0, verdict


def _refuse(error: int) -> _Instruction:
    return _return(0x00050000 | error)


def _argument(index: int, high: bool = False) -> _Instruction:
    """Load half of an argument. Where the kernel itself looks at the low 32 bits only, so do we."""
    return _LOAD, 0, 0, 16 + 8 * index + (4 if high else 0)


def _one_of(index: int, values: Iterable[int], error: int) -> list[_Instruction]:
    """Allow if the argument, of 32 bits, is one of the values."""
    body = [_argument(index)]
    for value in values:
        body += [(_JUMP_EQ, 0, 1, value), _return(_ALLOW)]
    return [*body, _refuse(error)]


def _only_without(index: int) -> list[_Instruction]:
    """Allow if the argument, a pointer, is null: both halves of it."""
    low, high = _argument(index), _argument(index, high=True)
    return [low, (_JUMP_EQ, 0, 3, 0), high, (_JUMP_EQ, 0, 1, 0), _return(_ALLOW), _refuse(errno.EPERM)]


def _thread_only() -> list[_Instruction]:
    neither = (_JUMP_ANY_BIT, 2, 0, _CLONE_NAMESPACES)
    return [_argument(0), neither, (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _refuse(errno.EPERM)]


def _private_or(verdict: _Instruction) -> list[_Instruction]:
    """Allow a mapping that belongs to one process; others get the verdict."""
    large = [_argument(3), (_JUMP_ANY_BIT, 0, 1, _MAP_HUGETLB), _refuse(errno.ENOMEM)]
    return [*large, (_AND, 0, 0, _MAP_TYPE), (_JUMP_EQ, 0, 1, _MAP_PRIVATE), _return(_ALLOW), verdict]


def _no_namespace() -> list[_Instruction]:
    # The lowest bit of these is among the bits of the signal at the end, where no signal has it.
    return [_argument(0), (_JUMP_ANY_BIT, 0, 1, _CLONE_NAMESPACES), _refuse(errno.EPERM), _return(_ALLOW)]


def _opening(index: int, landlock: bool) -> list[_Instruction]:
    if not landlock:
        return [_argument(index), (_JUMP_ANY_BIT, 0, 1, _OPEN_FOR_WRITING), _refuse(errno.EACCES), _return(_ALLOW)]
    program = [_argument(index), (_AND, 0, 0, os.O_ACCMODE | os.O_TRUNC)]
    for flags in OPEN_UNWATCHED:
        program += [(_JUMP_EQ, 0, 1, flags), _refuse(errno.EACCES)]
    return [*program, _return(_ALLOW)]
