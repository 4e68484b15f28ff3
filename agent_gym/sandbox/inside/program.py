"""Runs a program as `python main.py` would: same output, same tracebacks, same exit code.

The interpreter's own way ends with taking all modules apart, which takes longer than most programs. So the part that a
user can see of it is done here: the print of exceptions (without our frames), `sys.exit`, threads that still run,
functions registered with atexit, and objects with `__del__` that live to the end.

In a session programs run one after the other in one namespace. The caller sends a token of 8 bytes, a length of 4 and
the source, and gets the token back with one byte, the exit code. Between two calls it stops this process, so that
threads that a program left are stopped. By the token the caller knows a late answer from the answer to its call. It is
not a secret from programs: an earlier one can read the socket and answer in this file's place, see `Session`.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import gc
import io
import itertools
import linecache
import os
import random
import signal
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

from . import PID_BYTES, TOKEN_BYTES

NAME = "main.py"
_SOURCES: set[str] = set()  # names of programs that are not files
_FOLDER = os.path.dirname(__file__) + os.sep
_display = sys.__excepthook__

# Frames below a program count against its recursion limit. A script has none, and with these few more than the
# standard 1000 it gets as deep as a script; it is shown the standard number.
_FRAMES_BELOW = 6 if sys.version_info < (3, 12) else 5


def run(source: bytes, seed: int) -> int:
    """Run a whole program, and return its exit code."""
    module = prepare(seed)
    code = execute(source, NAME, module.__dict__)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    except BaseException as error:
        report(error, f"Exception ignored in: {threading!r}\n")
    try:
        atexit._run_exitfuncs()
    except BaseException as error:
        report(error)
    # Objects that still hold the module's names may be in a cycle with them; `__del__` and `finally` run in here.
    sys.modules.pop("__main__", None)
    del module
    gc.collect()
    return flush(code)


def prepare(seed: int) -> ModuleType:
    """Make this process look like an interpreter that has just begun with main.py."""
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed & 0xFFFFFFFF)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # `print(2**20000)`: the limit guards servers, and here CPU time is bounded
    sys.argv, sys.orig_argv = [NAME], ["python", NAME]
    io.open = _open_for_traceback  # called by C before 3.13; later versions ask linecache
    get, set_ = sys.getrecursionlimit, sys.setrecursionlimit
    set_(get() + _FRAMES_BELOW)
    sys.getrecursionlimit = lambda: get() - _FRAMES_BELOW
    sys.setrecursionlimit = lambda limit: set_(limit + _FRAMES_BELOW)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=NAME, __builtins__=builtins)
    sys.modules["__main__"] = module
    return module


def execute(source: bytes, name: str, namespace: dict[str, Any], cell: bool = False) -> int:
    """Compile and run; print the error; return the exit code so far.

    A cell whose last statement is an expression shows its value, as the interactive interpreter does.
    """
    # Tracebacks and warnings quote lines of a file that does not exist.
    _SOURCES.add(name)
    linecache.cache[name] = (len(source), None, source.decode("utf-8", "replace").splitlines(keepends=True), name)
    try:
        code: Any = source
        last = None
        if cell:
            # Not ast.parse, whose frame would be in the traceback of a syntax error.
            code = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, name, "exec", dont_inherit=True), namespace)
        if last is not None:
            shown = ast.Expression(last.value)
            sys.displayhook(eval(compile(shown, name, "eval", dont_inherit=True), namespace))
        return 0
    except BaseException as error:
        raised = error
    # Not in the clause above: an error of the program's own hook would have this exception as its context.
    return _conclude(raised)


def _conclude(error: BaseException) -> int:
    """Print an uncaught exception as the interpreter does; return the exit code."""
    if issubclass(type(error), SystemExit):
        return _exit_code(error)
    _forget_our_frames(error)
    failed: BaseException | None = None
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:
        failed = broken
    if failed is not None:
        if issubclass(type(failed), SystemExit):
            return _exit_code(failed)
        report(failed, "Error in sys.excepthook:\n")
        report(error, "\nOriginal exception was:\n")
    if issubclass(type(error), KeyboardInterrupt):
        flush(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def report(error: BaseException, title: str = "") -> None:
    """Print an exception as the interpreter does, without frames of ours; a program may have broken even this."""
    try:
        sys.stderr.write(title)
        _forget_our_frames(error)
        _display(type(error), error, error.__traceback__)
    except BaseException:
        pass


def _forget_our_frames(error: BaseException) -> None:
    """Take frames of this package out of the tracebacks of an exception and of its causes."""
    found: list[BaseException | None] = [error]
    for one in found:
        if one is None:
            continue
        tb = one.__traceback__
        while tb is not None and _is_ours(tb):
            tb = tb.tb_next
        one.__traceback__ = tb
        while tb is not None:
            while tb.tb_next is not None and _is_ours(tb.tb_next):
                tb.tb_next = tb.tb_next.tb_next
            tb = tb.tb_next
        found += [led for led in (one.__cause__, one.__context__) if not any(led is known for known in found)]


def _is_ours(tb: TracebackType) -> bool:
    return tb.tb_frame.f_code.co_filename.startswith(_FOLDER)


def flush(code: int) -> int:
    """Flush the buffers; like the interpreter, answer 120 if standard output cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            if stream is sys.stdout and code == 0:
                code = 120
    return code


def _exit_code(error: BaseException) -> int:
    try:
        code: object = error.code  # type: ignore[attr-defined]
    except BaseException:
        code = error  # a property of the program's that fails; the interpreter prints the exception then
    if code is None:
        return 0
    if issubclass(type(code), int):
        code = int.__index__(code)  # type: ignore[arg-type]  # whatever operators a program gave it
        # The C library takes the low 8 bits of a C long; a value that does not fit becomes -1.
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    try:
        text = str(code)
    except BaseException:
        text = ""
    try:
        print(text, file=sys.stderr)
    except BaseException:
        pass
    return 1


class _SourceFile(io.BytesIO):
    """A source as the interpreter's own printing of tracebacks wants it: C asks for a descriptor, then reads this.

    It looks for a declared encoding through the descriptor. The null device declares none, which means UTF-8.
    """

    def __init__(self, name: str) -> None:
        super().__init__("".join(linecache.getlines(name)).encode("utf-8", "replace"))
        self._null = os.open(os.devnull, os.O_RDONLY)

    def fileno(self) -> int:
        return self._null

    def close(self) -> None:
        if not self.closed:
            os.close(self._null)
        super().close()


def _open_for_traceback(file: Any, *args: Any, **kwargs: Any) -> Any:
    return _SourceFile(file) if file in _SOURCES else open(file, *args, **kwargs)


def serve(control: int, seed: int) -> None:
    """Answer calls until the caller hangs up. The first thing that it gets is the process id."""
    os.write(control, os.getpid().to_bytes(PID_BYTES, "little"))
    namespace = prepare(seed).__dict__
    for call in itertools.count(1):
        head = _read(control, TOKEN_BYTES + 4)
        token, length = head[:TOKEN_BYTES], int.from_bytes(head[TOKEN_BYTES:], "little")
        source = _read(control, length)
        if len(head) < TOKEN_BYTES + 4 or len(source) < length:
            return
        code = flush(execute(source, f"cell_{call}.py", namespace, cell=True))
        os.write(control, token + bytes([code & 0xFF]))


def _read(control: int, length: int) -> bytes:
    """Read so many bytes, or fewer if the caller has hung up."""
    data = b""
    while len(data) < length and (piece := os.read(control, length - len(data))):
        data += piece
    return data
