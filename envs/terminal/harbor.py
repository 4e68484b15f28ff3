"""Tasks in the folder format of Harbor (harborframework.com/docs/tasks), which Terminal-Bench 2 has: read and written.

    NAME/instruction.md            the policy's prompt
    NAME/task.toml                 time limits, and metadata
    NAME/environment/Dockerfile    the files that are there at the start
    NAME/tests/test.sh             writes a reward to /logs/verifier/reward.txt (or reward.json)
    NAME/solution/solve.sh         its solution, if anybody has written it down

and tasks of Terminal-Bench 1, which have them in other places (`tbench.py`). Docker is not used here: `dockerfile.py`
tells which images can be made without Docker, and `testscript.py` which tests can run. A task that needs more is
`Unfit`, with all reasons: a task that runs without half of its needs would score something else.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from os.path import realpath
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from agent_gym.envs.terminal.dockerfile import DockerImage, mount_of, needs_of, read_image
from agent_gym.envs.terminal.needs import Reason, Unfit, imports_of, of_script, of_solution, of_tests
from agent_gym.envs.terminal.testscript import adapted
from agent_gym.errors import write_whole
from agent_gym.sandbox.terminal import FOLDERS, PYTEST_VARIABLES
from agent_gym.untrusted import read_text

__all__ = ["IMAGE", "Task", "Unfit", "find_tasks", "read_task", "write_task"]

IMAGE = "python:3.11-bookworm"  # of written tasks: it has bash, git, and Python with sqlite3
_SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")  # where pytest looks for its own
_SCRATCH = ("/tmp", "/run")
_SOLUTION, _CHUNK = "/solution", 30_000  # characters: a command has at most `MAX_COMMAND_BYTES`
_OPTIONS = "-p no:cacheprovider -c {} --rootdir=/tests --confcutdir=/tests"


class Task(NamedTuple):
    """The sources of one episode."""

    instruction: str
    files: Mapping[str, str | bytes]  # that the policy finds, by their absolute paths
    tests: Mapping[str, str | bytes]  # by their paths in /tests; test.sh is run
    solution: tuple[str, ...] = ()  # commands
    folder: str = "/app"  # where the shell begins
    variables: Mapping[str, str] = {}
    seconds: float = 600.0  # for all commands together
    test_seconds: float = 60.0
    test_variables: Mapping[str, str] = {}
    made: tuple[str, ...] = ()  # folders that are there at the start
    setup: str = ""  # a script that is run in the session before all commands
    shown: tuple[str, ...] = ()  # paths in /tmp and /run that the tests are to see, see `Terminal.test`
    absent: tuple[
        str, ...
    ] = ()  # packages that its Dockerfile installs, that nothing of it uses, and that are not here

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that the policy may write to: the ones of every session, and where the task has put files."""
        own = {mount_of(path) or path for path in (self.folder, *self.files, *self.made)}
        outer = [one for one in own if not any(other != one and one.startswith(f"{other}/") for other in own)]
        return (*FOLDERS, *sorted(one for one in outer if one not in FOLDERS))


def find_tasks(folder: Path) -> list[Path]:
    """Return the folders of the tasks in a folder, however deep, or the folder itself if it is one."""
    if _is_task(folder):
        return [folder]
    found, left = list[Path](), [folder] if folder.is_dir() else []
    while left:
        for path in sorted(left.pop().iterdir()):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                (found if _is_task(path) else left).append(path)
    return sorted(found)


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


class Parts(NamedTuple):
    """The data in the files of a task, in either format."""

    instruction: str
    dockerfile: str
    context: Path  # of the Dockerfile
    tests: dict[str, bytes]
    script: str  # which of the tests is run
    solution: str | None
    solution_files: dict[str, bytes]  # that it finds in /solution
    seconds: float
    test_seconds: float
    test_variables: dict[str, str]
    reasons: tuple[Reason, ...]


def read_task(folder: Path) -> Task:
    """Read a task; `Unfit`, with all reasons, if it has missing needs, or is not a whole task."""
    inside = realpath(folder) + "/"  # of a loop it is the loop, while `Path.resolve` raises
    if out := [one for one in folder.rglob("*") if one.is_symlink() and not realpath(one).startswith(inside)]:
        raise Unfit(Reason("a link in it leads to other files of this machine", out[0].name))
    if (folder / "task.toml").is_file():
        parts = _read_parts(folder)
    else:
        from agent_gym.envs.terminal import tbench

        parts = tbench.read_parts(folder)
    image, reasons = read_image(parts.dockerfile, parts.context)
    reasons = [*parts.reasons, *reasons]
    local = _local_modules(parts, image)
    imports = imports_of(parts.tests)
    tests: dict[str, str | bytes] = dict(parts.tests)
    for name, data in parts.tests.items():
        if name.endswith(".sh"):
            text, found = adapted(f"tests/{name}", data.decode("utf-8", "replace"), imports - local)
            reasons += [*found, *of_script(f"tests/{name}", text, _own_programs(image))]
            tests[name] = text.encode() if text.encode() != data else data
    reasons += [*of_tests(parts.tests, local), *_incomplete(parts.tests)]
    if parts.solution is not None:
        made = {PurePosixPath(path).name for path in parts.solution_files}
        reasons += of_solution(parts.solution, _own_programs(image) | made)
    used = _Used(parts, image, imports)
    reasons += needs_of(image, used)
    if reasons:
        raise Unfit(*reasons)
    absent = tuple(dict.fromkeys(image.installed))
    variables = {**PYTEST_VARIABLES, **image.variables} if image.pytest else image.variables
    own = {"PYTEST_ADDOPTS": _OPTIONS.format(next((f"/tests/{one}" for one in _SETTINGS if one in tests), "/dev/null"))}
    return Task(
        parts.instruction,
        image.files,
        tests,
        () if parts.solution is None else tuple(_typed(parts.solution, parts.solution_files)),
        image.folder,
        variables,
        parts.seconds,
        parts.test_seconds,
        own | parts.test_variables,
        (*image.folders, *([_SOLUTION] if _has_place(parts) else [])),
        "\n".join(f"(\n{one}\n)" for one in image.setup),
        _shown(parts.instruction, image),
        absent,
    )


def _read_parts(folder: Path) -> Parts:
    try:
        instruction = read_text(folder / "instruction.md").strip()
        settings = tomllib.loads(read_text(folder / "task.toml"))
        dockerfile = read_text(folder / "environment" / "Dockerfile")
        tests = read_tree(folder / "tests")
        files = read_tree(folder / "solution")
        solution = files["solve.sh"].decode() if "solve.sh" in files else None
    except (OSError, ValueError, RecursionError) as error:
        raise Unfit(Reason("it is not whole", str(error))) from None
    reasons = list(_settings_reasons(folder, settings))
    if "test.sh" not in tests:
        reasons.append(Reason("it has no tests/test.sh"))
    try:
        environment, agent, verifier = (dict(settings.get(name, {})) for name in ("environment", "agent", "verifier"))
        seconds, test_seconds = (float(one.get("timeout_sec", 600.0)) for one in (agent, verifier))
        own = {str(name): str(value) for name, value in dict(verifier.get("env", {})).items()}
        for name in ("docker_image", "gpus", "mcp_servers", "healthcheck"):
            if environment.get(name):
                reasons.append(Reason(f"it needs {name} = {environment[name]!r} (task.toml)"))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unfit(*reasons, Reason("its task.toml cannot be read", str(error))) from None
    context = folder / "environment"
    return Parts(
        instruction, dockerfile, context, tests, "test.sh", solution, files, seconds, test_seconds, own, tuple(reasons)
    )


def _has_place(parts: Parts) -> bool:
    """Whether a solution is more than one script of commands, so that it needs the place where Harbor puts it."""
    text = parts.solution
    return text is not None and (
        len(parts.solution_files) > 1 or re.search(r"\$0|BASH_SOURCE|/solution/", text) is not None
    )


def _typed(solution: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Return the commands that solve a task; the files of the solution are written by them first."""
    if len(files) < 2 and re.search(r"\$0|BASH_SOURCE|/solution/", solution) is None:
        yield solution
        return
    lines: list[str] = []
    for name, data in {**files, "solve.sh": solution.encode()}.items():
        path = shlex.quote(f"{_SOLUTION}/{name}")
        lines.append(f"mkdir -p $(dirname {path}); : > {path}")
        for begin in range(0, len(data), _CHUNK):
            text = base64.encodebytes(data[begin : begin + _CHUNK]).decode()
            lines.append(f"base64 -d >> {path} << 'END'\n{text}END")
            if sum(map(len, lines)) > _CHUNK:
                yield "\n".join(lines)
                lines = []
    yield "\n".join([*lines, f"bash {_SOLUTION}/solve.sh"])


def _settings_reasons(folder: Path, settings: Mapping[str, Any]) -> Iterator[Reason]:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / name).exists():
            yield Reason(f"it needs several containers (environment/{name})")
    if settings.get("steps"):
        yield Reason("it has several steps ([[steps]] in task.toml)")


def _incomplete(tests: Mapping[str, bytes]) -> Iterator[Reason]:
    """Say which of its files the scripts of the tests name and do not have."""
    for name, data in tests.items():
        if name.endswith(".sh"):
            for one in re.findall(
                r"(?<![\w/])(?:/tests|\$\{?TEST_DIR\}?)/([\w/-]+\.py)\b", data.decode("utf-8", "replace")
            ):
                if one not in tests:
                    yield Reason("it is not whole", f"tests/{name} calls {one}, which is not there")


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _local_modules(parts: Parts, image: DockerImage) -> set[str]:
    """Return the modules that the task has, or that the policy is to write: its files, and names in the instruction."""
    names = {part.removesuffix(".py") for path in image.files for part in PurePosixPath(path).parts}
    return (
        names | set(re.findall(r"\b(\w+)\.py\b", parts.instruction)) | set(re.findall(r"\b(\w+)/", parts.instruction))
    )


def _own_programs(image: DockerImage) -> set[str]:
    return {PurePosixPath(path).name for path in image.files}


class _Used:
    """Whether anything of a task uses a module: tests, solution, its programs, or the instruction's words."""

    def __init__(self, parts: Parts, image: DockerImage, imports: set[str]) -> None:
        self.imports, self.instruction = imports, parts.instruction.lower()
        files = {**parts.solution_files, **image.files}
        programs = (data.decode("utf-8", "replace") for path, data in files.items() if path.endswith(".py"))
        self.texts = "\n".join([parts.solution or "", *programs])

    def __call__(self, module: str) -> bool:
        name = re.escape(module)
        imported = re.search(rf"(?m)^\s*(import|from)\s+([\w., ]+,\s*)?{name}\b", self.texts)
        asked = re.search(rf"(?i)(?<![\w./-]){name}(?![\w/-]|\.\w)", self.instruction)
        return module in self.imports or imported is not None or asked is not None


def _shown(instruction: str, image: DockerImage) -> tuple[str, ...]:
    """Return the paths in /tmp and /run that the instruction names, or that the task has put there."""
    found = {path.rstrip(".") for path in re.findall(r"(?<![\w.-])/(?:tmp|run)/[\w./+-]*[\w+-]", instruction)}
    found |= {path for path in (*image.files, *image.folders) if path.startswith(("/tmp/", "/run/"))}
    if image.folder.startswith(_SCRATCH):
        names = re.findall(r"(?<![\w./-])[\w-][\w./-]*\.\w+", instruction)
        found |= {f"{image.folder}/{name}" for name in names}
        found |= {image.folder} - set(_SCRATCH)
    return tuple(sorted(path for path in found if ".." not in path and path not in _SCRATCH))


def write_task(task: Task, folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write a task as a folder, which `read_task` reads and Harbor runs."""
    texts: dict[str, str | bytes] = {
        "instruction.md": task.instruction + "\n",
        "task.toml": 'version = "1.0"\n\n[metadata]\n'
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in metadata.items())
        + f"\n[agent]\ntimeout_sec = {task.seconds}\n\n[verifier]\ntimeout_sec = {task.test_seconds}\n"
        + "\n[environment]\nallow_internet = false\n",
        "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR {task.folder}\n"
        + "".join(f"ENV {name}={shlex.quote(value)}\n" for name, value in task.variables.items())
        + ("COPY files/ /\n" if task.files else ""),
        "solution/solve.sh": "\n".join(["#!/bin/bash", f"cd {task.folder}", *task.solution, ""]),
        **{f"environment/files{path}": content for path, content in task.files.items()},
        **{f"tests/{path}": content for path, content in task.tests.items()},
    }
    for name, content in texts.items():
        write_whole(folder / name, content)
