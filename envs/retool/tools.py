"""The tool `code_interpreter`: programs of the policy, run in a sandbox, and what the policy reads of how they ran.

It reads nothing that changes from run to run, no times, process ids or paths, and limits have constant texts: the same
program has the same answer, on a busy machine too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.sandbox import Execution, Sandbox, Session, make_sandbox
from agent_gym.tools import TextTool, ToolResult

NAME, ARGUMENT = "code_interpreter", "code"
MIN_OUTPUT_CHARS = 100
NO_OUTPUT = "[no output]"
LOST = "All names are lost; the next program starts anew."
_CUT = "\n[... cut ...]\n"
_RETOOL_CHARS = 400
_LIMITS = {
    "cpu_limit": "TimeoutError: the program took too much CPU time",
    "wall_limit": "TimeoutError: the program took too long",
    "memory_limit": "MemoryError: the program needed too much memory",
    "output_limit": "OSError: the program wrote too much",
    "killed": "SystemError: the program crashed",
}


class CodeInterpreter(TextTool):
    """Runs programs, one after the other.

    Raises:
        ConfigError: for settings that cannot be; also if this machine cannot hold programs.
    """

    def __init__(self, sandbox: str | Sandbox | None, stateful: bool, style: str, max_output_chars: int) -> None:
        if style not in STYLES:
            raise ConfigError(f"output_style is {style!r}; allowed: {', '.join(STYLES)}")
        if max_output_chars < MIN_OUTPUT_CHARS:
            raise ConfigError(f"max_output_chars is {max_output_chars}; it must be at least {MIN_OUTPUT_CHARS}")
        if stateful:
            state = "Names are kept from one program to the next; the value of a last expression is printed."
        else:
            state = "Each program starts anew, so that it has to be complete, with its imports."
        super().__init__(NAME, f"Run a Python program and return what it prints. {state}", ARGUMENT, "the program")
        self._sandbox = make_sandbox(sandbox)
        self._stateful, self._write, self._max_chars = stateful, STYLES[style], max_output_chars
        self._session: Session | None = None
        self._before: list[str] = []  # the programs of the session, in their order
        if stateful:
            self._sandbox.session().close()
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        self.close()
        self._seed = seed
        self.programs = self.failed = 0

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        return [self._answer(text) for text in texts]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session, self._before = None, []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}

    def _answer(self, code: str) -> ToolResult:
        execution = self._run(code)
        text = self._write(execution, self._max_chars)
        self.programs += 1
        self.failed += not execution.succeeded
        if self._stateful and execution.status not in ("ok", "error"):
            # Whatever ran into a limit was ended with all its names. The next program gets a new session.
            self.close()
            text = f"{text}\n{LOST}"
        return ToolResult(text, error=not execution.succeeded)

    def _run(self, code: str) -> Execution:
        if not self._stateful:
            return self._sandbox.run(code, seed=self._seed)
        if self._session is None:
            self._session = self._sandbox.session(seed=self._seed)
            for earlier in self._before:  # of a copy, whose session has to get its names first
                self._session.run(earlier)
        self._before.append(code)
        return self._session.run(code)


def full(execution: Execution, max_chars: int) -> str:
    """Write what was printed, then the traceback or the limit; of long texts the beginning and the end."""
    parts = [execution.stdout.rstrip(), execution.stderr.rstrip(), _verdict(execution)]
    return shorten("\n".join(filter(None, parts)) or NO_OUTPUT, max_chars)


def retool(execution: Execution, max_chars: int) -> str:
    """Write as ReTool's evaluation does: what was printed, or the last line of the traceback alone, in 400 characters.

    Unlike there, a program that prints nothing is no TypeError.
    """
    if execution.succeeded:
        text = execution.stdout.rstrip() or NO_OUTPUT
    else:
        text = _verdict(execution) or execution.stderr.rstrip().rpartition("\n")[2]
    half = min(_RETOOL_CHARS, max_chars) // 2
    return text if len(text) <= 2 * half else f"{text[:half]}...{text[-half:]}"


STYLES: Mapping[str, Callable[[Execution, int], str]] = {"full": full, "retool": retool}


def shorten(text: str, max_chars: int) -> str:
    """Keep the beginning and the end of a text that is too long; errors stand at the end."""
    if len(text) <= max_chars:
        return text
    half = (max_chars - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def _verdict(execution: Execution) -> str:
    if execution.status == "memory_limit" and execution.stderr:
        return ""  # its traceback says so
    if execution.status == "error" and not execution.stderr.strip():
        return f"SystemExit: {execution.exit_code}"
    return _LIMITS.get(execution.status, "")
