"""The parts of a source archive: the package, its tests, the settings of pytest, the changelog, the licence."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import cached_property
from pathlib import PurePosixPath

from agent_gym.errors import ConfigError
from agent_gym.prepare.releases import Release, normal
from agent_gym.sandbox.suites import SETTINGS, TEST_FOLDERS, is_test

_BASES = ("src", "", "lib", "python")  # where packages lie in an archive
_SECTIONS = {"tox.ini": "pytest", "setup.cfg": "tool:pytest"}
_NO_PACKAGES = frozenset("docs doc examples example benchmarks benchmark scripts tools bin ci build dist".split())
_CHANGELOG = re.compile(r"(?i)(changelog|changes|history|news|release[-_ ]?notes|whatsnew)(\.(md|rst|txt))?")
_MAX_ENTRY = 3000  # characters


@dataclass(frozen=True)
class ReleaseTree:
    """The files of a release, by their paths."""

    release: Release
    files: Mapping[str, bytes]

    @cached_property
    def package(self) -> tuple[str, ...]:
        """The package's folders, with a slash at the end, or its modules.

        `ConfigError` if nothing says which they are.
        """
        found = {base: sorted(_packages(self.files, base)) for base in _BASES}
        name = normal(self.release.package).replace("-", "_")
        named = [one for some in found.values() for one in some if _module(one).lower().replace("-", "_") == name]
        told = [one for some in found.values() for one in some if _module(one) in self._told]
        alone = next((some for some in found.values() if some), [])
        if chosen := told or named or (alone if len(alone) == 1 else []):
            root = PurePosixPath(chosen[0]).parent
            return tuple(one for one in chosen if PurePosixPath(one).parent == root)
        raise ConfigError(f"it does not say which of {', '.join(alone) or 'its files'} is the package")

    @property
    def root(self) -> str:
        """The folder from which the package is imported, "" for the archive's own."""
        parent = PurePosixPath(self.package[0]).parent.as_posix()
        return "" if parent == "." else parent

    @cached_property
    def _told(self) -> frozenset[str]:
        names = (data for path, data in self.files.items() if path.endswith(".egg-info/top_level.txt"))
        return frozenset(next(names, b"").decode("utf-8", "replace").split())

    def own(self) -> dict[str, bytes]:
        """Return the texts of the package without its tests; a binary file stays as it is in a task."""
        own = {path: data for path, data in self.files.items() if path.startswith(self.package) and not is_test(path)}
        return {path: data for path, data in own.items() if _is_text(data)}

    def tests(self) -> dict[str, bytes]:
        """Return the tests, with all in their folders, and the files that can hold settings of pytest."""
        return {path: data for path, data in self.files.items() if is_test(path) or path in SETTINGS}

    @cached_property
    def settings(self) -> str:
        """The file that has settings of pytest, or ""."""
        return next((name for name in SETTINGS if name in self.files and self._is_set(name)), "")

    def _is_set(self, name: str) -> bool:
        text = self.files[name].decode("utf-8", "replace")
        if name.endswith("pytest.ini"):
            return True
        with suppress(tomllib.TOMLDecodeError, ConfigParserError, AttributeError):
            if name == "pyproject.toml":
                return bool(tomllib.loads(text).get("tool", {}).get("pytest", {}).get("ini_options"))
            parser = ConfigParser(interpolation=None)
            parser.read_string(text)
            return parser.has_section(_SECTIONS[name])
        return False

    @cached_property
    def licence(self) -> str:
        """The licence as the metadata say it, or "unknown"."""
        about = BytesHeaderParser().parsebytes(self.files.get("PKG-INFO", b""))
        classifiers = [str(one) for one in about.get_all("Classifier", []) if str(one).startswith("License ::")]
        named = [about.get("License-Expression"), *(one.rpartition(":: ")[2] for one in classifiers)]
        plain = str(about.get("License") or "").strip().partition("\n")[0][:60]
        return next((str(one) for one in (*named, plain) if one), "unknown")

    def metadata(self) -> dict[str, bytes]:
        """Return the file by which `importlib.metadata` finds the package."""
        if "PKG-INFO" not in self.files:
            return {}
        name = f"{normal(self.release.package).replace('-', '_')}-{self.release.version}.dist-info/METADATA"
        return {f"{self.root}/{name}".lstrip("/"): self.files["PKG-INFO"]}


def _packages(files: Mapping[str, bytes], base: str) -> Iterator[str]:
    """Yield the packages and modules in a folder of an archive."""
    depth = len(PurePosixPath(base).parts)
    found = {PurePosixPath(path) for path in files if path.startswith(f"{base}/" if base else "")}
    for path in found:
        inner = path.parts[depth:]
        if len(inner) == 2 and inner[1] == "__init__.py" and inner[0] not in (_NO_PACKAGES | TEST_FOLDERS):
            yield f"{path.parent.as_posix()}/"
        elif len(inner) == 1 and path.suffix == ".py" and path.stem.isidentifier() and not is_test(path.name):
            if path.stem not in ("setup", "noxfile", "tasks", "fabfile", "versioneer", "conf", "release"):
                yield path.as_posix()


def _is_text(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return "\0" not in data.decode()
    return False


def _module(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".py")


def changelog_entry(old: ReleaseTree, new: ReleaseTree) -> str:
    """Return the lines that a release adds to the changelog, "" if there are none."""
    added: list[str] = []
    for path in sorted(new.files, key=lambda path: (path.count("/"), path)):
        named = any(_CHANGELOG.fullmatch(part) for part in PurePosixPath(path).parts)
        if not named or path.count("/") > 2 or is_test(path) or path.startswith(new.package):
            continue
        before, after = (one.files.get(path, b"").decode("utf-8", "replace").splitlines() for one in (old, new))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        added += [line[1:] for line in lines if line.startswith("+")]
    entry = "\n".join(added).strip()
    return entry if len(entry) <= _MAX_ENTRY else f"{entry[:_MAX_ENTRY].rstrip()}\n[... cut ...]"


def patch_of(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the difference of two trees in the form of `git diff`; all files are texts."""
    parts: list[str] = []
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path):
            continue
        texts = [tree.get(path, b"").decode() for tree in (before, after)]
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in texts)  # as git counts lines
        source = f"a/{path}" if path in before else "/dev/null"
        target = f"b/{path}" if path in after else "/dev/null"
        head = f"diff --git a/{path} b/{path}\n"
        head += "new file mode 100644\n" if path not in before else ""
        head += "deleted file mode 100644\n" if path not in after else ""
        lines = difflib.unified_diff(old, new, source, target)
        shown = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        parts.append(head + "".join(shown))
    return "".join(parts)
