"""How much a command has taken, all its processes together: CPU time and memory, by the kernel's own figures.

CPU time is a counter of the kernel (perf_event_open(2), a task clock that children inherit). It holds the time of
processes that have ended, also of the ones that nobody waits for. Without the right to it, /proc is read, more often
while processes are made, and a sum that never falls is kept.

Memory is counted in three parts. The memory of one process is in its /proc/PID/task/TID/status: a process whose first
thread has ended has no figures, its other threads have. Shared memory (mmap with MAP_SHARED) can stay in memory when no
process has it mapped any more, and buffers of sockets belong to none: both are counted when they are asked for, by the
filter of system calls, which tells this process of it (seccomp_unotify(2)), and that sum never falls. Files are in the
session's own file system, which has a size.

A control group, where one can be made, counts the rest of the kernel's memory as well (`groups.py`). Without one, the
records of mappings are counted by their lines in /proc/PID/maps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field

from .groups import Group
from .seccomp import COLUMNS, MACHINE, RECEIVE, SEND

_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_NOTICE = struct.Struct(
    "QIIiIQ6Q"
)  # struct seccomp_notif: id, pid, flags, then the call, its machine, place, arguments
_ANSWER = struct.Struct("QqiI")
_SMALLEST = 16 << 10  # the least kernel memory of a mapping or a socket
_SOCKET_PAIR = 2 * 2 * 212_992  # bytes that both ends can hold in both directions, at the kernel's standard size
_PARTS = (b"RssAnon:", b"VmSwap:", b"VmPTE:")  # pages of files the kernel can drop
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LOOK_S, _LOOK_CLOSELY_S = 0.05, 0.01
_CLOSELY = 8  # from this part of the limit on
_RESERVE_SHARE, _RESERVE_BYTES = 20, 512 << 20  # a twentieth of the machine's memory, at most 512 MiB
_PATIENCE_S = 2.0  # a small command lives so much longer in a shortage than one that is near its limit
_MMAP = (9, 222)
_MAPPING_BYTES = 256  # a vm_area_struct, and its share of the tree in which it is
_FEW_MAPPINGS = 1 << 17  # bytes of /proc/PID/maps, some 1,500 lines: what has fewer is not counted
_MAPS_S = 0.5


@dataclass
class UsageMeter:
    """The limits of one command, and its usage."""

    cpu_seconds: float
    memory: int  # bytes
    clock: int | None  # descriptor of the kernel's counter of CPU time
    listener: int | None  # descriptor by which the filter tells of shared memory
    meminfo: int  # descriptors of /proc/meminfo and /proc/loadavg
    loadavg: int
    group: Group | None = None
    shared: int = 0  # bytes asked for
    _seen: dict[tuple[int, bytes], int] = field(default_factory=dict)  # ticks of each process that is or was there
    _most: int = 0  # ticks of all processes that were there at one time, and of those that they have waited for
    _made: bytes = b""  # the number of the last process or thread
    _maps: dict[str, tuple[float, int]] = field(default_factory=dict)  # by process, when it was counted: bytes
    _short_since: float | None = None
    _next: float = 0.0

    def over(self) -> str | None:
        """Say which limit is exceeded, if it is time to look: "cpu", "memory" or "machine"."""
        now = time.monotonic()
        if now < self._next and self.shared <= self.memory:
            return None
        memory = self._count() + self.shared
        if self.group is not None:
            memory = max(memory, self.group.memory())
        closely = memory * _CLOSELY > self.memory or (self.clock is None and self._forks())
        self._next = now + (_LOOK_CLOSELY_S if closely else _LOOK_S)
        if self._cpu() > self.cpu_seconds:
            return "cpu"
        if memory > self.memory:
            return "memory"
        return "machine" if self._short(now, memory) else None

    def over_at_the_end(self) -> str | None:
        """Say whether a command that has ended between two looks had taken too much CPU time."""
        if self.clock is None:
            self._count()
        return "cpu" if self._cpu() > self.cpu_seconds else None

    def wait(self, wakeup: int) -> None:
        """Wait for a signal, a notice of the filter, or the time to look again."""
        watched = [wakeup, *([] if self.listener is None else [self.listener])]
        ready = select.select(watched, [], [], max(0.0, self._next - time.monotonic()))[0]
        if wakeup in ready:
            with suppress(BlockingIOError):
                os.read(wakeup, 4096)
        if self.listener is not None and self.listener in ready:
            self._hear(self.listener)

    def _hear(self, listener: int) -> None:
        """Count a process's request, and grant it; `over` ends the command if it was too much."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, RECEIVE, notice)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise
            return  # who asked has ended
        number, _, _, call, _, _, _, length, *_ = _NOTICE.unpack(notice)
        asked = length if call == _MMAP[COLUMNS[MACHINE]] else _SOCKET_PAIR
        self.shared += max(asked, _SMALLEST)
        if self.shared > self.memory:
            return  # it waits until the command is ended
        with suppress(FileNotFoundError):
            fcntl.ioctl(listener, SEND, _ANSWER.pack(number, 0, 0, _CONTINUE))

    def _count(self) -> int:
        """Return the bytes that belong to one process each, over all; and, without a clock, note their CPU time."""
        kilobytes = ticks = 0
        now = time.monotonic()
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            if self.clock is None:
                with suppress(OSError):
                    ticks += self._look(int(name))
            with suppress(OSError):
                kilobytes += _resident(name)
                if self.group is None and kilobytes << 10 <= self.memory:
                    kilobytes += self._mapped(name, now) >> 10
        waited = os.times()  # processes whose parents have ended are children of this one
        self._most = max(self._most, ticks + round((waited.children_user + waited.children_system) / _TICK_S))
        return kilobytes << 10

    def _look(self, process: int) -> int:
        """Note the time of a process, and return it with that of the children for which it has waited, in ticks."""
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # a name may hold anything, so from its end on
        own, waited = (int(fields[at]) + int(fields[at + 1]) for at in (11, 13))
        begun = (process, fields[19])
        self._seen[begun] = max(own, self._seen.get(begun, 0))
        return own + waited

    def _mapped(self, process: str, now: float) -> int:
        """Return the bytes of the records of a process's mappings, where there are many."""
        before, known = self._maps.get(process, (0.0, 0))
        if now - before < _MAPS_S:
            return known
        with open(f"/proc/{process}/maps", "rb", buffering=0) as file:
            part = file.read(_FEW_MAPPINGS)
            lines, size = part.count(b"\n"), len(part)
            while part:
                part = file.read(_FEW_MAPPINGS)
                lines, size = lines + part.count(b"\n"), size + len(part)
        found = lines * _MAPPING_BYTES if size >= _FEW_MAPPINGS else 0
        self._maps[process] = now, found
        return found

    def _forks(self) -> bool:
        """Whether processes or threads were made since the last look, by the last number that the kernel has given."""
        made, self._made = self._made, os.pread(self.loadavg, 100, 0).split()[-1]
        return made != self._made

    def _cpu(self) -> float:
        if self.clock is None:
            return max(self._most, sum(self._seen.values())) * _TICK_S
        counted = struct.unpack("Q", os.read(self.clock, 8))[0] / 1e9
        return float(counted - time.process_time())  # this process is not a part of the command

    def _short(self, now: float, memory: int) -> bool:
        """Whether the machine has so little memory left that this command must end: larger ones end sooner."""
        fields = os.pread(self.meminfo, 4096, 0).split()
        total, available = (int(fields[fields.index(name) + 1]) << 10 for name in (b"MemTotal:", b"MemAvailable:"))
        if available >= min(total // _RESERVE_SHARE, _RESERVE_BYTES):
            self._short_since = None
            return False
        if self._short_since is None:
            self._short_since = now
        return now - self._short_since >= _PATIENCE_S * (1 - memory / self.memory)


def _resident(process: str) -> int:
    """Return the kilobytes that belong to a process: pages, swapped pages, and the tables of them."""
    threads = None
    place = f"/proc/{process}/status"
    while True:
        with suppress(OSError), open(place, "rb") as file:
            words = file.read().split()
            if b"VmRSS:" in words:
                return sum(int(words[words.index(part) + 1]) for part in _PARTS if part in words)
        # A first thread that has ended has no memory: others may have it.
        if threads is None:
            threads = [name for name in os.listdir(f"/proc/{process}/task") if name != process]
        if not threads:
            return 0
        place = f"/proc/{process}/task/{threads.pop()}/status"


def wakeup() -> int:
    """Have SIGCHLD write to a pipe, and return the end to wait for."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    return reading
