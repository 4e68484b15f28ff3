"""WebShop: steps per second, and what it takes to build, open and search shops of up to a million products.

    python benchmarks/webshop.py
    python benchmarks/webshop.py --sizes 1000 100000 1200000
    python benchmarks/webshop.py --data FOLDER       # with WebShop's official files, too
    python benchmarks/webshop.py --data FOLDER --nouns en_core_web_sm     # and how its nouns differ from the rule's

Products are generated, in memory as they are needed, with descriptions that are repeated until they have the length of
official ones. Every size is built in a process of its own and opened in another.

The original environment needs Python 3.8, Java, a Lucene index and Flask, and does not run here. Where it ran, on two
shared cores, it made 67 to 121 steps per second of CPU time on the small official set; an index of 100,000 products,
built in Python word by word, took 150 CPU seconds there.

Columns of the first table: `steps / CPU s` of the environment with its transcript, messages and infos, of the session
below it (what the original's number is about), and of the session with pages in text_rich. A walk is a search, some
clicks, a purchase; nine of ten searches were made before, as in training.

Columns of the second: CPU seconds to generate the products, to build all of the shop beyond that, and of these those of
the index; MiB of memory at most while building, and of the folder; then seconds to open it, CPU milliseconds of half of
the searches at most (for instructions; a shop remembers searches, this does not), and MiB when it is open and was
searched.

The third table, with `--data`: products beside the one that was meant, on the first page of results for each of the
first 500 goals, which a policy could buy by mistake. Column `other`: the share to which the default rule for nouns
gives another `r_type` than a tagger does; `apart` by how much, on average over all. Taggers: one that takes every word
for a noun, which no model does, and the model of spaCy that `--nouns` names.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

from agent_gym.envs.webshop.data import open_data
from agent_gym.envs.webshop.embedded import generate
from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.envs.webshop.index import IndexBuilder
from agent_gym.envs.webshop.products import Product
from agent_gym.envs.webshop.scoring import Nouns, by_rule, tagger, type_reward
from agent_gym.envs.webshop.session import PER_PAGE, ShopVisit, observe
from agent_gym.envs.webshop.store import Shop, open_stored, write_shop

_WORDS = 90  # per product, the mean of what the official index sees of one


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in PARTS:
        print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])))
        return
    parser = _common.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000], metavar="N", help="products")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each way of playing plays")
    parser.add_argument("--data", help="folder with official files, to play there as well")
    parser.add_argument("--nouns", metavar="MODEL", help="model of spaCy, to compare the rule with on --data")
    options = parser.parse_args()
    if options.nouns and not options.data:
        parser.error("--nouns needs --data: the generated catalogue says which words are nouns")
    if options.quick:
        options.sizes, options.seconds = [500], 0.2
    facts = _common.provenance(("agent-gym", "numpy"))
    _common.print_provenance(facts)

    sources = ["embedded", *([options.data] if options.data else [])]
    played = {source: play(source, options.seconds) for source in sources}
    names = ["env", "session", "session, rich"]
    rows = [[source, *(played[source][name] for name in names)] for source in sources]
    _common.print_table(["steps / CPU s", *names], rows)

    built = {size: measure(size) for size in options.sizes}
    head = "products|generate s|build s|of it index s|MiB|on disk MiB|open s|search ms|MiB open"
    _common.print_table(head.split("|"), [[f"{size:,}", *result.values()] for size, result in built.items()])
    taggers = {"every word": every_word, **({options.nouns: tagger(options.nouns)} if options.nouns else {})}
    judged = {name: disagreement(options.data, nouns) for name, nouns in taggers.items() if options.data}
    if judged:
        rows = [[name, f"{found['products']:,}", found["other"], found["apart"]] for name, found in judged.items()]
        _common.print_table(["nouns", "products", "other", "apart"], rows)
    facts["load_after"] = _common.load()
    print(f"load after  {facts['load_after']}")
    _common.write_json(options.json, facts=facts, played=played, built=built, nouns=judged)


def play(data: str, seconds: float) -> dict[str, float]:
    """Steps per CPU second of three layers."""
    goals = "human" if data == "embedded" else "synthetic"
    tasks, shop = open_data(data, goals)
    env = WebShopEnv(data, goals=goals, commands="text")
    found = {"env": rate(env_walks(env), seconds)}
    found["session"] = rate(session_walks(shop, tasks["test"], "text"), seconds)
    found["session, rich"] = rate(session_walks(shop, tasks["test"], "text_rich"), seconds)
    return found


def rate(steps: Iterator[None], seconds: float) -> float:
    for _ in range(200):
        next(steps)
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        for _ in range(50):
            next(steps)
        count += 50
    return count / spent


def env_walks(env: WebShopEnv) -> Iterator[None]:
    rng = random.Random(0)
    while True:
        env.reset(seed=0, options={"split": "test", "index": rng.randrange(50)})
        over = False
        while not over:
            name, argument = action(env.session, rng)
            *_, terminated, truncated, _ = env.step(f"{name}[{argument}]")
            over = terminated or truncated
            yield


def session_walks(shop: Shop, goals: Any, mode: str) -> Iterator[None]:
    rng = random.Random(0)
    while True:
        session = ShopVisit(shop, goals[rng.randrange(50)], by_rule)
        for _ in range(15):
            session.act(*action(session, rng))
            # The original's step makes the page and reads off it what can be clicked.
            observe(session, mode)
            session.clickables()
            yield
            if session.page == "done":
                break


def action(session: ShopVisit, rng: random.Random) -> tuple[str, str]:
    if session.page == "index":
        return "search", session.goal["instruction_text"] + (f" {rng.random()}" if rng.random() < 0.1 else "")
    return "click", rng.choice([name for name in session.clickables() if name != "back to search"])


def every_word(title: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", title.lower()))


def disagreement(data: str, nouns: Nouns) -> dict[str, float]:
    """Compare the `r_type` by the rule with that by another tagger."""
    tasks, shop = open_data(data, "synthetic")
    apart = []
    for goal in itertools.islice(tasks["test"], 500):
        for asin in shop.search(goal["instruction_text"].lower())[:PER_PAGE]:
            if asin != goal["asin"]:
                rule, other = (type_reward(shop.product(asin), goal, by)["r_type"] for by in (by_rule, nouns))
                apart.append(abs(rule - other))
    return {"products": len(apart), "other": sum(map(bool, apart)) / len(apart), "apart": sum(apart) / len(apart)}


def measure(size: int) -> dict[str, float]:
    """Build and open a shop, each in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/shop"
        results = [part("generate", str(size)), part("index", str(size)), part("build", str(size), folder)]
        disk = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
        opened = part("open", folder, str(min(size, 200)))
    generated, indexed, built = (result["cpu"] for result in results)
    return {
        "generate_s": generated,
        "build_s": built - generated,
        "index_s": indexed - generated,
        "build_mib": results[2]["mib"],
        "disk_mib": disk,
        **opened,
    }


def part(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def products(size: int) -> Iterator[Product]:
    for one in generate(size):
        product = one.product
        text = f"{product.description} {' '.join(product.bullets)} {product.title}"
        missing = _WORDS - len(product.searched.split())
        more = " ".join((text.split() * 9)[: max(0, missing)])
        yield replace(product, description=f"{product.description} {more}")


def part_generate(size: str) -> dict[str, float]:
    start = time.process_time()
    for product in products(int(size)):
        assert product.searched
    return {"cpu": time.process_time() - start}


def part_index(size: str) -> dict[str, float]:
    start, builder = time.process_time(), IndexBuilder()
    for product in products(int(size)):
        builder.add(product.asin, product.searched)
    builder.finish()
    return {"cpu": time.process_time() - start}


def part_build(size: str, folder: str) -> dict[str, float]:
    start = time.process_time()
    write_shop(products(int(size)), folder)
    return {"cpu": time.process_time() - start, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def part_open(folder: str, queries: str) -> dict[str, float]:
    start = time.perf_counter()
    shop = open_stored(Path(folder))
    opened = time.perf_counter() - start
    goals = shop.goals("human")
    queried = [goals[n]["instruction_text"].lower() for n in range(int(queries))]
    shop.index.search(queried[0], 50)
    spent = []
    for query in queried:
        start = time.process_time()
        shop.index.search(query, 50)
        spent.append(1000 * (time.process_time() - start))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"open_s": opened, "search_ms": statistics.median(spent), "open_mib": memory}


PARTS = {"generate": part_generate, "index": part_index, "build": part_build, "open": part_open}


if __name__ == "__main__":
    main()
