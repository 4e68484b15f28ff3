"""The easy shop: what makes it easy holds, and its splits share no product."""

from __future__ import annotations

from typing import Any

import gymnasium

from agent_gym.envs.webshop.data import open_data
from agent_gym.envs.webshop.embedded import generate_easy


def play(style: str, **kwargs: Any) -> list[dict[str, Any]]:
    env: Any = gymnasium.make("AgentR1/WebShop-v0", data="embedded-easy", **kwargs).unwrapped
    ends = []
    for index in range(0, len(env.tasks["test"]), 5):
        env.reset(seed=0, options={"split": "test", "index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.expert_action(style))
            over = terminated or truncated
        ends.append({**info, "turns": env.turn})
    return ends


def test_products_are_easy_to_tell_and_to_find() -> None:
    made = list(generate_easy())
    products = [one.product for one in made]
    assert len({product.asin for product in products}) == len({product.searched for product in products}) == 1000
    described = {(product.title.partition(",")[0], frozenset(product.attributes)) for product in products}
    assert len(described) == 1000
    for product in products:
        assert product.title.split(", ")[1:] == list(product.attributes)
        assert [len(values) for values in product.options.values()] == [3]
        assert all(value.isalpha() for values in product.options.values() for value in values)
    tasks, shop = open_data("embedded-easy", "human")
    goals = [goal for split in tasks for goal in tasks[split]]
    first = sum(shop.search(g["instruction_text"].partition(", and price")[0])[0] == g["asin"] for g in goals)
    assert first / len(goals) > 0.99


def test_no_product_is_asked_for_in_two_splits() -> None:
    tasks, _ = open_data("embedded-easy", "human")
    asked = {split: {goal["asin"] for goal in tasks[split]} for split in tasks}
    assert sum(map(len, asked.values())) == len(set().union(*asked.values())) == 1000
    assert min(len(goals) for goals in tasks.values()) > 490


def test_the_expert_takes_four_turns_and_who_is_in_a_hurry_buys_wrong() -> None:
    assert all(end["is_success"] and end["turns"] == 4 for end in play("default", per_page=1))
    hasty = play("direct", per_page=1)
    assert {end["turns"] for end in hasty} == {3}
    assert sum(end["is_success"] for end in hasty) / len(hasty) < 0.05
