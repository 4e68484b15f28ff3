"""Data that comes in the wheel of a Python package: files of one pinned version, and splits of tasks that have none."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError


def prepared_folder(data: str | Path | None, inside: str, needed: str, name: str, cure: str) -> Path:
    """Return the folder of an unpacked wheel: `data`, or by default `inside` of the cache folder.

    Raises:
        ConfigError: if the folder `needed` is not in it; it gives the name of the data, and the cure.
    """
    folder = cache_folder() / inside if data is None else Path(data).expanduser()
    if not (folder / needed).is_dir():
        raise ConfigError(f"the data of {name} are not in {str(folder)!r}; {cure}")
    return folder


def read_checked(path: Path, checksum: str, package: str, cure: str) -> str:
    """Read a text whose SHA-256 is known; `ConfigError` if it is missing, or another one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {cure}") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ConfigError(f"{path} is not that of {package}; leave out data=, and {cure}")
    return content.decode("utf-8")


def place_of(text: str) -> float:
    """Return a number from 0 to 1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) / 2**256


class LinkedGroups:
    """Disjoint sets of texts, joined one by one."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def head(self, one: str) -> str:
        """Return the member that stands for the set of a text."""
        while (above := self._above.setdefault(one, one)) != one:
            self._above[one] = one = self._above[above]
        return one

    def join(self, one: str, other: str) -> None:
        """Make one set of the sets of two texts."""
        self._above[self.head(one)] = self.head(other)
