"""Needs of tasks that may be missing here: programs, packages of Python, packages of the system.

A terminal has the programs of the machine, and of Python's packages pytest alone, for tests and for tasks that install
it.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from agent_gym.envs.terminal.shell import BUILTINS, Unreadable, commands, functions
from agent_gym.errors import ConfigError
from agent_gym.sandbox.terminal import ENVIRONMENT, pytest_is_here

PYTEST = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"})
"""The modules that tests have besides the standard library."""
# Packages of Python that a test run has or can do without.
_PACKAGES_HERE = frozenset({*PYTEST, "pytest-json-ctrf", "pip", "setuptools", "wheel", "uv", "virtualenv", "build"})
# Packages of the system: the program by which one knows that they are here, "" where nothing of them is missed.
_SYSTEM_PACKAGES = {
    **dict.fromkeys(
        "apt-transport-https apt-utils asciinema ca-certificates curl wget dialog gnupg gnupg2 less libpython3-dev "
        "locales lsb-release nano python3-dev python3-full python3-pip python3-pytest python3-setuptools python3-venv "
        "python3-wheel software-properties-common sudo tmux tzdata vim vim-tiny openssh-client net-tools iputils-ping "
        "htop tree man-db bash-completion iproute2 dnsutils".split(),
        "",
    ),
    **dict.fromkeys(("python", "python3", "python-is-python3", "python3-minimal"), "python3"),
    "build-essential": "g++",
    "g++": "g++",
    "libc-dev": "gcc",
    "libc6-dev": "gcc",
    "binutils": "readelf",
    "coreutils": "ls",
    "findutils": "find",
    "procps": "ps",
    "psmisc": "killall",
    "util-linux": "flock",
    "bsdmainutils": "column",
    "bsdextrautils": "column",
    "bash": "bash",
    "golang": "go",
    "golang-go": "go",
    "nodejs": "node",
    "default-jdk": "javac",
    "default-jre": "java",
    "ruby-full": "ruby",
    "netcat": "nc",
    "netcat-openbsd": "nc",
    "xz-utils": "xz",
    "p7zip-full": "7z",
    "git-lfs": "git-lfs",
    "mawk": "awk",
    "gawk": "gawk",
    "openssl": "openssl",
}
_MODULES = {
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "beautifulsoup4": "bs4",
    "opencv-python": "cv2",
}
_MODULES |= {"python-dateutil": "dateutil", "pyjwt": "jwt", "pycryptodome": "Crypto", "python-dotenv": "dotenv"}
_ONLINE = frozenset(
    "apt-get apt pip pip3 uv uvx curl wget npm npx conda cargo yum dnf apk docker systemctl ssh".split()
)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold others
_CALLERS = frozenset({"run", "Popen", "call", "check_call", "check_output", "system", "getoutput", "popen"})


class Reason(NamedTuple):
    """Why a task cannot be played: a kind, and the missing thing."""

    kind: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else self.kind


_NO_PYTEST = Reason("its tests need pytest, which is not installed: pip install pytest")


class Unfit(ConfigError):
    """A task that cannot be played here; the text has all reasons."""

    def __init__(self, *reasons: Reason) -> None:
        self.reasons = tuple(dict.fromkeys(reasons))
        super().__init__("; ".join(map(str, self.reasons)))


@cache
def is_here(program: str) -> bool:
    """Whether a command in a terminal finds a program."""
    if program in ("pytest", "py.test"):
        return True  # a missing pytest is reported once
    return program in ("python", "python3") or shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def module_of(package: str) -> str:
    """Return the module that a package of Python is imported as, as far as one can say."""
    name = re.split(r"[\[<>=!~;@ ]", package, maxsplit=1)[0].lower()
    return _MODULES.get(name, name.removeprefix("python-").replace("-", "_"))


def python_packages(words: Iterable[str]) -> Iterator[str]:
    """Return the packages that words after `install` name and that are not here."""
    arguments = iter(words)
    for word in arguments:
        if word in ("-r", "--requirement", "-c", "--constraint", "-e", "--editable"):
            yield f"{word} {next(arguments, '')}"
        elif word in _WITH_VALUE:
            next(arguments, None)
        elif not word.startswith("-") and word != ".":
            if re.split(r"[\[<>=!~;@ ]", word, maxsplit=1)[0].lower() not in _PACKAGES_HERE:
                yield word
        elif word == ".":
            yield "the package in ."


_WITH_VALUE = frozenset(
    "--index-url -i --extra-index-url --find-links -f --python -p --retries --timeout --target -t --trusted-host "
    "--prefix --root --cache-dir --progress-bar".split()
)


def system_packages(words: Iterable[str]) -> Iterator[str]:
    """Return the packages that words of apt-get after `install` name and that are not here."""
    for word in words:
        name = re.split("[=/:]", word)[0]
        if not word.startswith("-") and not is_system_package_here(name):
            yield name


def is_system_package_here(name: str) -> bool:
    """Whether the programs of a system package are on this machine, or not missed."""
    program = _SYSTEM_PACKAGES.get(name, name)
    if re.fullmatch(r"python3\.\d+(-\w+)*", name):
        return True
    return not program or is_here(program)


def of_script(name: str, script: str, own: Collection[str] = ()) -> Iterator[Reason]:
    """Find the programs that a script calls and that are missing; `own` are the task's programs."""
    try:
        found = commands(script)
    except Unreadable:
        return  # `testscript.adapted` has said so
    defined = functions(script)
    for command in found:
        program = command.program
        if (program in ("pytest", "py.test") or command.texts[1:3] == ["-m", "pytest"]) and not pytest_is_here():
            yield _NO_PYTEST
        if program and "/" not in program and "$" not in program and "`" not in program:
            known = program in BUILTINS or program in defined or program in own or is_here(program)
            if not known and re.fullmatch(r"[\w.+-]+", program):
                yield Reason(f"its tests call {program}, which is not here", "")


def of_solution(script: str, own: Collection[str]) -> Iterator[Reason]:
    """Find a solution's missing needs: programs, installers, the network."""
    try:
        found = commands(script)
    except Unreadable:
        return  # it may hold anything
    defined = functions(script)
    for command in found:
        words = command.texts[1:] if command.program == "sudo" else command.texts
        program = PurePosixPath(words[0]).name if words else ""
        online = program in _ONLINE or (program == "git" and words[1:2] in (["clone"], ["fetch"], ["pull"], ["push"]))
        if online and not any("localhost" in word or "127.0.0.1" in word for word in words):
            yield Reason(
                f"its solution calls {program}{' ' + words[1] if program == 'git' else ''}, and there is no network"
            )
        elif words and "/" not in words[0] and re.fullmatch(r"[\w.+-]+", program):
            if not (program in BUILTINS or program in defined or program in own or is_here(program)):
                yield Reason(f"its solution calls {program}, which is not here")


def of_tests(tests: Mapping[str, bytes], local: Collection[str]) -> Iterator[Reason]:
    """Find the missing modules and programs of tests; `local` are modules of the task or of the policy."""
    ours = {PurePosixPath(name).stem for name in tests} | {PurePosixPath(name).parts[0] for name in tests}
    for name, data in tests.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = _tree(data)
        except (SyntaxError, ValueError) as error:
            yield Reason("its tests cannot be read", f"tests/{name}: {error}")
            continue
        for module in sorted(_imports(tree)):
            if module in PYTEST and not pytest_is_here():
                yield _NO_PYTEST
            elif module not in sys.stdlib_module_names and module not in {*PYTEST, *ours, *local}:
                yield Reason(f"its tests import {module}, which is not here")
        for program in sorted(_calls(tree)) if b"subprocess." in data or b"os." in data else ():
            if not is_here(program) and program not in BUILTINS:
                yield Reason(f"its tests call {program}, which is not here")


def imports_of(tests: Mapping[str, bytes]) -> set[str]:
    """Return the modules that tests import."""
    found: set[str] = set()
    for name, data in tests.items():
        if name.endswith(".py"):
            with suppress(SyntaxError, ValueError):
                found |= _imports(_tree(data))
    return found


@lru_cache(maxsize=32)  # it is asked for twice
def _tree(data: bytes) -> ast.Module:
    return ast.parse(data)


def _imports(block: ast.AST) -> set[str]:
    """Return the modules that are imported, without the ones whose absence a program expects."""
    found: set[str] = set()
    for node in (one for part in _BLOCKS for one in getattr(block, part, ())):
        if isinstance(node, ast.Try) and any(_is_about_imports(handler) for handler in node.handlers):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
        found |= _imports(node)
    return found


def _is_about_imports(handler: ast.ExceptHandler) -> bool:
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
    return handler.type is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _calls(tree: ast.AST) -> set[str]:
    """Return the programs that Python starts, where their names are written down."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Attribute):
            continue
        module, first = node.func.value, node.args[0]
        if node.func.attr not in _CALLERS or not isinstance(module, ast.Name) or module.id not in ("subprocess", "os"):
            continue
        if isinstance(first, ast.List) and first.elts and isinstance(first.elts[0], ast.Constant):
            word = first.elts[0].value
        elif isinstance(first, ast.Constant) and isinstance(first.value, str):
            word = next((word for word in first.value.split() if "=" not in word), "")
        else:
            continue
        if isinstance(word, str) and re.fullmatch(r"[\w.+-]+", word):
            found.add(word)
    return found
