"""Optional dependencies of agent_gym: the command that installs an extra, and versions that no test has run with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

# The name in the package index, which differs from the import name agent_gym and the command agent-gym. The index
# refuses a name that equals a taken one without `.`, `_`, `-`, with i and l as 1 and o as 0: agent-gym equals agentgym.
DISTRIBUTION = "agentic-gym"
_ROOT = Path(__file__).resolve().parents[1]


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra for the Python that runs here.

    An installed distribution is found by pip itself, whether it came from an index, a wheel or a clone. A clone that is
    only on the path is named by its folder.
    """
    python, pip = Path(sys.executable), shutil.which("pip")
    # Not importlib.util.find_spec: before Python 3.12, setuptools takes a search for pip as an import of it, puts the
    # standard distutils back, and refuses to be imported after that.
    command = f"{python} -m pip install" if PathFinder.find_spec("pip") else f"uv pip install --python {python}"
    if pip and Path(pip).parent == python.parent:
        command = "pip install"
    try:
        version(DISTRIBUTION)
    except PackageNotFoundError:
        if (_ROOT / "pyproject.toml").is_file():
            return f"{command} -e '{_ROOT}[{extra}]'"
    return f"{command} '{DISTRIBUTION}[{extra}]'"


def other_versions(*extras: str) -> Iterator[str]:
    """Yield a sentence for each installed package whose version is outside the range of these extras.

    The ranges are the ones of the metadata: the contract tests hold for their ends (see `.github/workflows/ci.yml`).
    """
    try:
        from packaging.requirements import Requirement  # of the extra `train`
    except ModuleNotFoundError:  # the import that follows says how to install it
        return
    try:
        lines = requires(DISTRIBUTION) or ()
    except PackageNotFoundError:  # a clone that is only on the path
        return
    for line in lines:
        wanted = Requirement(line)
        extra = next((e for e in extras if wanted.marker and wanted.marker.evaluate({"extra": e})), None)
        if extra is None:
            continue
        try:
            there = version(wanted.name)
        except PackageNotFoundError:
            continue
        if not wanted.specifier.contains(there, prereleases=True):
            yield (
                f"{wanted.name} {there} is installed, and agent_gym is tested with {wanted.specifier}: "
                f"{install_command(extra)}"
            )
