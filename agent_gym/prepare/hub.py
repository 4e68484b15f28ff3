"""Rows of a data set on the Hugging Face hub.

`datasets` keeps what it downloaded in its own cache and maps it into memory: a download that was interrupted goes on,
and rows cost no memory however many there are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from agent_gym.errors import ConfigError, require
from agent_gym.prepare.recipe import Hub, Row

_ROWS_AT_ONCE = 1_000
_TIMEOUT_S = 20


def hub_rows(hub: Hub, split: str, cure: str) -> Iterator[tuple[str, Row]]:
    """Read a split, each row with its place.

    Args:
        hub: the data set.
        split: which of its splits.
        cure: what to do where the hub cannot be reached, for the message.

    Raises:
        ConfigError: if it cannot be loaded.
    """
    rows = _load(hub, cure)[split]
    number = 0
    for batch in rows.iter(batch_size=_ROWS_AT_ONCE):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield f"{hub}, split {split}, row {number}", dict(zip(names, values, strict=True))
            number += 1


@functools.lru_cache(maxsize=1)
def _load(hub: Hub, cure: str) -> Any:
    datasets = require("datasets", "train")
    try:
        _check_reachable(hub)
        return datasets.load_dataset(hub.name, hub.config, revision=hub.revision)
    except Exception as error:  # the hub client raises a different class for each way of being unreachable
        raise ConfigError(f"cannot load {hub} from the Hugging Face hub ({type(error).__name__}); {cure}") from error


def _check_reachable(hub: Hub) -> None:
    """Ask the hub about the data set once; `load_dataset` would try again for half a minute, and say so each time."""
    client = require("huggingface_hub", "train")
    if not client.constants.HF_HUB_OFFLINE:  # then there is only its cache, which may be enough
        client.HfApi().dataset_info(hub.name, revision=hub.revision, timeout=_TIMEOUT_S)
