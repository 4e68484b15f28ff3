"""The parts of a source archive: the package, its tests, the settings of pytest, the changelog, the licence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import cached_property
from pathlib import PurePosixPath

from agent_gym.prepare.release_layout import package_of, read_ini, read_toml
from agent_gym.prepare.releases import Release, normal
from agent_gym.sandbox.suites import SETTINGS, is_test

_SECTIONS = {"tox.ini": "pytest", "setup.cfg": "tool:pytest"}
_LOG = r"change[-_ ]?logs?|changes|(version |release )?history|news|releases?([-_ ]?notes)?|what'?s[-_ ]?new"
_TEXTS = r"\.(md|markdown|rst|txt|adoc|asciidoc)"
_CHANGELOG = re.compile(rf"(?i)(.*/)?({_LOG})(\.d|[-_]?v?\d[\w.]*)?(/.*{_TEXTS}|({_TEXTS})?)")
_README = re.compile(rf"(?i)readme({_TEXTS})?|PKG-INFO")
_TITLE = r"[^\n]*\b(change[-_ ]?log|changes|history|release notes|what'?s new)\b[^\n]*"
_HEADING = re.compile(rf"(?im)^(#+ {_TITLE}|{_TITLE}\n[=~^*-]{{3,}})$")
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
        return package_of(self.files, self.release.package)

    @property
    def root(self) -> str:
        """The folder from which the package is imported, "" for the archive's own."""
        parent = PurePosixPath(self.package[0]).parent.as_posix()
        return "" if parent == "." else parent

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
        data = self.files[name]
        if name == "pyproject.toml":
            return bool(read_toml(data).get("tool", {}).get("pytest"))
        return name not in _SECTIONS or read_ini(data).has_section(_SECTIONS[name])

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


def _is_text(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return "\0" not in data.decode()
    return False


def changelog_entry(old: ReleaseTree, new: ReleaseTree) -> str:
    """Return the lines that a release adds to the changelog, "" if there are none."""
    added: list[str] = []
    for path in sorted(new.files, key=lambda path: (path == "PKG-INFO", path.count("/"), path)):
        if path == "PKG-INFO" and added:  # which repeats the readme
            break
        if path.count("/") > 2 or is_test(path) or path.startswith(new.package):
            continue
        before, after = (_changes_in(path, one.files.get(path, b"")).splitlines() for one in (old, new))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        added += [line[1:] for line in lines if line.startswith("+")]
    entry = "\n".join(added).strip()
    return entry if len(entry) <= _MAX_ENTRY else f"{entry[:_MAX_ENTRY].rstrip()}\n[... cut ...]"


def _changes_in(path: str, data: bytes) -> str:
    """Return the text of a changelog, or the part of a readme that is one; "" of other files."""
    whole = _CHANGELOG.fullmatch(path)
    if not whole and not _README.fullmatch(path):
        return ""
    text = data.decode("utf-8", "replace") if _is_text(data) else data.decode("latin-1")
    begin = None if whole else _HEADING.search(text)
    return text if whole else text[begin.end() :] if begin else ""


def patch_of(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the difference of two trees in the form of `git diff`; all files are texts."""
    parts: list[str] = []
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path):
            continue
        texts = [tree.get(path, b"").decode() for tree in (before, after)]
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in texts)  # as git counts lines
        was, now = _quoted(f"a/{path}"), _quoted(f"b/{path}")
        head = f"diff --git {was} {now}\n"
        end = "\t" if " " in path else ""
        source = was + end if path in before else "/dev/null"
        target = now + end if path in after else "/dev/null"
        head += "new file mode 100644\n" if path not in before else ""
        head += "deleted file mode 100644\n" if path not in after else ""
        lines = difflib.unified_diff(old, new, source, target)
        shown = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        parts.append(head + "".join(shown))
    return "".join(parts)


def _quoted(path: str) -> str:
    """Write a path as git does: in quotes if it has a control character, a quote or a backslash."""
    escaped = re.sub(r'[\x00-\x1f"\\\x7f]', lambda found: f"\\{ord(found[0]):03o}", path)
    return path if escaped == path else f'"{escaped}"'
