"""The generated shops: official in form, hard or easy as their docstrings promise, and their splits share nothing."""

from __future__ import annotations

import collections
import functools
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from webshop_tools import play

from agent_gym.envs.webshop.data import open_data
from agent_gym.envs.webshop.embedded import GeneratedShop, generate, generate_easy, write_embedded
from agent_gym.envs.webshop.products import make_goal
from agent_gym.envs.webshop.scoring import by_rule, reward
from agent_gym.envs.webshop.session import ShopVisit
from agent_gym.errors import ConfigError


@functools.cache
def made() -> list[GeneratedShop]:
    return list(generate())


def test_a_shop_is_the_same_each_time_and_begins_the_same_at_each_size() -> None:
    assert list(generate(30)) == made()[:30]
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
        families[product.nouns[0], product.product_category].append(product)  # type: ignore[index]
    missed = goals = 0
    for product in products:
        family = families[product.nouns[0], product.product_category]  # type: ignore[index]
        for n in range(len(product.instructions)):
            goal = make_goal(product, "human", n)
            wanted = goal["goal_options"]
            chosen = {name: value for name, values in product.options.items() for value in wanted if value in values}
            assert reward(product, goal, chosen, by_rule)[0] == 1
            goals += 1
            missed += any(reward(one, goal, chosen, by_rule)[1]["r_att"] < 1 for one in family if one != product)
    assert missed / goals > 0.4


def test_the_first_hit_is_often_wrong() -> None:
    tasks, shop = open_data("embedded", "human")
    first = 0
    for goal in tasks["test"]:
        session = ShopVisit(shop, goal, by_rule)
        session.act("search", goal["instruction_text"].partition(", and price")[0])
        session.act("click", session.listed[0].asin.lower())
        session.act("click", "buy now")
        first += session.score == 1
    assert first / len(tasks["test"]) < 0.35


def test_written_files_are_read_again_as_the_official_ones_are(tmp_path: Path) -> None:
    folder = write_embedded(tmp_path / "shop", size=700)
    tasks, shop = open_data(str(folder), "human")
    assert len(tasks["test"]) == 500 and len(tasks["validation"]) == 1000 and len(tasks["train"]) > 300
    assert [shop.catalogue.product(n) for n in range(700)] == [one.product for one in generate(700)]


# The easy shop.


def test_easy_products_differ_are_found_first_and_are_in_one_split_each() -> None:
    products = [one.product for one in generate_easy()]
    assert len({product.asin for product in products}) == len({product.searched for product in products}) == 1000
    assert len({(one.title.partition(",")[0], frozenset(one.attributes)) for one in products}) == 1000
    for product in products:
        assert product.title.split(", ")[1:] == list(product.attributes)
        assert [len(values) for values in product.options.values()] == [3]
        assert all(value.isalpha() for values in product.options.values() for value in values)
    tasks, shop = open_data("embedded-easy", "human")
    goals = [goal for split in tasks for goal in tasks[split]]
    first = sum(shop.search(g["instruction_text"].partition(", and price")[0])[0] == g["asin"] for g in goals)
    assert first / len(goals) > 0.99
    asked = [{goal["asin"] for goal in goals} for goals in tasks.values()]
    assert sum(map(len, asked)) == len(set().union(*asked)) == 1000
    assert min(len(goals) for goals in tasks.values()) > 490


def test_in_the_easy_shop_the_expert_takes_four_turns_and_the_style_direct_buys_wrong() -> None:
    env: Any = gymnasium.make("AgentR1/WebShop-v0", data="embedded-easy", per_page=1).unwrapped
    indices = range(0, len(env.tasks["test"]), 5)
    careful, direct = ([play(env, style, index=index) for index in indices] for style in ("default", "direct"))
    assert all(end["is_success"] and end["turns"] == 4 for end in careful)
    assert {end["turns"] for end in direct} == {3}
    assert sum(end["is_success"] for end in direct) / len(direct) < 0.05


def test_a_hesitant_player_buys_in_time_as_seldom_as_its_doubts_say() -> None:
    env: Any = gymnasium.make("AgentR1/WebShop-v0", data="embedded-easy", per_page=1, max_turns=6).unwrapped
    goals = env.tasks["test"]
    ends = [play(env, "hesitant", seed=index, index=index) for index in range(len(goals))]
    assert {end["turns"] for end in ends} == {4, 6}
    # Six turns have room for one look at the description, before the option or before the purchase.
    chance = {doubt: (1 - doubt) ** 2 * (1 + 2 * doubt) for doubt in (0.45, 0.8)}
    prices = [env.shop.catalogue.find(goal["asin"]).price for goal in goals]
    expected = sum(chance[0.8 if price > 30 else 0.45] for price in prices) / len(goals)
    assert sum(end["is_success"] for end in ends) / len(goals) == pytest.approx(expected, abs=0.06)  # three errors
