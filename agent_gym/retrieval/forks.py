"""Whether this process was forked, because then FAISS and PyTorch may not use several threads.

The threads of OpenMP do not survive a fork, and its GNU version waits for them forever: an environment in a worker of a
vector environment would hang in its first search, if the main process had searched before. One thread needs no others.
"""

from __future__ import annotations

import os

_forked = False


def forked() -> bool:
    """Whether this process, or one it comes from, was made by a fork of Python's."""
    return _forked


def _remember() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_remember)
