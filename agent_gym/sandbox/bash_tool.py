"""The tool `bash` of an environment: the commands of an episode, in a session that is opened with the first one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agent_gym.errors import whole_number
from agent_gym.sandbox.base import Execution
from agent_gym.sandbox.terminal import LIMITS, MAX_COMMAND_BYTES, Terminal
from agent_gym.tools import TextTool, ToolResult

NAME, ARGUMENT = "bash", "command"
NO_OUTPUT, NO_TIME = "[no output]", "[the time for this task is over]"
MIN_OUTPUT_CHARS = 100
_CUT = "\n[... cut ...]\n"
_ENDS = {
    "cpu_limit": f"[ended: more than {LIMITS.cpu_seconds:g} seconds of CPU time]",
    "wall_limit": f"[ended: more than {LIMITS.wall_seconds:g} seconds]",
    "memory_limit": f"[ended: more than {LIMITS.memory_mb} MB of memory]",
}


class BashTool(TextTool):
    """Runs the commands of an episode in a session."""

    def __init__(self, max_output_chars: int) -> None:
        about = (
            "Run a command in bash and return what it prints. Files, the current folder and exported variables are "
            "kept from one command to the next; what still runs when a command ends is ended."
        )
        super().__init__(NAME, about, ARGUMENT, "the command, for example: ls -l", self.answer)
        self.max_chars = whole_number("max_output_chars", max_output_chars, MIN_OUTPUT_CHARS)
        self._terminal: Terminal | None = None
        self._before: list[str] = []

    def start(self, opened: Callable[[], Terminal], seconds: float) -> None:
        """Begin an episode whose session `opened` opens, and whose commands have so many seconds together."""
        self.close()
        self._opened, self._room = opened, seconds
        self.seconds, self.commands, self.failed = 0.0, 0, 0

    @property
    def late(self) -> bool:
        """Whether the commands have taken all the time of the task."""
        return self.seconds >= self._room

    @property
    def touched(self) -> bool:
        """Whether any command has run."""
        return bool(self._before)

    def answer(self, command: str) -> ToolResult:
        """Run a command, and return the policy's view of its result."""
        if self.late:
            return ToolResult(NO_TIME, error=True)
        command = command.encode("utf-8", "replace").decode()
        if len(command.encode()) > MAX_COMMAND_BYTES or "\0" in command:
            return ToolResult(f"Error: a command has at most {MAX_COMMAND_BYTES} bytes, and no zero byte", error=True)
        begun, terminal = time.monotonic(), self.terminal()
        execution = terminal.run(command)
        self.seconds += time.monotonic() - begun
        self._before.append(command)
        self.commands += 1
        self.failed += not execution.succeeded
        return ToolResult(shown(execution, self.max_chars), error=not execution.succeeded)

    def terminal(self) -> Terminal:
        """Return the session, opened if it is not yet."""
        if self._terminal is None:
            self._terminal = self._opened()
            for earlier in self._before:  # of a copy, whose session has to get its files first
                self._terminal.run(earlier)
        return self._terminal

    def close(self) -> None:
        """End the session."""
        if self._terminal is not None:
            self._terminal.close()
        self._terminal, self._before = None, []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_terminal": None}


def shown(execution: Execution, max_chars: int) -> str:
    """Write a command's result for the policy: of long outputs the beginning and the end, then how it ended."""
    text = execution.stdout.rstrip("\n")
    if len(text) > max_chars:
        half = (max_chars - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    end = _ENDS.get(execution.status, "" if execution.succeeded else f"[exit code {execution.exit_code}]")
    return "\n".join(filter(None, (text, end))) or NO_OUTPUT
