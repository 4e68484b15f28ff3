"""Test scripts of tasks, made to run here: installations of pytest are left out, and the present pytest is used.

Scripts begin with one of a few idioms, because tests of Harbor bring their own tools: `pip install pytest==8.4.1`, or
`apt-get install curl`, the installer of uv and `uvx --with pytest==8.4.1 pytest ...`, or `uv init`, `uv add pytest` and
`uv run pytest`. The network is not here and nothing of it is needed. A script is read command by command, and a command
that is none of these stays as it is, or is a reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from agent_gym.envs.terminal.needs import Reason, module_of, python_packages, system_packages
from agent_gym.envs.terminal.shell import Command, Unreadable, Word, commands, replaced

Change = tuple[int, int, str]
_SYSTEM_INSTALLERS = frozenset({"apt-get", "apt", "apk", "yum", "dnf"})
_NETWORK = frozenset({"curl", "wget"})
_INSTALLERS_OF_UV = ("astral.sh/uv", "astral.sh/ruff", "bootstrap.pypa.io/get-pip")
_PREFIXES = frozenset({"sudo", "command", "exec", "nohup", "env"})
_UV_WITHOUT_EFFECT = frozenset(
    {"init", "venv", "sync", "lock", "python", "cache", "self", "tool", "version", "--version"}
)
_UV_WITH_VALUE = frozenset(
    "-p --python -w --with --from --index-url -i --extra-index-url --index --default-index --project --directory "
    "--env-file --with-requirements --with-editable --python-preference --group --extra --exclude-newer --cache-dir "
    "--refresh-package --index-strategy --only-group --package --link-mode --resolution --prerelease".split()
)
_PLUGIN_OPTIONS = re.compile(r"-n|--(timeout|numprocesses|dist|json-report|cov|html|asyncio-mode|reruns|benchmark)\b.*")
_NOTHING = ":"


def adapted(name: str, script: str, needed: Collection[str]) -> tuple[str, list[Reason]]:
    """Return a script for this place, and the reasons why it cannot run here.

    `needed` are the modules that the tests import: an installation is left out unless it is one of them.
    """
    try:
        found = commands(script)
    except Unreadable as error:
        return script, [Reason("its test script cannot be read", f"{name}: {error}")]
    reader = _Script(name, script, needed)
    for index, command in enumerate(found):
        reader.settle(command, found[index + 1] if index + 1 < len(found) else None)
    return replaced(script, reader.changes), reader.reasons


class _Script:
    def __init__(self, name: str, script: str, needed: Collection[str]) -> None:
        self.name, self.script, self.needed = name, script, needed
        self.changes: list[Change] = []
        self.reasons: list[Reason] = []
        self.done: int = 0  # up to where all is settled

    def settle(self, command: Command, following: Command | None) -> None:
        """Exchange a command that belongs to an idiom."""
        words = list(command.words)
        while words and (words[0].text in _PREFIXES or (len(words) < len(command.words) and "=" in words[0].text)):
            words.pop(0)
        if not words or words[0].begin < self.done:
            return
        program, texts = PurePosixPath(words[0].text).name, [word.text for word in words[1:]]
        if program in _SYSTEM_INSTALLERS:
            self._packages(command, system_packages(after_install(texts)))
        elif program in ("pip", "pip3") or (_is_python(program) and texts[:2] == ["-m", "pip"]):
            self._packages(command, python_packages(after_install(texts)))
        elif _is_python(program) and texts[:2] in (["-m", "venv"], ["-m", "virtualenv"], ["-m", "ensurepip"]):
            self._leave_out(command)
        elif program in _NETWORK:
            self._fetch(program, command, texts, following)
        elif (
            program in ("source", ".")
            and texts
            and texts[0].endswith((".local/bin/env", "/bin/activate", ".cargo/env"))
        ):
            self._leave_out(command)
        elif program == "uv":
            self._uv(command, words[1:])
        elif program == "uvx":
            self._run(command, words[1:])
        elif program in ("conda", "mamba", "poetry", "npm", "npx", "cargo", "virtualenv"):
            self.reasons.append(Reason(f"its tests call {program}, which is not here"))
        else:
            self._call(words)

    def _call(self, words: list[Word]) -> None:
        """Take pytest and Python from here, where a script means its own environment's."""
        program = PurePosixPath(words[0].text).name
        inner = re.search(r"(^|/)\.?(venv|env|\w*venv)\b.*/bin/", words[0].text) or ".venv" in words[0].text
        if program in ("pytest", "py.test") and words[0].text != "pytest":
            self.changes.append((words[0].begin, words[0].end, "pytest"))
        elif inner and _is_python(program):
            self.changes.append((words[0].begin, words[0].end, "python3"))
        texts = [word.text for word in words[1:]]
        if program in ("pytest", "py.test") or (_is_python(program) and texts[:2] == ["-m", "pytest"]):
            for option in filter(_PLUGIN_OPTIONS.fullmatch, texts):
                self.reasons.append(Reason(f"its tests call pytest with {option.partition('=')[0]}, of a plugin"))

    def _packages(self, command: Command, absent: Iterator[str]) -> None:
        for package in absent:
            if module_of(package) in self.needed:
                self.reasons.append(Reason(f"its tests import {module_of(package)}, which is not here"))
            elif package.startswith("-") or command.program in _SYSTEM_INSTALLERS:
                self.reasons.append(Reason(f"its tests install {package}, which is not here"))
        self._leave_out(command)

    def _fetch(self, program: str, command: Command, texts: list[str], following: Command | None) -> None:
        if not any(place in text for text in texts for place in _INSTALLERS_OF_UV):
            self.reasons.append(Reason(f"{self.name} calls {program}, which is not here"))
            return
        end = command.end
        if command.after in ("|", "|&") and following is not None:
            end = following.end
        self._exchange(command.begin, end)

    def _uv(self, command: Command, words: list[Word]) -> None:
        texts = [word.text for word in words]
        if texts[:1] == ["run"] or texts[:2] == ["tool", "run"]:
            self._run(command, words[1:] if texts[0] == "run" else words[2:])
        elif texts[:1] == ["add"]:
            self._packages(command, python_packages(texts[1:]))
        elif texts[:1] == ["pip"]:
            self._packages(command, python_packages(after_install(texts)))
        elif not texts or texts[0] in _UV_WITHOUT_EFFECT:
            self._leave_out(command)
        else:
            self.reasons.append(Reason(f"its tests call uv {texts[0]}, which is not here"))

    def _run(self, command: Command, words: list[Word]) -> None:
        """Leave of `uv run OPTIONS COMMAND` the command."""
        wanted = []
        while words and words[0].text.startswith("-"):
            option = words.pop(0).text
            if option in _UV_WITH_VALUE and words:
                value = words.pop(0).text
                wanted += [value] if option in ("-w", "--with", "--from") else []
            elif option.startswith("--with="):
                wanted.append(option.removeprefix("--with="))
            elif option == "--":
                break
        for package in python_packages(part for value in wanted for part in value.split(",")):
            if module_of(package) in self.needed:
                self.reasons.append(Reason(f"its tests import {module_of(package)}, which is not here"))
        if not words:
            self._leave_out(command)
            return
        first = words[0].text
        before = "python3 " if first.endswith(".py") else ""
        self.changes.append((command.words[0].begin, words[0].begin, before))
        name = PurePosixPath(first.partition("@")[0]).name
        if name not in ("pytest", "py.test", "bash", "sh") and not _is_python(name) and not first.endswith(".py"):
            self.reasons.append(Reason(f"its tests call {first} by uv, which is not here"))
        self._call(words)

    def _leave_out(self, command: Command) -> None:
        self._exchange(command.words[0].begin, max(word.end for word in command.words))

    def _exchange(self, begin: int, end: int) -> None:
        self.changes.append((begin, end, _NOTHING))
        self.done = end


def after_install(texts: list[str]) -> list[str]:
    """Return the words that follow `install` (or `add`), or none."""
    for index, text in enumerate(texts):
        if text in ("install", "add"):
            return texts[index + 1 :]
    return []


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python(3(\.\d+)?)?", program) is not None
