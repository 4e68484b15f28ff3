"""The tool `code_interpreter`: programs of the policy, run in a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_gym.envs.retool.styles import LOST, STYLES
from agent_gym.errors import ConfigError
from agent_gym.sandbox import Execution, Sandbox, Session, make_sandbox
from agent_gym.tools import TextTool, ToolResult

NAME, ARGUMENT = "code_interpreter", "code"
MIN_OUTPUT_CHARS = 100


class CodeInterpreter(TextTool):
    """Runs programs, one after the other.

    Args:
        sandbox: see `agent_gym.sandbox.make_sandbox`.
        stateful: whether the programs of an episode share their names, and the value of a last expression is printed.
        style: how outputs are told, a name of `STYLES`.
        max_output_chars: how long an output may be.

    Raises:
        ConfigError: for settings that cannot be; also if this machine cannot hold programs.
    """

    def __init__(self, sandbox: str | Sandbox | None, stateful: bool, style: str, max_output_chars: int) -> None:
        """Find the sandbox, and see that it has sessions if they are wanted."""
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
        self._stateful, self._tell, self._max_chars = stateful, STYLES[style], max_output_chars
        self._session: Session | None = None
        self._before: list[str] = []  # the programs of the session, in their order
        if stateful:
            self._sandbox.session().close()
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin an episode.

        Args:
            seed: of the programs' random numbers.
        """
        self.close()
        self._seed = seed
        self.programs = self.failed = 0

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Run the programs of a turn in their order."""
        return [self._answer(text) for text in texts]

    def close(self) -> None:
        """End the session, if there is one."""
        if self._session is not None:
            self._session.close()
        self._session, self._before = None, []

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session, which is a process, to the interpreter that began it."""
        return self.__dict__ | {"_session": None}

    def _answer(self, code: str) -> ToolResult:
        execution = self._run(code)
        said = self._tell(execution, self._max_chars)
        self.programs += 1
        self.failed += not execution.succeeded
        if self._stateful and execution.status not in ("ok", "error"):
            # Whatever ran into a limit was ended with all its names. The next program gets a new session.
            self.close()
            said = f"{said}\n{LOST}"
        return ToolResult(said, error=not execution.succeeded)

    def _run(self, code: str) -> Execution:
        if not self._stateful:
            return self._sandbox.run(code, seed=self._seed)
        if self._session is None:
            self._session = self._sandbox.session(seed=self._seed)
            for earlier in self._before:  # of a copy, whose session has to get its names first
                self._session.run(earlier)
        self._before.append(code)
        return self._session.run(code)
