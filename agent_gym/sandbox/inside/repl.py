"""A session: programs that run one after the other in one namespace, each shown the value of its last expression.

The caller sends a token of 8 bytes, a length of 4 and the source, and gets the token back with one byte, the exit code.
Between two calls it stops this process, so that threads that a program left behind stand still. By the token a late or
made up answer is told from that to the call. It is no secret from programs: all calls share one interpreter, so that an
earlier one can read the socket before this file does, or replace what this file calls, and answer in its place. That
concerns the session alone; the caller takes nothing from an answer but text and an exit code.
"""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

from . import program
from .jobs import TOKEN_BYTES


def serve(control: int, seed: int) -> None:
    """Answer calls until the caller hangs up."""
    namespace = program.prepare(seed).__dict__
    call = 0
    while (received := _receive(control)) is not None:
        token, source = received
        call += 1
        code = program.flush(_run(source, f"cell_{call}.py", namespace))
        os.write(control, token + bytes([code & 0xFF]))


def _run(source: bytes, name: str, namespace: dict[str, Any]) -> int:
    program.remember_source(name, source)
    try:
        _execute(source, name, namespace)
        return 0
    except BaseException as error:
        raised = error
    return program.conclude(raised, name)


def _execute(source: bytes, name: str, namespace: dict[str, Any]) -> None:
    """Run it; if the last statement is an expression, print its value as the interactive interpreter does.

    That is read off the syntax tree. Wrapping the last line of the text into `print(...)`, as some tools do, breaks
    programs that end in a loop, an assignment, a comment or a bracket.
    """
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(program.code_of(tree, name, "exec"), namespace)
    if isinstance(last, ast.Expr):
        sys.displayhook(eval(program.code_of(ast.Expression(last.value), name, "eval"), namespace))


def _receive(control: int) -> tuple[bytes, bytes] | None:
    head = _read(control, TOKEN_BYTES + 4)
    source = None if head is None else _read(control, int.from_bytes(head[TOKEN_BYTES:], "little"))
    return None if head is None or source is None else (head[:TOKEN_BYTES], source)


def _read(control: int, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        piece = os.read(control, length - len(data))
        if not piece:
            return None
        data += piece
    return data
