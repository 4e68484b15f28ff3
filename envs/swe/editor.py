"""The tool `editor`: view, create, replace, insert and undo, as a program that runs in the policy's session."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from typing import Literal

from agent_gym.sandbox.bash_tool import BashTool
from agent_gym.tools import ToolResult

_PROGRAM = files(__package__).joinpath("editor_program.txt").read_text(encoding="utf-8")


class Editor:
    """Edits files by commands of a session, so that it has the rights of the policy's commands."""

    def __init__(self, bash: BashTool) -> None:
        self._bash = bash

    def editor(
        self,
        command: Literal["view", "create", "replace", "insert", "undo"],
        path: str,
        text: str = "",
        old: str = "",
        line: int = 0,
        last: int = 0,
    ) -> ToolResult:
        """View or change a file. A changed part is shown with its line numbers.

        Args:
            command: view a file or a folder; create a file, or write a whole one anew; replace `old`, which is in the
                file once, by `text`; insert `text` after `line`; undo the last change of the file.
            path: of the file, from the current folder.
            text: the new text.
            old: the text that it replaces.
            line: the first line of a view, or the line to insert after, 0 for the beginning.
            last: the last line of a view, 0 for the end.
        """
        asked = {"command": command, "path": path, "text": text, "old": old, "line": line, "last": last}
        program = f"python3 -I -S -c {shlex.quote(_PROGRAM)} <<'EDITOR_END'\n{json.dumps(asked)}\nEDITOR_END"
        result = self._bash.answer(program)
        text = str(result.text).removesuffix("\n[exit code 1]") if result.error else result.text
        return ToolResult(text, error=result.error)
