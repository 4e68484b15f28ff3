"""The files through which a program is given its source and input and gives its output, and how the output is read.

They are files in memory (memfd) of limited size, read once, when all is over: a pipe would have to be emptied in time
while the program runs. What was written before a kill is in them.
"""

from __future__ import annotations

import fcntl
import os
import re

from agent_gym.sandbox.base import Execution, Limits, SandboxError, Status
from agent_gym.sandbox.inside import Exit

CUT = "\n[output cut here]\n"

# What could move a terminal's cursor or end a string of C: all control characters but tab, newline and return.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# The last line of a traceback, for Python's own and numpy's ("numpy._core._exceptions._ArrayMemoryError: Unable to").
_OUT_OF_MEMORY = re.compile(r"[\w.]*MemoryError\b")


class Streams:
    """Source (None for a session), input and outputs of one process; a context that closes them."""

    def __init__(self, source: str | None, stdin: str = "") -> None:
        self._open: list[int] = []
        try:
            self.source = -1 if source is None else self._file("source", encode(source))
            self.stdin = self._file("stdin", encode(stdin))
            self.stdout, self.stderr = self._file("stdout"), self._file("stderr")
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SandboxError(f"no file in memory can be made for a program: {error}") from error
            raise

    def clear(self) -> None:
        os.lseek(self.stdin, 0, os.SEEK_SET)
        for file in (self.stdout, self.stderr):
            os.ftruncate(file, 0)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self, name: str, content: bytes | None = None) -> int:
        file = os.memfd_create(name, os.MFD_CLOEXEC)
        self._open.append(file)
        if content is None:
            # Two writers, standard output and a thread at its end, must not overwrite each other.
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        else:
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
            os.lseek(file, 0, os.SEEK_SET)
        return file


def encode(text: str) -> bytes:
    """Encode as UTF-8. Lone surrogates become invalid bytes, which Python refuses in a source with a SyntaxError."""
    return text.encode("utf-8", "surrogatepass")


def shorten(data: bytes, keep: int) -> tuple[str, bool]:
    """Make text of an output; return whether something is missing from it, too.

    What is no text becomes U+FFFD. Of a longer output the beginning and the end stay, without half a character at the
    cut.
    """
    if len(data) <= keep:
        return _clean(data), False
    half = keep // 2
    head = re.sub(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z", b"", data[:half])
    tail = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", data[-half:])
    return _clean(head) + CUT + _clean(tail), True


def _clean(data: bytes) -> str:
    return _CONTROL.sub("\ufffd", data.decode("utf-8", "replace"))


def judge(streams: Streams, ended: Exit, limits: Limits) -> Execution:
    """Read the outputs and judge how the program ended."""
    written = [os.pread(file, int(limits.written_bytes), 0) for file in (streams.stdout, streams.stderr)]
    full = any(len(data) >= limits.written_bytes for data in written)
    (stdout, less_out), (stderr, less_err) = (shorten(data, int(limits.output_bytes)) for data in written)
    code = ended["code"]
    status: Status
    if ended["killed"] == "cpu":
        status = "cpu_limit"
    elif ended["killed"] == "wall":
        status = "wall_limit"
    elif code != 0 and full:
        status = "output_limit"
    else:
        status = status_of(code, stderr)
    exit_code = None if ended["killed"] is not None else code
    return Execution(status, stdout, stderr, exit_code, ended["cpu_seconds"], full or less_out or less_err)


def status_of(code: int, stderr: str) -> Status:
    """The status of a program that ended by itself."""
    if code == 0:
        return "ok"
    if code == 1 and _OUT_OF_MEMORY.match(stderr.rstrip("\n").rpartition("\n")[2]):
        return "memory_limit"
    return "killed" if code < 0 else "error"
