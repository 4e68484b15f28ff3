"""The shop as a web page: what its server answers, and what a browser makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser import CHROMIUM, SWITCHES
from search_tools import running
from serve_tools import ask

from agent_gym.cli.serve import serve
from agent_gym.envs.webshop.embedded import write_embedded
from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.errors import ConfigError
from agent_gym.serve.server import bind

HOSTILE = "<img src=x onerror=document.title='broken'> & \u202e"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a shop in which every title, option and feature is hostile."""
    folder = write_embedded(tmp_path_factory.mktemp("shop"), size=300)
    rows = json.loads((folder / "items_shuffle.json").read_text())
    for row in rows:
        row["name"] += HOSTILE
        row["small_description"] += [HOSTILE]
    (folder / "items_shuffle.json").write_text(json.dumps(rows))
    make = lambda: WebShopEnv(str(folder), split="test", max_turns=6)  # noqa: E731
    with running(WebShopEnv.server(make, bind(port=0))) as server:
        yield server.url


def test_a_visit_from_the_instruction_to_the_reward(address: str) -> None:
    def act(name: str, argument: str) -> Any:
        return ask(address, "/act", {"visit": visit, "name": name, "argument": argument})[1]

    _, state, _ = ask(address, "/start", {"index": 4})
    assert state["page"] == "index" and state["instruction"] and state["max_turns"] == 6 and not state["over"]
    visit = state["visit"]
    links = [piece for piece in act("search", state["instruction"])["pieces"] if piece["kind"] == "link"]
    assert len(links) == 10 and all(piece["click"] == piece["text"].lower() for piece in links)
    state = act("click", links[0]["click"])
    assert state["page"] == "item" and state["turns"] == 2
    option = next((piece for piece in state["pieces"] if piece["kind"] == "option"), None)
    if option:
        chosen = [piece["text"] for piece in act("click", option["click"])["pieces"] if piece["chosen"]]
        assert chosen == [option["text"]]
    state = act("click", "buy now")
    assert state["earned"][-1] == ["click[buy now]", state["score"]] and len(state["earned"]) == state["turns"]
    assert state["over"] and 0 <= state["score"] <= 1 and {"r_type", "r_att", "r_price"} <= set(state["parts"])
    assert act("click", "buy now") == state


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/act", {"visit": "x", "name": "search", "argument": "y"}, 404, "reload"),
        ("/act", {"visit": "x", "name": "buy", "argument": "y"}, 400, "search, click"),
        ("/act", {"visit": 1}, 400, "texts"),
        ("/act", [], 400, "object"),
        ("/start", {"index": -1}, 400, "out of range"),
        ("/start", {"index": "a" * 70_000}, 413, "search for less"),
        ("/../page.py", None, 404, "POST /act"),
    ],
)
def test_requests_that_are_wrong_are_answered(address: str, path: str, body: Any, status: int, word: str) -> None:
    answer, content, _ = ask(address, path, body)
    assert answer == status and word in content["detail"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_shops_and_shows_the_reward(address: str, tmp_path: Path) -> None:
    def dom(actions: list[str]) -> str:
        query = "&".join(f"act={quote(action)}" for action in actions)
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [CHROMIUM, *SWITCHES.split(), profile, "--virtual-time-budget=20000", "--dump-dom"]
        page = f"{address}/?index=4&{query}"
        return subprocess.run([*command, page], capture_output=True, text=True, timeout=120).stdout

    _, state, _ = ask(address, "/start", {"index": 4})
    search = f"search:{state['instruction']}"
    _, state, _ = ask(address, "/act", {"visit": state["visit"], "name": "search", "argument": state["instruction"]})
    first = next(piece["click"] for piece in state["pieces"] if piece["kind"] == "link")
    listed = dom([search])
    assert 'data-page="search"' in listed and listed.count('class="card"') == 10
    assert "&lt;img src=x onerror" in listed and "<img" not in listed and "<title>WebShop</title>" in listed
    bought = dom([search, f"click:{first}", "click:buy now"])
    assert "Your reward: " in bought and "<td>r_att</td>" in bought and "3 of 6 turns, reward so far " in bought
    assert bought.count("<td>search[") == 1 and f"<td>click[{first}]</td><td>0</td>" in bought


def test_serve_webshop_serves() -> None:
    with pytest.raises(ConfigError, match="observation is 'html'"):
        serve(["webshop", "--env_kwargs", '{"observation": "html"}'])
    command = [sys.executable, "-m", "agent_gym", "serve", "webshop", "--port", "0"]
    server: Any = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    assert ask(line.split()[1], "/start", {})[1]["page"] == "index"
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait(30) == 0
