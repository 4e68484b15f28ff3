"""How the commands that work on trajectory files read them: with a bar, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agent_gym.rollout import read_trajectories


def reading(files: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of trajectory files, with a bar that counts them; lines that are left out are told on stderr.

    Raises:
        ConfigError: see `read_trajectories`.
    """
    records = chain.from_iterable(map(partial(read_trajectories, left_out=_tell), files))
    return iter(tqdm(records, desc="reading", unit=" episodes", leave=False, disable=None, file=sys.stderr))


def _tell(text: str) -> None:
    tqdm.write(f"agent-gym: {text}", file=sys.stderr)
