"""Imports for all programs at once: a fork of this process has them, so that `import sympy` costs a program nothing.

sympy does much of its work the first time it is called. A program that solves one equation takes 120 ms of CPU time
after an import alone, and 13 ms after the calls of warm_up_sympy.txt.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

# The modules that programs of language models import, with the submodules that they reach without importing them.
_STANDARD = """
    ast asyncio atexit bisect calendar cmath collections collections.abc concurrent.futures contextlib copy csv
    dataclasses datetime decimal enum fractions functools gc hashlib heapq inspect io itertools json linecache math
    numbers operator os pprint queue random re secrets signal statistics string struct sys tempfile textwrap
    threading time timeit tokenize traceback types typing unicodedata unittest uuid warnings weakref zlib
""".split()

_SUBMODULES = {"numpy": ["numpy.fft", "numpy.linalg", "numpy.polynomial", "numpy.random"]}

_WARM_UP = {name: Path(__file__).with_name(f"warm_up_{name}.txt").read_text() for name in ("numpy", "sympy")}


class _Named(MetaPathFinder):
    """Finds packages by name in folders that are not on the path.

    With a folder of installed packages on the path, sympy would import whatever it can make use of (scipy, gmpy2), and
    programs would give other results on other machines.
    """

    def __init__(self, packages: Sequence[str], search: Sequence[str]) -> None:
        self._packages, self._search = packages, search

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is None and fullname in self._packages:
            return PathFinder.find_spec(fullname, self._search)
        return None


def preload(packages: Sequence[str], search: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Import the standard library, and the installed ones of `packages`; `search` are the folders they are in.

    Nothing else can be imported, not even their requirements. Returns the failed imports, by name, with the reason; and
    the files and folders of the rest.
    """
    for name in _STANDARD:
        import_module(name)
    # exit, quit and help, which -S leaves out.
    site.setquit()
    site.setcopyright()
    site.sethelper()
    finder = _Named(packages, search)
    sys.meta_path.append(finder)
    failed: dict[str, str] = {}
    for name in packages:
        try:
            for module in (name, *_SUBMODULES.get(name, ())):
                import_module(module)
            exec(compile(_WARM_UP.get(name, ""), f"<warm-up of {name}>", "exec", dont_inherit=True), {})
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    # From here on only imported modules exist; other modules do not exist for a program.
    sys.meta_path.remove(finder)
    sys.path_importer_cache.clear()
    found: set[str] = set()  # packages import more of themselves later
    for name in packages:
        if origin := getattr(sys.modules.get(name), "__file__", None):
            place = os.path.dirname(origin) if os.path.basename(origin).startswith("__init__.") else origin
            libraries = os.path.join(os.path.dirname(place), f"{name}.libs")  # shared libraries that wheels bring
            found.update(os.path.realpath(path) for path in (place, libraries) if os.path.exists(path))
    return failed, sorted(found)


def libraries() -> list[str]:
    """The folders of the shared libraries that this process has loaded; modules that are imported later need others."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        mapped = [fields[5].rstrip("\n") for line in file if len(fields := line.split(maxsplit=5)) == 6]
    return sorted({os.path.dirname(path) for path in mapped if ".so" in os.path.basename(path)})
