"""The environment: pages as the original writes them, both ways to act, what `info` tells, and what it never tells."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from typing import Any

import gymnasium
import pytest
from webshop_tools import make_goal, make_product, needs_real, play, real_shop

from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.envs.webshop.scoring import by_rule
from agent_gym.envs.webshop.session import MODES, ShopVisit, observe
from agent_gym.envs.webshop.store import open_shop
from agent_gym.errors import ConfigError
from agent_gym.tools import HermesParser

CALL = HermesParser().render

# A walk of 2,799 actions through the official small set: a digest of pages, clickables and rewards, taken when all of
# them were equal to those of a replica that had been compared with the original over 8,424 steps.
STEPS, WALK = 2799, "a32e383c5bc6f58a31865aeab22a162bae060dee1e324db5bb1463ec8252f59a"


@functools.cache
def made(**kwargs: Any) -> WebShopEnv:
    return gymnasium.make("AgentR1/WebShop-v0", **kwargs).unwrapped  # type: ignore[return-value]


def started(index: int = 0, **kwargs: Any) -> WebShopEnv:
    env = made(**kwargs)
    env.reset(seed=0, options={"split": "test", "index": index})
    return env


SHOP = [
    make_product(
        "B000000001", "Red <b>Dress</b> & Belt", bullets=("One. ", "\n", "Two"), prices=(20.0, 35.5),
        options={"color": ("red", "navy blue"), "size": ("small",)}, attributes=("machine wash",), nouns=("dress",),
    ),
    make_product("B000000002", "Blue Dress", nouns=("dress",)),
]  # fmt: skip
TEXT = "Instruction: [SEP] i need a red dress [SEP] Back to Search"


def test_pages_are_written_as_the_original_writes_them() -> None:
    session = ShopVisit(open_shop(SHOP), make_goal(), by_rule)
    assert observe(session, "text") == "WebShop [SEP] Instruction: [SEP] i need a red dress [SEP] Search"
    session.act("search", "red dress")
    head = f"{TEXT} [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] "
    assert observe(session, "text") == (
        f"{head}B000000001 [SEP] Red <b>Dress</b> & Belt [SEP] $20.0 to $35.5 [SEP] "
        "B000000002 [SEP] Blue Dress [SEP] $20.0"
    )
    session.act("click", "b000000001")
    session.act("click", "navy blue")
    assert observe(session, "text_rich") == (
        "You have clicked navy blue.\nInstruction:\ni need a red dress\n[button] Back to Search [button_]\n"
        "[button] < Prev [button_]\ncolor\n  [button] red [button_]\n  [clicked button] navy blue [clicked button_]\n"
        "size\n  [button] small [button_]\nRed <b>Dress</b> & Belt\nPrice: $20.0 to $35.5\nRating: N.A.\n"
        "[button] Description [button_]\n[button] Features [button_]\n[button] Reviews [button_]\n"
        "[button] Buy Now [button_]\n"
    )
    session.act("click", "features")
    # The feature that is a line break only keeps its place, as a parser of HTML sees a space before it.
    assert observe(session, "text") == f"{TEXT} [SEP] < Prev [SEP] One. [SEP] Two"
    session.act("click", "< prev")
    session.act("click", "< prev")
    assert "\n[clicked button] B000000001 [clicked button_]\n" in observe(session, "text_rich")
    session.act("click", "next >")
    assert observe(session, "text") == f"{TEXT} [SEP] Page 2 (Total results: 2) [SEP] < Prev [SEP] Next >"


def test_who_searches_for_an_address_is_led_astray_as_in_the_original() -> None:
    session = ShopVisit(open_shop(SHOP), make_goal(), by_rule)
    session.act("search", 'dress search_results "small"')
    session.act("click", "b000000001")
    assert "[clicked button] small [clicked button_]" in observe(session, "text_rich") and not session.chosen
    session.act("click", "< prev")
    assert session.number == 0


def wander(session: ShopVisit, rng: random.Random) -> tuple[str, str]:
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


@needs_real
def test_a_walk_through_the_official_products_shows_what_the_original_shows() -> None:
    shop, rng, digest, steps = real_shop(), random.Random(233), hashlib.sha256(), 0
    for goal in [*shop.goals("human"), *shop.goals("synthetic")[:100]]:
        session = ShopVisit(shop, goal, by_rule)
        for _ in range(30):
            if session.page != "done":
                session.act(*wander(session, rng))
                pages = [observe(session, mode) for mode in MODES]
                digest.update(json.dumps([*pages, list(session.clickables()), session.score]).encode())
                steps += 1
    assert (steps, digest.hexdigest()) == (STEPS, WALK)


def test_both_forms_are_read_in_one_env() -> None:
    forms = ("search[shampoo]", "So.\nAction: Search[ SHAMPOO ]", "<think>So</think><action>search[shampoo]</action>")
    for kwargs, role in (({}, "tool"), ({"commands": "text"}, "user")):
        first = started(**kwargs).step(CALL("search", {"keywords": "shampoo"}))
        assert first[-1]["messages"][1]["role"] == role
        assert all(started(**kwargs).step(text)[0] == first[0] for text in forms)


IMPOSSIBLE = {
    "click[Buy Now]": "'buy now'",
    "I do not know.": "no action",
    CALL("search", {"keywords": " "}): "keywords",
    CALL("click", {"element": "search"}): "'search'",
    CALL("buy", {}): "unknown tool",
    "<tool_call>{": "not closed",
}


@pytest.mark.parametrize(("action", "error"), IMPOSSIBLE.items())
def test_what_is_not_possible_changes_nothing_and_is_named(action: str, error: str) -> None:
    env = started()
    page, before = env.session.page, observe(env.session, "text")
    observation, reward, terminated, _, info = env.step(action)
    assert error in info["error"] and reward == 0 and not terminated
    assert env.session.page == page and observation.startswith(("Error:", before))
    assert info["metrics"]["invalid_actions"] == 1


def test_the_end_has_all_parts_of_the_reward() -> None:
    env = WebShopEnv(reward_weights={"score": 0.0, "success": 10.0, "invalid": 0.1})
    env.reset(seed=0, options={"split": "test", "index": 0})
    assert env.step("nothing")[1] == pytest.approx(-0.1)
    info = play(env, index=0)
    assert sum(info["reward_terms"].values()) == 10 and info["is_success"] and info["metrics"]["score"] == 1
    parts = {"r_type", "r_att", "r_price", "w_att", "w_price", "query_match", "category_match", "title_score"}
    assert parts <= set(info["reward_parts"])
    assert info["available_actions"] == {"has_search_bar": False, "clickables": []}


def test_available_actions_are_shown_and_the_wanted_product_is_not() -> None:
    env = started(index=3)
    _, info = env.reset(seed=0, options={"split": "test", "index": 3})
    assert info["available_actions"] == {"has_search_bar": True, "clickables": ["search"]}
    after = env.step("search[zzzz]")[-1]
    assert "next >" in after["available_actions"]["clickables"]
    assert env.session.goal["asin"] not in json.dumps([info, after], default=str)


def test_the_situation_is_the_page_and_what_led_to_it() -> None:
    env = started()
    env.step("search[shampoo]")
    system, user = env.state_prompt()
    assert system["role"] == "system" and "1. search[shampoo]" in user["content"]
    assert user["content"].startswith("Instruction: [SEP] ") and "\n- back to search\n- next >\n" in user["content"]


def test_goals_that_are_handed_in_are_checked() -> None:
    env = made()
    goal = dict(env.tasks["test"][0])
    env.reset(options={"task": goal})
    for broken, word in ((3, "object"), ({"asin": "B"}, "instruction_text"), (goal | {"attributes": []}, "attribute")):
        with pytest.raises(ConfigError, match=word):
            env.reset(options={"task": broken})


def test_wrong_settings_are_named() -> None:
    known = {"observation": "text_rich", "commands": "tool", "goals": "synthetic", "data": "items_shuffle"}
    for setting, allowed in known.items():
        with pytest.raises(ConfigError, match=f"'wrong'.*{allowed}"):
            WebShopEnv(**{setting: "wrong"})


@pytest.mark.parametrize("goals", ["human", "synthetic"])
def test_the_expert_buys_what_was_meant(goals: str) -> None:
    env = made(goals=goals)
    for index in range(0, len(env.tasks["test"]), 3):
        assert play(env, index=index)["is_success"], index


def test_running_out_of_turns_is_no_success() -> None:
    env = started(max_turns=2)
    env.step("search[shampoo]")
    _, reward, terminated, truncated, info = env.step("click[next >]")
    assert (reward, terminated, truncated, info["is_success"], info["metrics"]["score"]) == (0, False, True, False, 0)
