"""From the fork of the server to the policy's program: give up everything, then run.

If one step fails the program does not run. The fork server learns of it by a byte of memory that both see and that is
taken away from this process when it is confined: an exit code could be forged.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import sys
from dataclasses import dataclass

from . import Message, kernel, program, seccomp

_NICE = 5  # programs yield to the trainer, and to the fork server, which has to stop them in time
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8", "TZ": "UTC"}


@dataclass
class Confinement:
    """What the fork server prepared for all programs."""

    rules: int | None  # descriptor of Landlock's rules, or None without Landlock
    filter: bytes  # of system calls, without the process id
    address_space: int  # bytes that a program starts with
    loadavg: int | None  # descriptor of /proc/loadavg, or None where programs have users of their own
    users: range | None  # ids of which a program gets one of its own, or None without the right to give them
    keep_effective: bool  # see `kernel.become_nobody`
    flags: mmap.mmap  # memory shared with the children, one byte each: 1 from when it is confined
    pid: int  # of the fork server
    # Names of our own modules. To look for them among a thousand others would write to the pages of all of their names,
    # and cost each program 2 ms of copying.
    modules: list[str]


@dataclass
class Job:
    """A program to be run by this process."""

    request: Message
    descriptors: list[int]
    flag: int


def run(job: Job, confinement: Confinement) -> None:
    """Confine this process and run the program. Does not return."""
    leave = os._exit  # the program may replace it
    try:
        source = _confine(job, confinement)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        leave(1)
    request = job.request
    del job, confinement
    code, anything = 1, BaseException  # a program may take even this name away
    try:
        if request["session"]:
            program.serve(3, request["seed"])
            code = 0
        else:
            code = program.run(source, request["seed"])
    except anything as error:
        # A program can make functions of ours raise: by a profile function, a signal handler, one that it replaced.
        program.report(error)
        program.flush(1)
    finally:
        leave(code)


def _confine(job: Job, confinement: Confinement) -> bytes:
    request = job.request
    os.setsid()
    os.nice(_NICE)
    kernel.no_new_privileges()
    if confinement.rules is not None:
        kernel.landlock(confinement.rules)
    source = _arrange_descriptors(job)
    # Without users of their own, the trainer's threads count as well: then as many as the whole machine has, and more.
    threads = kernel.THREADS
    if confinement.loadavg is not None:
        threads += int(os.pread(confinement.loadavg, 200, 0).split()[3].partition(b"/")[2])
    # Nothing of the server's stays open: sockets, the descriptors of other programs, the rules.
    kernel.close_from(4 if request["session"] else 3)
    backstop = None if request["session"] else int(request["cpu_seconds"]) + 2
    memory = confinement.address_space + request["memory_bytes"]
    kernel.limit(memory, request["output_bytes"], backstop, threads)
    if confinement.users is not None:
        kernel.become_nobody(confinement.users, confinement.keep_effective)
    kernel.drop_capabilities()
    kernel.undumpable()
    kernel.die_with(confinement.pid)
    # Not secrets, just what `python main.py` would not show.
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    for name in confinement.modules:
        del sys.modules[name]
    # A line at a time: what was printed before a program is stopped is not lost.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.enable()
    seccomp.apply(seccomp.for_process(confinement.filter, os.getpid()))
    confinement.flags[job.flag] = 1
    confinement.flags.close()
    return source


def _arrange_descriptors(job: Job) -> bytes:
    """Put the files where a program looks for them: 0, 1 and 2, and the socket of a session at 3."""
    first, *others = job.descriptors
    source = b"" if job.request["session"] else os.pread(first, os.fstat(first).st_size, 0)
    # By way of higher numbers: one of the low ones may be among those that are moved.
    wanted = [*others, first] if job.request["session"] else others
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 4) for descriptor in wanted]
    for target, descriptor in enumerate(high):
        os.dup2(descriptor, target)
    return source
