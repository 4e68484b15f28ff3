"""Tasks in the folder format of Harbor (harborframework.com/docs/tasks), which Terminal-Bench 2 has: read and written.

    NAME/instruction.md            what the policy reads
    NAME/task.toml                 time limits, and metadata
    NAME/environment/Dockerfile    the files that are there at the start
    NAME/tests/test.sh             writes a reward to /logs/verifier/reward.txt (or reward.json)
    NAME/solution/solve.sh         what solves it, if anybody has written it down

There is no Docker here, so that a Dockerfile may name a plain image, copy files, and set variables and the working
folder. What needs more is `Unfit`, with the reason: a task that runs without half of what it was made for would score
something else.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError, writing
from agent_gym.sandbox.terminal import ENVIRONMENT, FOLDERS, HOME

IMAGE = "python:3.11-bookworm"  # of written tasks: it has bash, git, and Python with sqlite3
_PLAIN = {"ubuntu", "debian", "python", "bash", "buildpack-deps", "busybox"}
_IGNORED = {"CMD", "LABEL", "MAINTAINER", "EXPOSE"}  # of no matter to a shell
_EXPANDED = {"FROM", "WORKDIR", "ENV", "COPY"}
# What tests call that is not here: installers, the network, and what they would install.
_ABSENT = re.compile(r"\b(apt-get|apt|apk|yum|dnf|pip3?|uvx?|conda|npm|npx|cargo|curl|wget|pytest)\b")
_NOT_OURS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/logs", "/proc", "/sbin", "/sys", "/tests", "/usr")


class Unfit(ConfigError):
    """A task that cannot be run here; the text is the reason."""


class Task(NamedTuple):
    """What one episode is made from."""

    instruction: str
    files: Mapping[str, str | bytes]  # that the policy finds, by their absolute paths
    tests: Mapping[str, str | bytes]  # by their paths in /tests; test.sh is run
    solution: tuple[str, ...] = ()  # commands
    folder: str = "/app"  # where the shell begins
    variables: Mapping[str, str] = {}
    seconds: float = 600.0  # for all commands together
    test_seconds: float = 60.0
    test_variables: Mapping[str, str] = {}

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that the policy may write to: those of every session, and where the task has put files."""
        tops = {_top(path) for path in (self.folder, *self.files)}
        return (*FOLDERS, *sorted(top for top in tops if not any(one.startswith(top) for one in FOLDERS)))


def find_tasks(folder: Path) -> list[Path]:
    """Return the folders of the tasks in a folder, or the folder itself if it is one."""
    found = sorted(path.parent for path in folder.glob("*/task.toml"))
    return [folder] if (folder / "task.toml").is_file() else found


def read_task(folder: Path) -> Task:
    """Read a task; `Unfit` if it needs what is not here, or is no whole task."""
    try:
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        dockerfile = (folder / "environment" / "Dockerfile").read_text(encoding="utf-8")
        tests = {path.relative_to(folder / "tests").as_posix(): path.read_bytes() for path in _files(folder / "tests")}
        solve = folder / "solution" / "solve.sh"
        solution = (solve.read_text(encoding="utf-8"),) if solve.is_file() else ()
    except (OSError, ValueError) as error:
        raise Unfit(f"it is not whole: {error}") from None
    environment, agent, verifier = (settings.get(name, {}) for name in ("environment", "agent", "verifier"))
    if "test.sh" not in tests:
        raise Unfit("it has no tests/test.sh")
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / name).exists():
            raise Unfit(f"it needs several containers (environment/{name})")
    if settings.get("steps"):
        raise Unfit("it has several steps ([[steps]] in task.toml)")
    for name in ("docker_image", "gpus", "mcp_servers", "healthcheck"):
        if environment.get(name):
            raise Unfit(f"it needs {name} = {environment[name]!r} (task.toml)")
    for name, data in tests.items():
        script = re.sub(r"(?m)^\s*#.*$", "", data.decode("utf-8", "replace")) if name.endswith(".sh") else ""
        if found := _ABSENT.search(script):
            raise Unfit(f"tests/{name} calls {found[1]}, which is not here")
    start, files, variables = _image(dockerfile, folder / "environment")
    try:
        seconds, test_seconds = (float(one.get("timeout_sec", 600.0)) for one in (agent, verifier))
        own = {str(name): str(value) for name, value in verifier.get("env", {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise Unfit(f"task.toml: {error}") from None
    return Task(instruction, files, tests, solution, start, variables, seconds, test_seconds, own)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _image(dockerfile: str, context: Path) -> tuple[str, dict[str, bytes], dict[str, str]]:
    """Return the working folder, the files and the variables that a Dockerfile makes."""
    folder, files, variables = "/", dict[str, bytes](), dict[str, str]()
    text = re.sub(r"\\[ \t]*\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", dockerfile))
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        try:
            words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
            if name in _EXPANDED and not {"'", "\\"} & {*rest}:  # where a $ may be one that is meant
                known = {"PATH": ENVIRONMENT["PATH"], **variables}
                words = [Template(word).substitute(known) for word in words]
        except KeyError as error:
            raise Unfit(f"its Dockerfile needs the variable {error}, which it does not set: {line:.80}") from None
        except ValueError as error:
            raise Unfit(f"its Dockerfile cannot be read ({error}): {line:.80}") from None
        if name == "FROM" and len(words) == 1:
            if re.split("[:@]", words[0])[0] not in _PLAIN:
                raise Unfit(f"it needs the image {words[0]!r}; plain ones are {', '.join(sorted(_PLAIN))}")
        elif name == "WORKDIR" and len(words) == 1:
            folder = _inside(folder, words[0])
        elif name == "ENV" and words:
            pairs = words if "=" in words[0] else [f"{words[0]}={' '.join(words[1:])}"]
            variables |= dict(word.partition("=")[::2] for word in pairs)
        elif name == "COPY" and len(words) > 1 and not words[0].startswith("--"):
            files |= _copied(words[:-1], words[-1], folder, context)
        elif name not in _IGNORED:
            raise Unfit(f"its Dockerfile needs an image: {line:.80}")
    for path in (folder, *files):
        if path == "/" or _top(path) in _NOT_OURS or (path in files and path == _top(path)):
            raise Unfit(f"it puts files into, or begins in, {path!r}, which belongs to the system here")
        other_home = _top(path) == "/home" and not path.startswith(HOME)
        if other_home or f"{sys.base_prefix}/".startswith(f"{_top(path)}/"):
            raise Unfit(f"it needs {path!r}; {HOME} is the home here, and the interpreter lies in {sys.base_prefix}")
    return folder, files, variables


def _top(path: str) -> str:
    return "/" + (PurePosixPath(path).parts[1:] or ("",))[0]


def _inside(folder: str, path: str) -> str:
    joined = PurePosixPath(folder, path)
    if ".." in joined.parts:
        raise Unfit(f"its Dockerfile names the path {path!r}")
    return joined.as_posix()


def _copied(sources: list[str], target: str, folder: str, context: Path) -> dict[str, bytes]:
    """Return what COPY copies: a folder's contents, or files, into a folder or under a name."""
    copied: dict[str, bytes] = {}
    itself = context / "Dockerfile"
    place = _inside(folder, target)
    into = target.endswith("/") or len(sources) > 1 or target in (".", "./")
    for source in sources:
        found = sorted(context.glob(source.strip("/"))) if source not in (".", "./") else [context]
        if not found or ".." in source:
            raise Unfit(f"its Dockerfile copies {source!r}, which is not in environment/")
        for path in found:
            if path.is_dir():
                inner = {file.relative_to(path).as_posix(): file for file in _files(path) if file != itself}
                copied |= {_inside(place, name): file.read_bytes() for name, file in inner.items()}
            else:
                copied[_inside(place, path.name) if into or len(found) > 1 else place] = path.read_bytes()
    return copied


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
    with writing(folder):
        for name, content in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
