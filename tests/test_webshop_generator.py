"""The generated shop: it is official in form, hard in the ways that it says, and its splits share nothing."""

from __future__ import annotations

import collections
import functools
import random
from pathlib import Path

import pytest
from webshop_tools import wander

from agent_gym.envs.webshop.data import open_data
from agent_gym.envs.webshop.embedded import Generated, generate, write_embedded
from agent_gym.envs.webshop.products import human_goal
from agent_gym.envs.webshop.scoring import by_rule, reward
from agent_gym.envs.webshop.session import Session
from agent_gym.errors import ConfigError


@functools.cache
def made() -> list[Generated]:
    return list(generate())


def test_a_shop_is_the_same_each_time_and_begins_the_same_at_each_size() -> None:
    assert list(generate(30)) == made()[:30]
    assert list(generate(30, seed=1)) != made()[:30]
    with pytest.raises(ConfigError, match="size is 0"):
        list(generate(0))


def test_no_product_and_no_maker_is_in_two_splits() -> None:
    splits: dict[str, set[str]] = collections.defaultdict(set)
    for one in made():
        splits[one.item["nouns"][0]].add(one.split)
    assert len(splits) > 150 and all(len(where) == 1 for where in splits.values())
    tasks, _ = open_data("embedded", "human")
    asked = {split: {goal["asin"] for goal in tasks[split]} for split in tasks}
    assert not asked["train"] & asked["test"] and not asked["train"] & asked["validation"]
    assert sum(map(len, asked.values())) == 1000


def test_relatives_of_a_product_miss_something_that_is_asked_for() -> None:
    """For most goals there is a product of the same name and maker that is not worth everything."""
    products = [one.product for one in made()]
    families = collections.defaultdict(list)
    for product in products:
        families[product.nouns and product.nouns[0], product.product_category].append(product)
    missed = goals = 0
    for product in products:
        relatives = [
            one for one in families[product.nouns and product.nouns[0], product.product_category] if one != product
        ]
        for n in range(len(product.instructions)):
            goal = human_goal(product, n)
            chosen = {
                name: value
                for name in product.options
                for value in goal["goal_options"]
                if value in product.options[name]
            }
            assert reward(product, goal, chosen, by_rule)[0] == 1
            goals += 1
            missed += any(reward(one, goal, chosen, by_rule)[1]["r_att"] < 1 for one in relatives)
    assert missed / goals > 0.4


def test_the_first_hit_is_often_wrong_and_wandering_buys_nothing() -> None:
    tasks, shop = open_data("embedded", "human")
    first = lucky = 0
    for goal in tasks["test"]:
        session = Session(shop, goal, by_rule)
        session.act("search", goal["instruction_text"].partition(", and price")[0])
        session.act("click", session.listed[0].asin.lower())
        session.act("click", "buy now")
        first += session.score == 1
        session, rng = Session(shop, goal, by_rule), random.Random(goal["asin"])
        for _ in range(15):
            if session.page != "done":
                clickables = [*session.clickables(), "x"]
                session.act(*rng.choice([("search", rng.choice("abcdef")), *(("click", name) for name in clickables)]))
        lucky += session.score == 1
    assert first / len(tasks["test"]) < 0.35
    assert lucky / len(tasks["test"]) < 0.02


def test_written_files_are_read_again_as_the_official_ones_are(tmp_path: Path) -> None:
    folder = write_embedded(tmp_path / "shop", size=700)
    tasks, shop = open_data(str(folder), "human")
    assert len(tasks["test"]) == 500 and len(tasks["validation"]) == 1000 and len(tasks["train"]) > 300
    products = [one.product for one in generate(700)]
    assert [shop.catalogue.product(n) for n in range(700)] == products
    walk = Session(shop, tasks["test"][0], by_rule)
    rng = random.Random(1)
    assert any(walk.act(*wander(walk, rng)) for _ in range(5))
