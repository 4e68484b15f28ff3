"""One `info` of a vector environment out of those of its environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

Info = Mapping[str, Any]
Slots = list[int] | slice
EVERYWHERE = slice(None)


def batch_infos(infos: Sequence[Info]) -> dict[str, Any]:
    """Merge infos in Gymnasium's vector form, column by column.

    Each key has an array with a value per environment, and beside it, under the name with an underscore before it, a
    mask of those that have the key. Numbers get an array of their type, with zeros for the others; arrays are
    stacked; dicts are merged in turn; texts, lists and everything else go into an array of objects, with None.

    `VectorEnv._add_info` builds the same, value by value. It takes an array's type from the first environment
    that has the key, so that 1 makes a 0 of a later 0.5; here such a column has the wider type, and one of numbers and
    other things holds objects.

    Args:
        infos: one per environment.
    """
    size = len(infos)
    merged: dict[str, Any] = {}
    for key, values, where in _columns(infos):
        mask = np.zeros(size, dtype=np.bool_)
        mask[where] = True
        merged[key], merged[f"_{key}"] = _column(values, where, size), mask
    return merged


def _columns(infos: Sequence[Info]) -> list[tuple[str, list[Any], Slots]]:
    """Each key with its values and the slots that have it."""
    # Nearly always all infos have the same keys: as many of them, and none of the first one's is missing.
    if len(set(map(len, infos))) == 1:
        with suppress(KeyError):
            return [(key, [info[key] for info in infos], EVERYWHERE) for key in infos[0]]
    found: list[tuple[str, list[Any], Slots]] = []
    for key in dict.fromkeys(chain.from_iterable(infos)):
        slots = [slot for slot, info in enumerate(infos) if key in info]
        values = [infos[slot][key] for slot in slots]
        found.append((key, values, slots if len(slots) < len(infos) else EVERYWHERE))
    return found


def _column(values: list[Any], where: Slots, size: int) -> Any:
    kinds = set(map(type, values))
    if all(issubclass(kind, dict) for kind in kinds):
        return batch_infos(values if where == EVERYWHERE else _objects(values, where, size, absent={}).tolist())
    if all(kind in (bool, int, float) or issubclass(kind, np.number) for kind in kinds):
        column = np.zeros(size, dtype=np.result_type(*kinds))
    elif kinds == {np.ndarray} and len({value.shape for value in values}) == 1:
        column = np.zeros((size, *values[0].shape), dtype=np.result_type(*values))
    else:
        return _objects(values, where, size, absent=None)
    column[where] = values
    return column


def _objects(values: list[Any], where: Slots, size: int, absent: Any) -> np.ndarray:
    # Through an iterator, because numpy takes a list of equally long lists for two dimensions.
    found = np.fromiter(values, dtype=object, count=len(values))
    if where == EVERYWHERE:
        return found
    column = np.full(size, absent, dtype=object)
    column[where] = found
    return column
