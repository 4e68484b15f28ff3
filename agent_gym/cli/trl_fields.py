"""The fields of the settings of TRL and transformers, read from their sources as text: importing them takes seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_gym.cli.parser import as_text

_SOURCES = {
    "trl": ("trainer/grpo_config.py", "trainer/sft_config.py", "trainer/base_config.py", "trainer/model_config.py"),
    "transformers": ("training_args.py",),
    "accelerate": ("commands/launch.py",),
}
_ENUMERATIONS = ("training_args.py", "trainer_utils.py")  # of transformers
_TRUTH = "yes true t y 1 no false f n 0".split()  # as the parser of transformers reads them
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: _TRUTH.index(text.lower()), "true or false"),
}


def _texts(package: str, files: Sequence[str]) -> list[str]:
    """Return the sources of an installed package; `OSError` if one is not where it was."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent.joinpath(file).read_text(encoding="utf-8") for file in files]


def types_of(annotation: str) -> frozenset[str]:
    """Return the types that an annotation names, without None: {"int"} of `int | None`."""
    return frozenset(part.strip() for part in annotation.split("|")) - {"None"}


@cache
def known_fields() -> Mapping[str, frozenset[str]]:
    """Return the types of each name that may be a flag, and of some more; nothing if a source is not where it was."""
    fields: dict[str, frozenset[str]] = {}
    try:
        texts = [text for package, files in _SOURCES.items() for text in _texts(package, files)]
    except OSError:
        return {}
    for text in texts:
        for name, annotation in re.findall(r"^    (\w+): ([^=\n]*)", text, re.MULTILINE):
            fields[name] = fields.get(name, frozenset()) | types_of(annotation)
        # The flags of accelerate have dashes or underscores.
        for flag in re.findall(r'"--([\w-]+)"', text):
            fields.setdefault(flag.replace("-", "_"), frozenset())
    return fields


@cache
def _enumerations() -> Mapping[str, tuple[str, ...]]:
    """Return the values of each enumeration of transformers' settings."""
    found = {}
    with suppress(OSError):
        for text in _texts("transformers", _ENUMERATIONS):
            for one in re.finditer(r"^class (\w+)\(ExplicitEnum\):\n((?:    .*\n|\n)+)", text, re.MULTILINE):
                found[one[1]] = tuple(re.findall(r'^    [A-Z]\w* = "(\w+)"', one[2], re.MULTILINE))
    return found


def faults(given: Mapping[str, Any], known: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield a line for each value that the type of its field cannot take.

    Only fields of one type are looked at: numbers, truth values, enumerations. All others are left to the real parser.
    """
    for name, value in given.items():
        types = known.get(name, frozenset())
        if value is None or not isinstance(value, str | int | float):
            continue
        if len(types) == 1 and (reader := _READERS.get(min(types))):
            if value is True:  # a switch, or a flag whose value is missing
                continue
            try:
                reader[0](as_text(value))
            except ValueError:
                yield f"{name} is {value!r}; it must be {reader[1]}"
        elif allowed := _enumerations().get(min(types - {"str"}, default="")):
            value = "no" if value is False else value  # yaml's reading of that word
            if str(value) not in allowed:
                yield f"{name} is {value!r}; allowed: {', '.join(allowed)}"
