"""Which seeds of a MiniWoB page are in which split, so that no two splits show one text: envs/miniwob/splits.json.

    python benchmarks/miniwob_splits.py FOLDER               # shows 1,020 seeds of each page; FOLDER keeps what it read
    python benchmarks/miniwob_splits.py FOLDER --pages click-test click-tab

A page is in the file if its seeds of two splits show one text, or two seeds of its validation or test do, or another
page shows one of its texts. Three tenths of its texts are then in `test` (at most ten), one tenth in `validation` (at
most ten), the others in `train`, each by the first seed that shows it. A page of one text is training's alone, with all
of its seeds. One that the expert cannot read and whose pictures differ is not in the file: no text tells its tasks. The
page with the fewest texts comes first. A text that another page shows, too, stays in its split, and is in `test` or
`validation` once.

A page is loaded once for all of its seeds, or anew for each of them if that changes what its first two seeds show.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym

import agent_gym.envs.miniwob.data as miniwob
from agent_gym.envs.miniwob.experts import EXPERTS

_SHOW = """seeds => seeds.map(seed => {
    agentGym.start(String(seed));
    const { asked, lines } = agentGym.look();
    return [asked, ...lines.map(line => line.line ?? line)];
})"""

Read = dict[str, list[str]]
"""The text of each seed of each split, as a hash."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", nargs="+", metavar="NAME", help="read these alone, and write no file")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.pages or miniwob.pages_of("all", miniwob.folder_of(None), ())
    env: Any = gym.make("AgentR1/MiniWoB-v0", page="all").unwrapped
    pages = {name: _kept(options.folder / f"{name}.json", name, env) for name in names}
    table, placed = {}, dict[str, str]()
    for name, read in sorted(pages.items(), key=lambda page: len({*page[1]["train"]})):
        texts = len({*read["train"]})
        seen = texts == 1 and name not in EXPERTS and len({_picture(env, name, seed) for seed in range(5)}) > 1
        shares = None if seen else divided(read, placed)
        print(f"{name}: {texts} texts of {len(read['train'])} seeds", shares and "apart", flush=True)
        table |= {name: shares} if shares else {}
    env.close()
    if not options.pages:
        rows = ",\n".join(
            f" {json.dumps(name)}: {json.dumps(table[name], separators=(',', ':'))}" for name in sorted(table)
        )
        Path(miniwob.__file__).with_name("splits.json").write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


def _kept(path: Path, name: str, env: Any) -> Read:
    if not path.exists():
        alone = [_loaded(env, name, seed) for seed in (1, 0)]
        read = {split: _shown(env, seeds_of(split)) for split in miniwob.SEEDS}
        if alone[::-1] != read["train"][:2]:
            read = {split: [_loaded(env, name, seed) for seed in seeds_of(split)] for split in miniwob.SEEDS}
        path.write_text(json.dumps({split: [*map(_hash, texts)] for split, texts in read.items()}))
    return json.loads(path.read_text())


def _loaded(env: Any, page: str, seed: int) -> list[str]:
    env.reset(options={"task": {"page": page, "seed": seed}})
    return [env._look["asked"], *(line if isinstance(line, str) else line["line"] for line in env._look["lines"])]


def _picture(env: Any, page: str, seed: int) -> bytes:
    _loaded(env, page, seed)
    return bytes(env._tab.picture())


def _shown(env: Any, seeds: range) -> list[list[str]]:
    """Start an episode of the loaded page with each seed, 50 in a call, since a call has a limit of time."""
    tab = env._tab
    calls = (
        tab._page.evaluate(_SHOW, [*some]) for some in (seeds[first : first + 50] for first in range(0, len(seeds), 50))
    )
    return [texts for call in calls for texts in tab.chromium.wait(call)]


def _hash(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def seeds_of(split: str) -> range:
    """Return the seeds of a split of a page that shows another text for each of them."""
    first, number = miniwob.SEEDS[split]
    return range(first, first + number)


def divided(read: Read, placed: dict[str, str]) -> dict[str, list[int]] | None:
    """Return the seeds of each split with a text of their own, or None if the seeds are apart as they are.

    `placed` has the split of each text of other pages, and gets those of this one.
    """
    sets = {split: {*texts} for split, texts in read.items()}
    every = set().union(*sets.values())
    alone = all(len(sets[split]) == len(read[split]) for split in ("validation", "test"))
    if alone and sum(map(len, sets.values())) == len(every) and not every & placed.keys():
        placed |= {text: split for split, texts in read.items() for text in texts}
        return None
    if len(every) == 1:
        placed |= dict.fromkeys(every, "train")
        return {"validation": [], "test": []}
    shares = {"test": len(every) * 3 // 10 or len(every) > 1, "validation": len(every) // 10 or len(every) > 2}
    found: dict[str, list[int]] = {}
    for split in ("test", "validation", "train"):
        first: dict[str, int] = {}
        for where in (split, *(set(read) - {split, "train"}), "train") if split in shares else (split,):
            for seed, text in zip(seeds_of(where), read[where], strict=True):
                if text not in placed or placed[text] == split == "train":
                    first.setdefault(text, seed)
        mine = dict(islice(first.items(), min(10, shares[split]) if split in shares else None))
        placed |= dict.fromkeys(mine, split)
        found[split] = sorted(mine.values())
    return {split: found[split] for split in miniwob.SEEDS}


if __name__ == "__main__":
    main()
