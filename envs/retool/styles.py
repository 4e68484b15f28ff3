"""How what a program did is told to the policy.

Nothing that changes from run to run is told, no times, process ids or paths, and limits have constant texts: the same
program has the same answer, on a busy machine too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_gym.sandbox import Execution

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


def full(execution: Execution, max_chars: int) -> str:
    """Tell what was printed, then the traceback or the limit; of long texts the beginning and the end."""
    parts = [execution.stdout.rstrip(), execution.stderr.rstrip(), _verdict(execution)]
    return shorten("\n".join(filter(None, parts)) or NO_OUTPUT, max_chars)


def retool(execution: Execution, max_chars: int) -> str:
    """Tell as ReTool's evaluation does: what was printed, or the last line of the traceback alone, in 400 characters.

    Unlike there, a program that prints nothing is no TypeError.
    """
    if execution.succeeded:
        said = execution.stdout.rstrip() or NO_OUTPUT
    else:
        said = _verdict(execution) or execution.stderr.rstrip().rpartition("\n")[2]
    half = min(_RETOOL_CHARS, max_chars) // 2
    return said if len(said) <= 2 * half else f"{said[:half]}...{said[-half:]}"


STYLES: Mapping[str, Callable[[Execution, int], str]] = {"full": full, "retool": retool}


def shorten(text: str, max_chars: int) -> str:
    """Keep the beginning and the end of a text that is too long; errors stand at the end."""
    if len(text) <= max_chars:
        return text
    half = (max_chars - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def _verdict(execution: Execution) -> str:
    """The line that says how a program ended, where its own output does not."""
    if execution.status == "memory_limit" and execution.stderr:
        return ""  # its traceback says so
    if execution.status == "error" and not execution.stderr.strip():
        return f"SystemExit: {execution.exit_code}"
    return _LIMITS.get(execution.status, "")
