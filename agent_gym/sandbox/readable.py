"""What a program may read: the standard library and the packages that were asked for.

The fork server adds the folders of the shared libraries that these load. Nothing else of the installation is
readable. A folder site-packages also holds agent_gym with its generators of tasks and answers, and perhaps data
sets: a program that could import them would need no thinking.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SYSTEM = (
    "/etc/ld.so.cache",  # where the loader finds shared libraries
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/etc/mime.types",
    "/usr/lib/locale",
)


class Paths(NamedTuple):
    """Real paths for the fork server.

    Attributes:
        readable: files and folders.
        hidden: folders of installed packages, which may lie inside of readable ones.
        search: where the packages are installed that are imported at once.
    """

    readable: list[str]
    hidden: list[str]
    search: list[str]


def paths(packages: Sequence[str]) -> Paths:
    """Find what belongs to the interpreter that runs this, and where the packages are."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    standard.add(os.path.join(os.path.dirname(os.__file__), "lib-dynload"))
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), *sys.path}
    hidden = [folder for folder in _real(installed) if os.path.basename(folder) in ("site-packages", "dist-packages")]
    inside_hidden = tuple(folder + "/" for folder in hidden)
    readable = [
        path
        for path in _real([*standard, *_SYSTEM, sys.executable])
        if path not in hidden and not path.startswith(inside_hidden)
    ]
    search = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin is not None:
            place = os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
            search.append(os.path.realpath(os.path.dirname(place)))
    return Paths(readable, hidden, list(dict.fromkeys(search)))


def _real(candidates: Iterable[str]) -> list[str]:
    """The real paths of those that exist."""
    return sorted({os.path.realpath(path) for path in candidates if path and os.path.exists(path)})
