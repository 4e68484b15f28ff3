"""A text space for language: any Unicode string up to a length.

`gymnasium.spaces.Text` cannot carry language: its default alphabet has no space, an alphabet of all of Unicode takes
seconds to build, `contains` walks the string, and (Gymnasium 1.4.0) `AsyncVectorEnv` with shared memory returns the
constant "0000..." for every observation. This subclass checks the length only and brings its own shared memory.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.spaces import Text as GymnasiumText
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

# The characters of `sample`: enough to break a parser, as sampled actions are the first fuzz test of an environment.
_SAMPLE_ALPHABET = (
    " \n\t\"'{}[]()<>/\\:;,.#$%*+-=_|0123456789abcdefghijklmnopqrstuvwxyzABCXYZ"
    "\u00e9\u00df\u03c0\u0301\u05d0\u4e16\u2713\U0001f600"
)
_MAX_SAMPLE = 64


class Text(GymnasiumText):
    """All Unicode strings of at most `max_length` code points, the empty one included; `seed` is that of `sample`."""

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.min_length = 0
        self.max_length = int(max_length)
        Space.__init__(self, dtype=str, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            raise ValueError("agent_gym's Text space draws without mask and probability: pass neither")
        length = int(self.np_random.integers(0, min(self.max_length, _MAX_SAMPLE) + 1))
        return "".join(_SAMPLE_ALPHABET[i] for i in self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Text(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.max_length == other.max_length

    is_np_flattenable = False  # language has no fixed-size numpy form

    @property
    def character_set(self) -> frozenset[str]:
        return frozenset(_SAMPLE_ALPHABET)

    @property
    def characters(self) -> str:  # of which `SyncVectorEnv` builds its first, empty strings
        return _SAMPLE_ALPHABET


class SharedText(Sequence[str]):
    """The live strings of `num_envs` workers, decoded from shared memory whenever they are looked at.

    `AsyncVectorEnv` reads its buffer once, keeps the result and deep-copies it after each step. So the result is a
    view, and its deep copy a tuple of ordinary strings.
    """

    def __init__(self, memory: tuple[Any, Any], stride: int, num_envs: int) -> None:
        self._lengths, self._bytes = memory
        self._stride, self._num_envs = stride, num_envs

    def __len__(self) -> int:
        return self._num_envs

    def __getitem__(self, index: Any) -> Any:
        slot = range(self._num_envs)[index]
        if isinstance(slot, range):
            return tuple(self[i] for i in slot)
        start = slot * self._stride
        raw = bytes(memoryview(self._bytes)[start : start + self._lengths[slot]])
        return raw.decode("utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"SharedText({list(self)!r})"


_WIDEST = 4  # bytes of the longest UTF-8 form of a code point


@create_shared_memory.register(Text)
def _create(space: Text, n: int = 1, ctx: Any = multiprocessing) -> tuple[Any, Any]:
    return ctx.RawArray("q", n), ctx.RawArray("B", n * _WIDEST * space.max_length)


@read_from_shared_memory.register(Text)
def _read(space: Text, shared_memory: Any, n: int = 1) -> SharedText:
    return SharedText(shared_memory, _WIDEST * space.max_length, n)


@write_to_shared_memory.register(Text)
def _write(space: Text, index: int, value: str, shared_memory: Any) -> None:
    lengths, buffer = shared_memory
    raw = value[: space.max_length].encode("utf-8", "surrogatepass")
    start = index * _WIDEST * space.max_length
    memoryview(buffer).cast("B")[start : start + len(raw)] = raw
    lengths[index] = len(raw)
