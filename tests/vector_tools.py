"""What the tests of vector environments share: comparing what they return."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(one: Any, other: Any, where: str = "result") -> None:
    """Equal values in equal types, arrays with their dtypes; the times of tool calls may differ."""
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape, where
        one, other = one.tolist(), other.tolist()
    assert type(one) is type(other), f"{where}: {one!r} is no {type(other).__name__}"
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one.keys() - {"seconds"}:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert one == other, where
