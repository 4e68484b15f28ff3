"""What is installed beside agent_gym: the command that brings an extra, and versions that no test has run with."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_NAME = "agent-gym"
_ROOT = Path(__file__).resolve().parents[1]


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra for the Python that runs here.

    An installed agent-gym is found by pip itself, whether it came from an index, a wheel or a clone. A clone that is
    only on the path is named by its folder.
    """
    python, pip = Path(sys.executable), shutil.which("pip")
    # Not importlib.util.find_spec: before Python 3.12, setuptools takes a search for pip as an import of it, puts the
    # standard distutils back, and refuses to be imported after that.
    command = f"{python} -m pip install" if PathFinder.find_spec("pip") else f"uv pip install --python {python}"
    if pip and Path(pip).parent == python.parent:
        command = "pip install"
    try:
        version(_NAME)
    except PackageNotFoundError:
        if (_ROOT / "pyproject.toml").is_file():
            return f"{command} -e '{_ROOT}[{extra}]'"
    return f"{command} '{_NAME}[{extra}]'"


def other_versions(*extras: str) -> Iterator[str]:
    """Yield a sentence for each installed package whose version is not the one that these extras pin."""
    try:
        lines = requires(_NAME) or ()
    except PackageNotFoundError:  # a clone that is only on the path
        return
    for line in lines:
        found = re.match(r"""([\w.-]+)==([\w.]+) *;.*extra == ["']([\w-]+)["']""", line)
        if not found or found[3] not in extras:
            continue
        name, pinned, extra = found.groups()
        try:
            there = version(name).partition("+")[0]  # 2.13.0+cpu is 2.13.0 in another build
        except PackageNotFoundError:
            continue
        if there != pinned:
            yield f"{name} {there} is installed, and agent_gym was tested with {pinned}: {install_command(extra)}"
