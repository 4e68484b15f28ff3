"""What a program may read: the standard library and the packages that were asked for.

The fork server adds the folders of the shared libraries that these load. Nothing else of the installation is
readable. A folder site-packages also holds agent_gym with its generators of tasks and answers, and perhaps data
sets: a program that could import them would need no thinking.
"""

from __future__ import annotations

import importlib.util
import os
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
_INSTALLED = ("site-packages", "dist-packages")  # the second is Debian's


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
    library = os.path.dirname(os.__file__)
    # Where the compiled modules are: usually lib-dynload, on some systems under lib64.
    compiled = importlib.util.find_spec("_json")
    standard = {library, os.path.dirname((compiled and compiled.origin) or os.__file__)}
    beside = [os.path.join(library, name) for name in _INSTALLED]
    installed = _real([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *beside, *sys.path])
    hidden = [folder for folder in installed if os.path.basename(folder) in _INSTALLED]
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
