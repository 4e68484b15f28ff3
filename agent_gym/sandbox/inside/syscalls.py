"""Which system calls a policy's program may make, and why.

It is a list of what is allowed: whatever the kernel has or will have beside it is answered with EPERM. That keeps out,
without naming them, io_uring (which would do file and network work past any filter), ptrace, process_vm_readv,
pidfd_getfd and kcmp (other processes), bpf, perf_event_open, userfaultfd, keyctl and add_key, memfd_create and
memfd_secret (memory that no limit counts), shmget and msgget (memory that outlives the process), setrlimit, setuid and
unshare, mount and chroot, open_by_handle_at, the clocks and the scheduler of others, and chmod, chown, utimes and
setxattr, which Landlock does not watch.
"""

from __future__ import annotations

# The hot ones first: the filter is read from the top.
ALLOWED = tuple(
    name
    for group in (
        # Read and write what is open: standard input, the two outputs, and files that Landlock let it open.
        "read write readv writev pread64 pwrite64 lseek close close_range dup dup2 dup3",
        # Memory; RLIMIT_AS counts all of it. PROT_EXEC stays possible (ctypes and libffi need it), and is no loss:
        # native code meets the same filter.
        "mmap munmap mprotect mremap madvise brk",
        # Threads: locks, their bookkeeping in glibc, and the number of cores. Making one is judged below.
        "futex set_robust_list rseq sched_yield sched_getaffinity",
        # Look at files. Names and sizes of known paths can be asked for; contents are a matter of Landlock.
        "fstat stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir",
        "getdents getdents64 statfs fstatfs fadvise64 umask",
        # On a file that can only be read these do nothing, and programs call them out of habit. flock does something:
        # a lock on a file of the standard library would be seen by the programs of others, and so be a way to speak.
        "fsync fdatasync",
        # Ask who and where one is. They change nothing, and Python asks some of them at the start of a module.
        "getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid",
        "uname sysinfo times getrusage getrlimit",
        # Time: read it, sleep, and be woken. Timers send signals to their own process only. timer_create is left out:
        # each of its timers takes kernel memory, and Python has no use for it.
        "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time alarm setitimer getitimer pause",
        # Signals to oneself. restart_syscall goes on with a sleep that a stopped session was in.
        "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack",
        "restart_syscall",
        # Pipes to oneself and waiting for them: asyncio and the queues of threads. Their size cannot be raised (fcntl).
        "pipe pipe2 select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait recvfrom",
        # Children do not exist; the honest answer (ECHILD) is better than a refusal.
        "wait4 waitid",
        "getrandom exit exit_group",
    )
    for name in group.split()
)

# They change the file system. Landlock and a read-only root refuse them too, with this same answer, so that programs
# read the same wherever they run.
REFUSED_WITH_EACCES = (
    "unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir symlink symlinkat link linkat "
    "truncate ftruncate creat"
).split()

# No other programs and no network. EACCES is what Python's own error messages make the most sense of.
REFUSED_WITH_EACCES += ["execve", "execveat", "socket"]

# glibc tries the newer call first and falls back to the older one, whose arguments a filter can see: those of clone3
# and openat2 lie in memory, where another thread could change them after they were judged.
REFUSED_WITH_ENOSYS = ["clone3", "openat2"]

# fcntl: descriptors and their flags. Left out are F_SETOWN and F_SETSIG, by which the kernel can be made to send any
# signal to any process of the same user when a file becomes readable; F_SETPIPE_SZ, memory that no limit counts;
# F_ADD_SEALS, which would freeze the output of a session; leases and directory notification.
FCNTL_COMMANDS = {
    "F_DUPFD": 0,
    "F_GETFD": 1,
    "F_SETFD": 2,
    "F_GETFL": 3,
    "F_SETFL": 4,
    "F_DUPFD_CLOEXEC": 1030,
    "F_GETPIPE_SZ": 1032,
}

# ioctl: what Python asks of an open file. TIOCSTI, which types into a terminal, and everything of devices is left out.
IOCTL_COMMANDS = {
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
}

# prctl: the name of a thread. Nothing that could undo a protection (dumpable, the signal when the parent dies).
PRCTL_OPTIONS = {"PR_SET_NAME": 15, "PR_GET_NAME": 16}

AF_UNIX = 1
CLONE_THREAD = 0x10000
CLONE_NAMESPACES = 0x7E020080
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and __O_TMPFILE: what makes an open one for writing.
OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000
# What Landlock does not watch in all of its versions, of O_ACCMODE and O_TRUNC: access mode 3, a descriptor for neither
# reading nor writing, for which it asks no right, and, before version 3, a file that is opened for reading and emptied.
OPEN_UNWATCHED = (0o3, 0o3 | 0o1000, 0o0 | 0o1000)
