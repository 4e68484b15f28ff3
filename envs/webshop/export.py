"""Writes the generated shop to a folder, in the files in which the official one comes."""

from __future__ import annotations

import json
from pathlib import Path

from agent_gym.envs.webshop.generator import PRODUCTS, generate


def write_embedded(folder: str | Path, size: int = PRODUCTS, seed: int = 0) -> Path:
    """Write generated products and what people want of them; upstream's own code reads the files as well.

    Args:
        folder: where to; made if needed.
        size: how many products.
        seed: see `generate`.

    Returns:
        The folder, with `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`; `data=` takes it. Its
        splits are then upstream's, by goals, while the embedded ones keep products apart.

    Raises:
        ConfigError: for a size below one.
    """
    folder = Path(folder).expanduser()
    made = list(generate(size, seed))
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "items_shuffle": [one.item for one in made],
        "items_ins_v2": {one.item["asin"]: one.about for one in made},
        "items_human_ins": {one.item["asin"]: one.people for one in made},
    }
    for name, rows in content.items():
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder
