"""Where a source archive has its package: as the metadata or the build's settings say, by its name, or the only one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.prepare.releases import normal
from agent_gym.sandbox.suites import TEST_FOLDERS, is_test

_BASES = ("src", "", "lib", "python")  # where packages lie in an archive
_NO_PACKAGES = TEST_FOLDERS | frozenset(
    "docs doc examples example samples demo demos benchmarks benchmark bench perf scripts tools bin ci build dist "
    "stubs typings fuzz fuzzing news changes requirements".split()
)
_NAMED = 6  # most of them, in a message
_NO_MODULES = frozenset("setup noxfile tasks fabfile versioneer conf release bootstrap ez_setup".split())
# Where builds other than setuptools, which writes top_level.txt, have the names of packages in pyproject.toml.
_KEYS = (
    ("flit", "module", "name"),
    ("flit", "metadata", "module"),
    ("poetry", "packages"),
    ("hatch", "build", "targets", "wheel", "packages"),
    ("hatch", "build", "targets", "wheel", "only-include"),
    ("setuptools", "packages"),
    ("uv", "build-backend", "module-name"),
)


def package_of(files: Mapping[str, bytes], name: str) -> tuple[str, ...]:
    """Return the folders of the package, with a slash at the end, or its modules, all in one folder.

    A folder without `__init__.py` is one, too, if it is named and has modules: a namespace.

    Raises:
        ConfigError: if nothing says which they are.
    """
    told, plain = _told(files), normal(name).replace("-", "_")
    found = [one for base in _BASES for one in sorted(set(_packages(files, base, told)))]
    chosen = [one for one in found if _module(one) in told]
    chosen = chosen or [one for one in found if _module(one).lower().replace("-", "_") == plain]
    alone = [one for one in found if _root(one) == _root(found[0])]
    chosen = chosen or (alone if len(alone) == 1 else [])
    if not chosen and not alone:  # a namespace that only the package's name tells
        first = frozenset({plain.partition("_")[0]})
        chosen = [one for base in _BASES for one in sorted(set(_packages(files, base, first)))]
    if not chosen:
        some = ", ".join(alone[:_NAMED]) + (f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else "")
        raise ConfigError(f"it does not say which of {some or 'its files'} is the package")
    return tuple(one for one in chosen if _root(one) == _root(chosen[0]))


def _packages(files: Mapping[str, bytes], base: str, told: frozenset[str]) -> Iterator[str]:
    """Yield the packages and modules in a folder of an archive."""
    begin = f"{base}/" if base else ""
    for path in files:
        inner = path.removeprefix(begin).split("/")
        if not path.startswith(begin) or not path.endswith(".py"):
            continue
        if len(inner) == 1:
            module = inner[0].removesuffix(".py")
            if module.isidentifier() and not is_test(path) and module not in _NO_MODULES:
                yield path
        elif inner[0] in told or (inner[1:] == ["__init__.py"] and inner[0] not in _NO_PACKAGES):
            if inner[0].isidentifier() and not is_test(f"{begin}{inner[0]}/x.py"):
                yield f"{begin}{inner[0]}/"


def _told(files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names to import, as the metadata or the build's settings say them."""
    names = next((data for path, data in files.items() if path.endswith(".egg-info/top_level.txt")), b"")
    told = names.decode("utf-8", "replace").split()
    for key in _KEYS:
        value: Any = read_toml(files.get("pyproject.toml", b"")).get("tool", {})
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        listed = value if isinstance(value, list) else [value]
        some = [one.get("include") if isinstance(one, dict) else one for one in listed]
        told += [one for one in some if isinstance(one, str)]
    inside = re.compile(rf"(?:\./)?(?:(?:{'|'.join(filter(None, _BASES))})/)?(\w+)")
    return frozenset(found[1] for one in told if (found := inside.match(one))) - _NO_PACKAGES


def read_toml(data: bytes) -> dict[str, Any]:
    """Return a table, empty if it cannot be read."""
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        return tomllib.loads(data.decode("utf-8", "replace"))
    return {}


def read_ini(data: bytes) -> ConfigParser:
    """Return a parser with what can be read."""
    parser = ConfigParser(interpolation=None, strict=False)
    with suppress(ConfigParserError, AttributeError):
        parser.read_string(data.decode("utf-8", "replace"))
    return parser


def _module(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".py")


def _root(path: str) -> PurePosixPath:
    return PurePosixPath(path).parent
