"""The reward against what the original computes, and each of its rules by itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from webshop_tools import REAL, make_goal, make_product, needs_real, real_products

from agent_gym.envs.webshop.scoring import by_rule, reward, tagger, token_set_ratio, type_reward
from agent_gym.errors import ConfigError


@needs_real
def test_parts_are_those_of_the_original() -> None:
    """All but what depends on its tagger, which was replaced by a stub when these pairs were recorded."""
    products = {product.asin: product for product in real_products()}
    pairs = json.loads((REAL / "reward_pairs_1000.json").read_text(encoding="utf-8"))
    perfect = 0
    for pair in pairs:
        product = replace(products[pair["asin"]], prices=(pair["price"],))
        score, parts = reward(product, pair["goal"], pair["options"], by_rule)
        assert set(parts) == set(pair["info"])
        assert all(parts[name] == pair["info"][name] for name in parts.keys() - {"r_type", "title_score"})
        if parts["r_type"] == pair["info"]["r_type"]:
            assert score == pair["reward"]
        perfect += score == 1
    assert len(pairs) == 1000 and perfect > 200


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("machine wash", "machine washable", 86), ("Wash, Machine!", "machine wash", 100), ("red", "dark red", 100),
        ("small", "x-small", 100), ("xl", "xxl", 80), ("", "a", 0), ("", "", 0), ("!", "!", 0), ("\u00e9", "e", 0),
        ("red", "('color', 'red')", 100), ("gluten free", "sugar free", 57),
    ],
)  # fmt: skip
def test_likeness_is_thefuzz_0_19(one: str, other: str, expected: int) -> None:
    assert token_set_ratio(one, other) == expected


def test_what_each_part_pays() -> None:
    product = make_product(attributes=("machine washable",), options={"size": ("small", "large")})
    goal = make_goal(attributes=["machine wash", "v neck"], goal_options=["large"])
    score, parts = reward(product, goal, {"size": "large"}, by_rule)
    assert score == pytest.approx(3 / 4)
    assert parts["r_att"] == 0.5 and parts["r_option"] == 1.0 and parts["r_price"] is True
    assert parts["w_att"] + parts["w_option"] + parts["w_price"] == pytest.approx(1)
    assert reward(product, goal, {"size": "small"}, by_rule)[0] == pytest.approx(2 / 4)
    assert reward(replace(product, prices=(31.0,)), goal, {"size": "large"}, by_rule)[0] == pytest.approx(2 / 4)
    assert reward(replace(product, bullets=("Has a V Neck.",)), goal, {"size": "large"}, by_rule)[0] == 1.0
    assert "r_option" not in reward(product, make_goal(), {}, by_rule)[1]


@pytest.mark.parametrize(
    ("title", "category", "query", "expected"),
    [
        ("Blue Dress", "Other", "other", 1.0),  # half of the nouns
        ("Green Hat", "Clothing \u203a Women \u203a Hats", "other", 0.0),  # no noun, whatever the class
        ("Dress", "Other", "other", 0.5),  # one noun of six, and nothing else
        ("Dress", "Other", "dresses", 1.0),
        ("Dress", "Clothing \u203a Women \u203a Hats", "other", 1.0),
    ],
)
def test_the_kind_of_thing(title: str, category: str, query: str, expected: float) -> None:
    long = title == "Dress"
    goal = make_goal(name="Red Dress Lace Belt Summer Party" if long else "Red Dress")
    product = make_product(title=title, product_category=category, query=query)
    assert type_reward(product, goal, by_rule)["r_type"] == expected


def test_nouns_that_the_catalogue_says_are_taken() -> None:
    product = make_product(title="Fast Running Shoe", nouns=("shoe",))
    found = type_reward(product, make_goal(name="Shoe for Running", nouns=["shoe"]), by_rule)
    assert found["title_score"] == 1.0


def test_the_rule_and_the_models_that_are_not_there() -> None:
    title = "The 2-Pack Men's Shirt for U.S., size 3XL, with easy Care"
    assert by_rule(title) == ("pack", "men's", "shirt", "size", "care")
    with pytest.raises(ConfigError, match="spacy|en_core_web_none"):
        tagger("en_core_web_none")
