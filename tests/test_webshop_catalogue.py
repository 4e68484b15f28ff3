"""Reading the official files, goals in their order, and shops that are built into a folder."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import pickle
import random
from pathlib import Path

import gymnasium
import pytest
from webshop_tools import REAL, make_product, needs_real

from agent_gym.envs.webshop.data import entries, find_official, open_data, read_official
from agent_gym.envs.webshop.embedded import generate, write_embedded
from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.envs.webshop.products import (
    GoalBuilder,
    Goals,
    Product,
    is_product,
    price_limit,
    read_product,
)
from agent_gym.envs.webshop.store import Shop, open_shop, open_stored, write_shop
from agent_gym.errors import ConfigError
from agent_gym.prepare import env_kwargs, forecast, prepare

ROW = {
    "asin": "B000000001",
    "name": "Red Dress",
    "full_description": "Long.",
    "small_description": ["One."],
    "pricing": "$1,012.99$15.5",
    "product_category": "A \u203a B",
    "category": "fashion",
    "query": " Dresses ",
    "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "RED"}], "Size": None},
}


def products(size: int) -> list[Product]:
    return [one.product for one in generate(size)]


def test_a_row_becomes_what_the_shop_shows() -> None:
    product = read_product(ROW, {"attributes": ["v neck"]}, [], "row")
    assert product.options == {"color": ("red | blue", "red")} and product.query == "dresses"
    assert product.price_tag == "$1012.99 to $15.5" and 15.5 <= product.price <= 1012.99
    assert product.price == read_product(ROW, {}, [], "row").price
    assert product.searched == "red dress long. one. color: red | blue, red"
    assert read_product({**ROW, "pricing": ""}, {}, [], "row").price_tag == "$100.0"
    assert read_product(ROW, {}, [], "row").attributes == ("DUMMY_ATTR",)
    assert not is_product({**ROW, "asin": "B0000000011"}, "row") and not is_product({**ROW, "asin": "nan"}, "row")


def test_rows_that_are_otherwise_are_named() -> None:
    changes = {
        "dollars": {"pricing": "free"},
        "value": {"customization_options": {"Color": [{}]}},
        "lower": {"query": 3},
    }
    for word, change in changes.items():
        with pytest.raises(ConfigError, match=f"items.json, product 3: product 'B000000001' .*{word}"):
            read_product({**ROW, **change}, {}, [], "items.json, product 3")
    for row in ({"asin": "B1"}, []):
        with pytest.raises(ConfigError, match="place"):
            is_product(row, "place")


@needs_real
def test_the_official_goals_come_in_their_order() -> None:
    tasks, shop = open_data(str(REAL), "synthetic")
    assert {split: len(goals) for split, goals in tasks.items()} == {"train": 5410, "validation": 1000, "test": 500}
    assert len(shop.index) == 1000
    # What upstream's shuffle with seed 233 puts where its splits begin.
    first = {split: goals[0]["asin"] for split, goals in tasks.items()}
    assert first == {"train": "B07HRFSNL4", "validation": "B094Q7B3SS", "test": "B0743JKHBV"}
    assert tasks["test"][0]["goal_options"] == {"size": '28" x 28"'}
    human, _ = open_data(str(REAL / "items_shuffle_1000.json"), "human")
    assert {split: len(goals) for split, goals in human.items()} == {"test": 13}
    assert WebShopEnv(data=str(REAL)).split == "test"  # the human goals of so few products have no train
    with pytest.raises(ConfigError, match="unknown split 'train'.*test"):
        WebShopEnv(data=str(REAL), split="train")


def test_goals_are_shuffled_as_a_list_of_them_would_be() -> None:
    made, builder = products(40), GoalBuilder()
    for product in made:
        builder.add(product)
    goals = Goals(builder.shuffled("synthetic"), "synthetic", made.__getitem__)
    expected = [(product.asin, n) for product in made for n in range(math.prod(map(len, product.options.values())))]
    random.Random(233).shuffle(expected)
    assert [(goal["asin"]) for goal in goals] == [asin for asin, _ in expected]
    assert len(goals[2:5]) == 3 and goals[-1] == goals[len(goals) - 1]


def test_limits_of_price_are_above_the_price() -> None:
    for price in (0.01, 7.5, 10.0, 389.99, 969.99):
        for n in range(6):
            limit, text = price_limit(make_product(prices=(price,)), n)
            assert price < limit <= price + 40 and limit % 10 == 0 and f"{limit:.2f} dollars" in text
    assert price_limit(make_product(prices=(970.0,)), 0)[0] <= 990
    assert price_limit(make_product(prices=(980.0,)), 0) == (1_000_000, "")


def test_a_built_shop_is_the_shop_and_its_copies_share_its_files(tmp_path: Path) -> None:
    made = products(300)
    folder = write_shop(made, tmp_path / "shop")
    stored, held = open_stored(folder), open_shop(made)
    assert copy.deepcopy(stored) is stored
    for shop in (stored, pickle.loads(pickle.dumps(stored))):
        for query in ("shampoo with argan oil", "red dress in size small", made[5].title.lower(), "zzz"):
            assert shop.search(query) == held.search(query)
    for kind in ("human", "synthetic"):
        assert list(stored.goals(kind)) == list(held.goals(kind))
    assert stored.product(made[7].asin) == made[7] and stored.catalogue.find("B1") is None
    assert len(stored.index) == 300 and not (tmp_path / "shop.partial").exists()
    assert open_data(str(folder), "human")[0]["test"][3] == held.goals("human")[3]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(Shop.product, [(stored, product.asin) for product in made[:8]]) == made[:8]


def test_what_is_damaged_or_in_the_way_is_named(tmp_path: Path) -> None:
    folder = write_shop(products(20), tmp_path / "shop")
    with pytest.raises(ConfigError, match="holds something already"):
        write_shop(products(20), folder)
    (folder / "document.npy").write_bytes(b"x")
    with pytest.raises(ConfigError, match="document.npy has 1 bytes.*build it again"):
        open_stored(folder)
    with pytest.raises(ConfigError, match="at least one product"):
        write_shop([], tmp_path / "empty")


def test_official_files_are_found_and_read(tmp_path: Path) -> None:
    folder = write_embedded(tmp_path / "data", size=60)
    paths = find_official(folder)
    assert list(read_official(paths)) == products(60)
    rows = json.loads(paths[0].read_text())
    (folder / "items_shuffle_1000.json").write_text(json.dumps(rows[:5] + rows[:2]))
    small = find_official(folder / "items_shuffle_1000.json")
    small[1].write_text("{}")
    assert len(list(read_official(small))) == 5
    small[1].unlink()
    with pytest.raises(ConfigError, match="items_ins_v2_1000.json cannot be read"):
        list(read_official(small))


def test_prepare_builds_a_shop_of_files_that_were_fetched_by_hand(tmp_path: Path) -> None:
    folder = write_embedded(tmp_path / "data", size=60)
    done = prepare("webshop", source=[str(folder)], output=tmp_path / "out")
    env = gymnasium.make("AgentR1/WebShop-v0", **{"split": "test", **env_kwargs(done)}).unwrapped
    assert len(env.tasks["test"]) > 100 and env.shop.catalogue.product(9) == products(60)[9]  # type: ignore
    again = prepare("webshop", source=[str(folder / "items_shuffle.json")], output=tmp_path / "out")
    assert again.made == () and done.made == ("shop",)
    (tmp_path / "out" / "shop" / "products.sqlite").write_bytes(b"x")
    with pytest.raises(ConfigError, match="products.sqlite has 1 bytes"):
        prepare("webshop", source=[str(folder)], output=tmp_path / "out")
    _, lines = forecast("webshop", source=[str(folder)], output=tmp_path / "other")
    assert [line.action for line in lines] == ["read", "read", "read", "write"]
    with pytest.raises(ConfigError, match="Google Drive.*--from PATH.*items_shuffle.json.*embedded"):
        prepare("webshop", output=tmp_path / "nothing")


def test_entries_are_read_one_by_one_and_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    for value in ([], {}, [1.5, None, ["\u00e9\U0001f44d", {"": True}]], {"a": {"b": [-1]}, "": 1 << 62}):
        path.write_text(f" \n{json.dumps(value, ensure_ascii=False)}", encoding="utf-8")
        pairs = value.items() if isinstance(value, dict) else ((str(n), one) for n, one in enumerate(value))
        assert list(entries(path)) == list(pairs)
    for text in ("", "7", "[1, 2", '{"a" 1}', '[{"a": NaN}]'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="value.json cannot be read"):
            list(entries(path))
