"""The result of a Dockerfile without an image: files, folders, variables, and the first working folder.

Each RUN is read command by command. A command that installs something present, or unused by the task, is left out; a
command that makes folders and files is kept, and runs in the session before the policy does. All else is a reason.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from string import Template

from agent_gym.envs.terminal.needs import Reason, Unfit, module_of, python_packages, system_packages
from agent_gym.envs.terminal.shell import BUILTINS, Command, Unreadable, commands, replaced
from agent_gym.envs.terminal.testscript import after_install
from agent_gym.sandbox.terminal import ENVIRONMENT

_PLAIN = {"ubuntu", "debian", "python", "bash", "buildpack-deps", "busybox"}
_REGISTRIES = (
    "docker.io/library/",
    "docker.io/",
    "library/",
    "public.ecr.aws/docker/library/",
    "mirror.gcr.io/library/",
)
_BENCH = re.compile(r"ghcr\.io/laude-institute/t-bench/(ubuntu|debian|python)-[\d-]+(:.*|@.*)?")
_IGNORED = {
    "CMD",
    "ENTRYPOINT",
    "LABEL",
    "MAINTAINER",
    "EXPOSE",
    "SHELL",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "USER",
    "VOLUME",
}
_EXPANDED = {"FROM", "WORKDIR", "ENV", "COPY", "ADD"}
_NOT_OURS = ("/bin", "/boot", "/dev", "/lib", "/lib64", "/logs", "/proc", "/sbin", "/sys", "/tests", "/sessions")
_SYSTEM = (
    "/usr/bin",
    "/usr/lib",
    "/usr/libexec",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/include",
    "/var/tmp",
)
# Folders that are the system's, in which tasks have subfolders.
_SHARED = ("/etc", "/home", "/opt", "/usr", "/usr/local", "/usr/share", "/var")
_SYSTEM_INSTALLERS = frozenset({"apt-get", "apt", "apk", "yum", "dnf", "dpkg"})
# Programs that may run in a session before the policy: they make and change files, and need nothing else.
_MAKING = frozenset(
    "mkdir touch chmod echo printf cat tee cp mv ln rm sed git cd truncate head tail seq install tar dd".split()
)
_LOOKING = frozenset(
    "ls wc sort uniq cut tr awk grep find base64 md5sum sha256sum date id dirname basename which".split()
)
_WITHOUT_EFFECT = frozenset({"chown", "chgrp", "update-alternatives", "ldconfig", "locale-gen", "useradd", "groupadd"})
_CACHES = ("/var/lib/apt", "/var/cache", "/root/.cache", "/var/log/apt", "~/.cache", "/usr/share/doc", "/usr/share/man")


@dataclass
class DockerImage:
    """The initial state of a session."""

    folder: str = "/"
    files: dict[str, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)  # commands, run once, before the policy's
    installed: list[str] = field(default_factory=list)  # packages of Python that are not here
    missing: list[str] = field(default_factory=list)  # packages of the system that are not here
    pytest: bool = False  # whether the policy has it, too


def read_image(dockerfile: str, context: Path) -> tuple[DockerImage, list[Reason]]:
    """Read a Dockerfile whose files are in `context`; return the image, and its missing needs."""
    reader = _DockerfileReader(context)
    try:
        for name, rest, body in _instructions(dockerfile):
            reader.take(name, rest, body)
    except Unfit as unfit:  # the rest cannot be read
        reader.reasons += unfit.reasons
    reader.check()
    return reader.image, reader.reasons


def _instructions(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Return the instructions, each with its arguments and the bodies of its heredocs."""
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while re.search(r"\\[ \t]*$", line) and at < len(lines):
            following = lines[at]
            at += 1
            if following.lstrip().startswith("#") or not following.strip():
                continue
            line = re.sub(r"\\[ \t]*$", "", line) + "\\\n" + following
        name, _, rest = line.strip().partition(" ")
        bodies = []
        if name.upper() in ("RUN", "COPY", "ADD"):
            for dash, delimiter in re.findall(r"<<(-?)[ \t]*[\"']?(\w+)[\"']?", rest):
                begin = at
                while at < len(lines) and (lines[at].lstrip("\t") if dash else lines[at]) != delimiter:
                    at += 1
                bodies.append("\n".join(lines[begin:at]) + "\n")
                at += 1
        yield name.upper(), rest.strip(), bodies


class _DockerfileReader:
    def __init__(self, context: Path) -> None:
        self.context, self.image, self.reasons = context, DockerImage(), list[Reason]()
        self.arguments: dict[str, str] = {}
        self.stages = 0

    def take(self, name: str, rest: str, bodies: list[str]) -> None:
        if name == "RUN":
            self._run(rest, bodies)
            return
        line = f"{name} {rest}"
        joined = rest.replace("\\\n", " ")
        try:
            words = json.loads(joined) if joined.startswith("[") else shlex.split(joined)
            if name in _EXPANDED and not {"'", "\\"} & {*joined}:  # where a $ may be one that is meant
                known = {"PATH": ENVIRONMENT["PATH"], **self.arguments, **self.image.variables}
                words = [_expand(word, known) for word in words]
        except KeyError as error:
            self._refuse(f"its Dockerfile needs the variable {error}, which it does not set", f"{line:.80}")
            return
        except ValueError as error:
            self._refuse("its Dockerfile cannot be read", f"({error}): {line:.80}")
            return
        taking: Callable[[list[str], list[str]], None] | None = {
            "FROM": self._from,
            "WORKDIR": self._workdir,
            "ENV": self._env,
            "ARG": self._arg,
            "COPY": self._copy,
            "ADD": self._copy,
        }.get(name)
        if taking is not None and words:
            taking(words, bodies)
        elif name not in _IGNORED:
            self._refuse("its Dockerfile needs an image", f"{line:.80}")

    def check(self) -> None:
        """Refuse paths outside of a session's."""
        # Folders alone, in places that are there in any case.
        made = [path for path in self.image.folders if path not in _SHARED and top_of(path) not in ("/logs", "/tests")]
        self.image.folders = made
        for path in dict.fromkeys((self.image.folder, *self.image.files, *self.image.folders)):
            mount, top = mount_of(path), top_of(path)
            file = path in self.image.files
            if path == "/" or mount is None or top in _NOT_OURS or (file and path == mount):
                self._refuse("it puts files into, or begins in", f"{path!r}, which belongs to the system here")
            elif f"{sys.base_prefix}/".startswith(f"{mount}/"):
                self._refuse(f"it needs {top}, and the interpreter lies in {sys.base_prefix}")

    def _refuse(self, kind: str, what: str = "") -> None:
        self.reasons.append(Reason(kind, what))

    def _from(self, words: list[str], _: list[str]) -> None:
        words = [word for word in words if not word.startswith("--")]
        self.stages += 1
        if self.stages > 1:
            raise Unfit(*self.reasons, Reason("its Dockerfile builds in several stages", ""))
        name = words[0]
        for registry in _REGISTRIES:
            name = name.removeprefix(registry)
        if re.split("[:@]", name)[0] not in _PLAIN and not _BENCH.fullmatch(name):
            plain = ", ".join(sorted(_PLAIN))
            self._refuse(f"it needs the image {re.split('[:@]', words[0])[0]!r}", f"plain ones are {plain}")
        if _BENCH.fullmatch(name):
            self.image.folder = "/app"

    def _workdir(self, words: list[str], _: list[str]) -> None:
        self.image.folder = self._inside(self.image.folder, words[0])

    def _env(self, words: list[str], _: list[str]) -> None:
        pairs = words if "=" in words[0] else [f"{words[0]}={' '.join(words[1:])}"]
        self.image.variables |= dict(word.partition("=")[::2] for word in pairs)

    def _arg(self, words: list[str], _: list[str]) -> None:
        for word in words:
            name, found, value = word.partition("=")
            if found:
                self.arguments[name] = value

    def _copy(self, words: list[str], bodies: list[str]) -> None:
        flags = [word for word in words if word.startswith("--")]
        words = [word for word in words if not word.startswith("--")]
        if flags and flags[0].startswith("--from=ghcr.io/astral-sh/uv"):
            return  # its work is done already
        foreign = [flag for flag in flags if not flag.startswith(("--chown=", "--chmod=", "--link"))]
        if foreign or len(words) < 2 or any(re.match(r"https?://|git@", word) for word in words):
            self._refuse("its Dockerfile needs an image", f"COPY {' '.join([*flags, *words]):.80}")
            return
        *sources, target = words
        if bodies:
            names = [source.lstrip("<-").strip("\"'") for source in sources]
            into = target if target.endswith("/") or len(names) > 1 else ""
            for name, body in zip(names, bodies, strict=False):
                path = self._inside(self.image.folder, f"{into}/{name}" if into else target)
                self.image.files[path] = body.encode()
            return
        for source in sources:
            self._copy_one(source, target, len(sources) > 1)
        modes = [flag.partition("=")[2] for flag in flags if flag.startswith("--chmod=")]
        if modes:
            self.image.setup.append(
                f"chmod -R {shlex.quote(modes[0])} {shlex.quote(self._inside(self.image.folder, target))}"
            )

    def _copy_one(self, source: str, target: str, several: bool) -> None:
        itself = self.context / "Dockerfile"
        place = self._inside(self.image.folder, target)
        into = target.endswith("/") or several or target in (".", "./")
        everything = source.strip("/") in ("", ".")
        found = [self.context] if everything or ".." in source else sorted(self.context.glob(source.strip("/")))
        if not found or ".." in source:
            self._refuse(f"its Dockerfile copies {source!r}, which is not in environment/")
            return
        for path in found:
            if path.is_dir():
                files = (one for one in sorted(path.rglob("*")) if one.is_file() and one != itself)
                inner = {one.relative_to(path).as_posix(): one for one in files}
                self.image.files |= {self._inside(place, name): one.read_bytes() for name, one in inner.items()}
                self.image.folders += [place] if place != "/" else []
            else:
                name = self._inside(place, path.name) if into or len(found) > 1 else place
                self.image.files[name] = path.read_bytes()

    def _inside(self, folder: str, path: str) -> str:
        joined = PurePosixPath(folder, path)
        if ".." in joined.parts:
            raise Unfit(*self.reasons, Reason(f"its Dockerfile names the path {path!r}"))
        return joined.as_posix()

    def _run(self, text: str, bodies: list[str]) -> None:
        text = re.sub(r"^(--\w[\w-]*(=\S+)?[ \t]+(\\\n)?)+", "", text)
        try:
            if text.startswith("["):
                text = shlex.join(json.loads(text.replace("\\\n", " ")))
            elif bodies:
                text = bodies[0] if re.fullmatch(r"<<-?\s*[\"']?\w+[\"']?", text) else _with_bodies(text, bodies)
            found = commands(text)
        except (Unreadable, ValueError) as error:
            self._refuse("its Dockerfile cannot be read", f"({error})")
            return
        changes, kept = [], []
        for command in found:
            if self._is_left_out(command):
                begin, end = command.words[0].begin, max(word.end for word in (*command.words, *command.targets))
                changes.append((begin, end, ":"))
            elif not self._makes(command):
                return
            else:
                kept.append(command)
        if all(self._is_folders_only(command) for command in kept) and not any(one.assignments for one in found):
            for command in kept:
                self.image.folders += [self._inside(self.image.folder, one) for one in _operands(command)]
        elif kept:
            self.image.setup.append(f"cd {shlex.quote(self.image.folder)}\n{replaced(text, changes)}")
            for command in kept:
                self._places(command)

    def _is_left_out(self, command: Command) -> bool:
        """Whether a command installs something; note missing programs."""
        texts = command.texts
        if texts[:1] == ["sudo"]:
            texts = texts[1:]
        program = PurePosixPath(texts[0]).name if texts else ""
        if program in _SYSTEM_INSTALLERS:
            self.image.missing += system_packages(after_install(texts))
            return True
        python = re.fullmatch(r"python(3(\.\d+)?)?", program) is not None
        if program in ("pip", "pip3", "uv") or (python and texts[1:3] == ["-m", "pip"]):
            packages = after_install(texts)
            self.image.pytest |= any(re.match(r"pytest\b", one) is not None for one in packages)
            for package in python_packages(packages):
                self.image.installed += self._listed(package) if package.startswith("-") else [package]
            return True
        if python and texts[1:3] in (["-m", "venv"], ["-m", "ensurepip"]):
            return True
        if program in ("rm", "find") and texts[1:] and _is_cleaning(texts[1:]):
            return True
        links = program == "ln" and "python" in texts[-1] and any("python3" in text for text in texts[1:-1])
        return links or program in _WITHOUT_EFFECT

    def _listed(self, option: str) -> list[str]:
        """Return the packages of a requirements file that are not here; itself if it cannot be found."""
        kind, _, name = option.partition(" ")
        path = PurePosixPath(self.image.folder, name).as_posix()
        data = self.image.files.get(path)
        if kind not in ("-r", "--requirement") or data is None:
            return [option]
        lines = (line.partition("#")[0].strip() for line in data.decode("utf-8", "replace").splitlines())
        return list(python_packages(line for line in lines if line and not line.startswith("-")))

    def _makes(self, command: Command) -> bool:
        """Whether a command makes files and nothing else; if not, that is a reason."""
        program = command.program
        if not program or program in _MAKING | _LOOKING | BUILTINS:
            if program == "git" and command.texts[1:2] and command.texts[1] in ("clone", "fetch", "pull", "submodule"):
                self._refuse(f"its Dockerfile runs git {command.texts[1]}")
                return False
            return True
        self._refuse(f"its Dockerfile runs {program}")
        return False

    def _is_folders_only(self, command: Command) -> bool:
        plain = all(word.fixed for word in command.words) and not command.targets and not command.assignments
        if command.program in ("true", ":", "set") or command.texts == ["cd", self.image.folder]:
            return not command.targets
        modes = any(word.startswith("-") and word != "-p" and word != "-pv" for word in command.texts[1:])
        return plain and command.program == "mkdir" and not modes

    def _places(self, command: Command) -> None:
        """Have the folders of absolute paths that a command may write to."""
        written = [
            *command.targets,
            *(command.words[1:] if command.program in _MAKING - {"echo", "printf", "cat"} else []),
        ]
        for word in written:
            if word.fixed and word.text.startswith("/") and not word.text.startswith("/dev/") and ".." not in word.text:
                making = command.program == "mkdir"
                self.image.folders.append(word.text if making else str(PurePosixPath(word.text).parent))


def _operands(command: Command) -> list[str]:
    if command.program != "mkdir":
        return []
    return [text for text in command.texts[1:] if not text.startswith("-")]


def _is_cleaning(texts: list[str]) -> bool:
    paths = [text for text in texts if not text.startswith("-")]
    return all(path.startswith(_CACHES) or path in ("/tmp/*", "/var/tmp/*") for path in paths)


def _with_bodies(text: str, bodies: list[str]) -> str:
    delimiters = re.findall(r"<<-?[ \t]*[\"']?(\w+)[\"']?", text)
    return text + "\n" + "".join(f"{body}{name}\n" for name, body in zip(delimiters, bodies, strict=False))


def _expand(word: str, known: dict[str, str]) -> str:
    """Put in variables: $NAME, ${NAME} and ${NAME:-otherwise}."""
    word = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: known.get(found[1]) or found[2], word)
    return Template(word).substitute(known)


def top_of(path: str) -> str:
    """Return the first part of an absolute path."""
    return "/" + (PurePosixPath(path).parts[1:] or ("",))[0]


def mount_of(path: str) -> str | None:
    """Return the folder of a session in which a path lies; None if that is the system's own."""
    parts = PurePosixPath(path).parts
    for length in range(2, len(parts) + 1):
        folder = str(PurePosixPath(*parts[:length]))
        if folder not in _SHARED:
            return None if folder.startswith(_SYSTEM) else folder
    return None


def needs_of(image: DockerImage, used: Callable[[str], bool]) -> Iterator[Reason]:
    """Say which of the packages that an image installs, and that are not here, something of the task uses."""
    for package in dict.fromkeys(image.installed):
        if package.startswith("-") or package.startswith("the package") or used(module_of(package)):
            name = package if package.startswith(("-", "the")) else re.split(r"[\[<>=!~;@ ]", package, maxsplit=1)[0]
            yield Reason(f"its Dockerfile installs {name} (RUN pip), which it uses and which is not here")
    for package in dict.fromkeys(image.missing):
        yield Reason(f"its Dockerfile installs {package} (RUN apt-get), which is not here")
