"""The global random generators, which some libraries seed and draw from, as those of one environment."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Environments live in threads, and the generators belong to all of them.
_TURN = threading.RLock()


class OwnRandomness:
    """Keeps the state of Python's and NumPy's global generators for one environment, and the process's as it was.

        with self._randomness.used():
            game.step(action)

    One environment at a time uses it: a draw of another would change the game.
    """

    def __init__(self) -> None:
        self._mine: tuple[Any, Any] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put this environment's generators in place of the process's, and back again."""
        with _TURN:
            before = random.getstate(), np.random.get_state()
            if self._mine is not None:
                random.setstate(self._mine[0])
                np.random.set_state(self._mine[1])
            try:
                yield
            finally:
                self._mine = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
