"""Two releases of a small package as source archives, and the tasks that the real builder makes of them."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import agent_gym
from agent_gym.prepare import prepare

ENV_ID = "AgentR1/SWE-v0"
_MODULE = '''"""Counts of words."""

from collections import Counter

__version__ = "{version}"


def counts(text):
    return dict(Counter(text.{split}()))
{more}'''
_LONGEST = '''

def longest(text):
    """Return the longest word, the first of several."""
    return max(text.split(), key=len, default="")
'''
_TESTS = """import pytest
import unittest
from wordlets import counts
import wordlets


def test_counts():
    assert counts("a b a") == {"a": 2, "b": 1}


@pytest.mark.parametrize("text, number", [("", 0), ("a", 1), ("a b", 2)])
def test_words(text, number):
    assert len(counts(text)) == number


class TestKinds(unittest.TestCase):
    def test_kind(self):
        self.assertIsInstance(counts("a"), dict)


def test_numbers_are_refused():
    with pytest.raises(AttributeError):
        counts(3)
"""
_NEW_TESTS = """

def test_longest():
    assert wordlets.longest("a bcd ef") == "bcd"


def test_longest_of_nothing():
    assert wordlets.longest("") == ""


def test_case_does_not_count():
    assert counts("A a") == {"a": 2}
"""


def release_files(new: bool) -> dict[str, str]:
    """The files of wordlets 1.0 or 1.1, whose case-insensitive counts and `longest` are new."""
    version = "1.1" if new else "1.0"
    entry = "## 1.1\n\n- `counts` ignores case.\n- New function `longest`.\n\n" if new else ""
    return {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: wordlets\nVersion: {version}\nLicense: MIT\n",
        "CHANGELOG.md": f"# Changes\n\n{entry}## 1.0\n\n- First release.\n",
        "pyproject.toml": '[project]\nname = "wordlets"\n\n[tool.pytest.ini_options]\naddopts = "--cov"\n',
        "setup.py": "raise SystemExit('never run')\n",
        "src/wordlets/__init__.py": _MODULE.format(
            version=version, split="lower().split" if new else "split", more=_LONGEST if new else ""
        ),
        "tests/conftest.py": "",
        "tests/test_wordlets.py": _TESTS + (_NEW_TESTS if new else ""),
    }


def write_archive(
    folder: Path, version: str, files: Mapping[str, str], name: str = "wordlets", encoding: str = "utf-8"
) -> Path:
    """Write a source archive as an index has it."""
    path = folder / f"{name}-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text.encode(encoding))
            tar.addfile(member, io.BytesIO(text.encode(encoding)))
    return path


@functools.cache
def shared_folder() -> Path:
    """The folder that `agent-gym prepare swe --from` makes of two archives, once for all tests of this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for new in (False, True):
        write_archive(folder / "archives", "1.1" if new else "1.0", release_files(new))
    return prepare("swe", source=[str(folder / "archives")], output=folder / "made").folder


def shared_task() -> Path:
    (folder,) = shared_folder().rglob("task.toml")
    return folder.parent


@functools.cache
def shared_function() -> Path:
    """The task of the function `longest`, which the real builder makes of the newer archive."""
    source = str(shared_folder().parent / "archives")
    made = prepare("swe-functions", source=[source], output=shared_folder().parent / "functions").folder
    (folder,) = made.rglob("wordlets-1.1-longest/task.toml")
    return folder.parent


def made_env(tasks: Path, **settings: Any) -> Any:
    return agent_gym.make(ENV_ID, data=tasks, **settings)
