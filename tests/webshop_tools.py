"""What the tests of WebShop share: the official small set where it is on this machine, and a walk through a shop."""

from __future__ import annotations

import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from agent_gym.envs.webshop.products import Product, is_product, read_product
from agent_gym.envs.webshop.session import Session
from agent_gym.envs.webshop.store import Shop, open_shop

REAL = Path(os.environ.get("AGENT_GYM_DATA", Path(__file__).parents[2] / "shared" / "data")) / "webshop"
needs_real = pytest.mark.skipif(
    not (REAL / "items_shuffle_1000.json").is_file(), reason=f"no official WebShop files in {REAL} (set AGENT_GYM_DATA)"
)


@functools.cache
def real_products() -> list[Product]:
    rows, about, people = (
        json.loads((REAL / name).read_text(encoding="utf-8"))
        for name in ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    )
    kept = [row for row in rows if is_product(row, "row")]
    return [read_product(row, about.get(row["asin"], {}), people.get(row["asin"], ()), "row") for row in kept]


@functools.cache
def real_shop() -> Shop:
    return open_shop(real_products())


def make_product(asin: str = "B000000001", title: str = "Red Dress", **values: Any) -> Product:
    """A product that is what it is called, and nothing else unless `values` change it."""
    usual: dict[str, Any] = {
        "description": "",
        "bullets": (),
        "prices": (20.0,),
        "options": {},
        "category": "fashion",
        "query": "dresses",
        "product_category": "Clothing \u203a Women \u203a Dresses",
        "attributes": (),
    }
    return Product(asin, title, **{**usual, **values})


def make_goal(**values: Any) -> dict[str, Any]:
    usual = {
        "asin": "B000000001",
        "instruction_text": "i need a red dress",
        "attributes": ["machine wash"],
        "goal_options": [],
        "price_upper": 30.0,
        "name": "Red Dress",
        "query": "dresses",
        "product_category": "Clothing \u203a Women \u203a Dresses",
    }
    return {**usual, **values}


def wander(session: Session, rng: random.Random) -> tuple[str, str]:
    """Draw an action that is mostly possible, and rarely ends the visit."""
    goal = session.goal
    draw = rng.random()
    if session.page == "index" or draw < 0.15:
        return "search", rng.choice([goal["name"], goal["instruction_text"], goal["query"], "zzz", "a [b] c"]).lower()
    if draw < 0.2:
        return rng.choice([("", ""), ("click", "zzz"), ("click", "search"), ("search", ""), ("Click", "buy now")])
    weights = {"back to search": 0.1, "buy now": 0.3}
    names = [name for name in session.clickables() if rng.random() < weights.get(name, 1.0)]
    return "click", rng.choice(names or ["back to search"])


def play(env: Any, style: str = "default", **options: Any) -> dict[str, Any]:
    """Let an expert play an episode; the last info, and the number of turns."""
    env.reset(seed=0, options={"split": "test", **options})
    over = False
    while not over:
        *_, terminated, truncated, info = env.step(env.expert_action(style))
        over = terminated or truncated
    return {**info, "turns": env.turn}
