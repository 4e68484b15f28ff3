"""WebShop's episodes in the viewer: pages of a shop, read off either form of the world's text, and the exact text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from rollout_tools import roll

from agent_gym.evaluate import make_specs
from agent_gym.rollout import Budget, to_record
from agent_gym.viewer import write_html

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
EPISODES = 16


def wander(episode: Any) -> str:
    """Click at random, the same in both forms of pages, and now and then on what is not there."""
    rng = np.random.default_rng([episode.spec.index, len(episode.steps)])
    if rng.random() < 0.1:
        return '<tool_call>{"name": "click", "arguments": {"element": "nothing of this name"}}</tool_call>'
    return str(episode.env.unwrapped.random_action(rng))


@pytest.fixture(scope="module")
def records(tokenizer: Any) -> dict[str, list[dict[str, Any]]]:
    """The same visits in both forms."""
    made = {}
    for form in ("text", "text_rich"):
        specs = make_specs("AgentR1/WebShop-v0", {"observation": form}, split="train", episodes=EPISODES)
        played = roll(tokenizer, specs, wander, Budget(512, max_tokens=40_000), workers=2)
        made[form] = [to_record(one, tokenizer) for one in sorted(played, key=lambda one: one.spec.group)]
    return made


def test_both_forms_of_a_visit_look_the_same(records: dict[str, Any], tmp_path: Path) -> None:
    drawn: dict[str, list[list[str]]] = {}
    with Browser(tmp_path) as browser:
        for form, visits in records.items():
            browser.open(write_html(tmp_path / f"{form}.html", visits))
            drawn[form] = []
            for number, visit in enumerate(visits):
                browser.js(f"location.hash = {number}")
                drawn[form].append(browser.texts(".shop"))
                # The page of the opening and one a turn, and as often the exact text.
                assert len(drawn[form][-1]) == len(browser.texts(".fold.exact")) == len(visit["steps"]) + 1
        assert not browser.errors
    assert drawn["text"] == drawn["text_rich"]
    pages = "\n".join(page for visit in drawn["text"] for page in visit)
    shown = ("Page 1 (Total", "clicked next", "Buy Now", "Thank you for shopping with us!", "score 0")
    assert all(words in pages for words in shown) and "[SEP]" not in pages and "button]" not in pages


def test_a_chosen_option_is_marked_until_the_next_results(records: dict[str, Any], tmp_path: Path) -> None:
    visits = records["text_rich"]
    found = 0
    with Browser(tmp_path) as browser:
        browser.open(write_html(tmp_path / "page.html", records["text"]))
        for number, visit in enumerate(visits):
            browser.js(f"location.hash = {number}")
            chips_of = "(shop) => [...shop.querySelectorAll('.chosen')].map((chip) => chip.firstChild.data)"
            marked = browser.js(f"[...document.querySelectorAll('.shop')].map({chips_of})")
            for step, chips in zip(visit["steps"], marked[1:], strict=True):
                if "[button] Buy Now" in step["observation"]:  # a product's page says itself what was chosen there
                    said = re.findall(r"^  \[clicked button\] (.*) \[clicked", step["observation"], re.MULTILINE)
                    assert chips == said
                    found += len(said)
    assert found > 3


def test_the_exact_text_and_the_tokens_are_there_and_rewards_come_turn_by_turn(
    records: dict[str, Any], tmp_path: Path
) -> None:
    visit = max(records["text"], key=lambda one: one["reward"])
    with Browser(tmp_path) as browser:
        browser.open(write_html(tmp_path / "page.html", [visit]), width=390, height=844, touch=True)
        browser.js("location.hash = 0")
        browser.js("document.querySelectorAll('.fold.exact').forEach((fold) => { fold.open = true; })")
        texts = browser.js("[...document.querySelectorAll('.fold.exact .text')].map((one) => one.textContent)")
        assert texts == [visit["messages"][1]["content"], *(step["observation"] for step in visit["steps"])]
        assert browser.js("document.documentElement.scrollWidth") == 390
        assert browser.js("document.querySelector('h1').checkVisibility()"), "a page has its heading on a phone, too"
        sums = np.cumsum([step["reward"] for step in visit["steps"]])
        shown = [float(text.split()[-1].replace("\u2212", "-")) for text in browser.texts("h3 .reward + small")]
        assert shown == pytest.approx(sums, abs=0.005)
        browser.press("t")
        assert not browser.texts(".shop") and len(browser.texts(".token.env")) > 50
        assert not browser.errors
