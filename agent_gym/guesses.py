"""What a policy does that knows the tools and nothing else: the floor that any other has to beat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_WORD = re.compile(r"\w[\w'-]*")
_MOST_WORDS = 3


def words_of(text: str) -> list[str]:
    """Return the words of a text, at least one."""
    return _WORD.findall(text) or ["a"]


def random_words(words: Sequence[str], rng: np.random.Generator) -> str:
    """Return one to three words that stand side by side."""
    start = int(rng.integers(len(words)))
    return " ".join(words[start : start + int(rng.integers(1, _MOST_WORDS + 1))])


def random_arguments(parameters: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
    """Draw a value for each parameter of a function.

    Args:
        parameters: the JSON schema of the function's parameters.
        words: what texts are made of, in the order of the text they are from.
        rng: the source of randomness.
    """
    return {name: _draw(schema, words, rng) for name, schema in parameters.get("properties", {}).items()}


def _draw(schema: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> Any:
    if schema.get("enum"):
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return int(rng.integers(1, 6))
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind == "array":
        return [_draw(schema.get("items", {}), words, rng)]
    return random_words(words, rng)
