"""`MiniWoB-v0` on small pages of the same protocol: play, time, borders, a browser that dies."""

from __future__ import annotations

import copy
import http.server
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniwob_tools import CALL, ENV_ID, made, needs_browser, of_seed, process_id, small_folder
from rollout_tools import expert, roll

from agent_gym import ConfigError, EnvFailure
from agent_gym.envs.miniwob import browser as browsers
from agent_gym.envs.miniwob.data import APART, splits_of
from agent_gym.envs.miniwob.experts import EXPERTS
from agent_gym.images import images_of
from agent_gym.rollout import EpisodeSpec
from agent_gym.testing import check_text_env

PANEL = resources.files("agent_gym.registry").joinpath("panels", "MiniWoB-v0.official-test.json")


@pytest.fixture(scope="module")
def asked() -> Iterator[list[str]]:
    """A server that nobody should ask, and what it was asked."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    paths.append(f"http://127.0.0.1:{server.server_port}")
    yield paths
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, asked: list[str]) -> Path:
    needs_browser()
    base = tmp_path_factory.mktemp("miniwob")
    (base / "outside.txt").write_text("not a page")
    return small_folder(base / "html", port=asked[0])


@pytest.fixture(scope="module")
def env(folder: Path) -> Iterator[Any]:
    made_env = made(folder, ["enter-text", "slow", "curious"])
    yield made_env  # it keeps the browser for all tests
    made_env.close()


def test_a_page_is_played_by_calls(env: Any) -> None:
    first, info = env.reset(options=of_seed("enter-text", 3))
    word = info["messages"][-1]["content"].split('"')[1]
    page = '[1] textbox value ""\n[2] button "Submit"'
    assert first.endswith(f'Instruction: Enter "{word}" into the text field and press Submit.\n\n{page}')
    assert info["categories"] == {"page": "enter-text"}
    seen, reward, terminated, _, info = env.step(CALL("type", {"element": 1, "text": "two words"}))
    assert seen == 'Done.\n\n[1] textbox value "two words" focused\n[2] button "Submit"'
    assert (reward, terminated, info["error"]) == (0.0, False, None)
    right = CALL("type", {"element": 1, "text": word}) + CALL("click", {"element": 2}) + CALL("click", {"element": 2})
    seen, reward, terminated, _, info = env.step(right)
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    assert seen == "Done.\nThe page is over.\nError: the page is over"
    env.reset(options=of_seed("enter-text", 3))
    _, reward, terminated, _, info = env.step(CALL("click", {"element": 2}))
    assert (reward, terminated, info["is_success"]) == (-1.0, True, False)


def test_a_seed_decides_the_page(env: Any) -> None:
    def first(seed: int) -> str:
        return str(env.reset(options=of_seed("enter-text", seed))[0])

    pages = [first(seed) for seed in range(4)]
    assert len({*pages}) == 4
    assert [first(seed) for seed in range(4)] == pages


def test_time_passes_with_calls_and_not_by_itself(env: Any) -> None:
    env.reset(options=of_seed("slow", 0))
    time.sleep(0.3)
    texts = [env.step(CALL("press", {"key": "Shift+a"}))[0].split("\n")[2] for _ in range(3)]
    assert texts == ["wait", "wait", "ready"]
    _, reward, terminated, _, info = env.step(CALL("click", {"element": 1}))
    assert (reward, terminated, info["is_success"]) == (0.5, True, True)


def test_nothing_leads_away_from_a_page(env: Any) -> None:
    env.reset(options=of_seed("slow", 0))
    calls = [CALL("click", {"element": number}) for number in (2, 3, 6)]
    for call in calls:
        seen = env.step(call)[0]
        assert seen.startswith("Done.") and '[1] button "Go"' in seen


def test_a_page_has_no_network_no_files_and_no_memory(env: Any, asked: list[str]) -> None:
    for _ in range(2):
        env.reset(options=of_seed("curious", 0))
        for _ in range(4):
            time.sleep(0.05)
            seen = env.step(CALL("press", {"key": "a"}))[0]
        assert seen.split("\n")[2] == "nothing"
    assert asked[1:] == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (CALL("click", {"element": 77}), "there is no element 77 on the page now"),
        (CALL("click", {"element": "Go"}), "element"),
        (CALL("click_at", {"x": 900, "y": 3}), "480"),
        (CALL("type", {"element": 1, "text": "x"}), "element 1 takes no text"),
        (CALL("type", {"element": 1, "text": "x" * 501}), "the text has 501 characters; at most 500 are typed"),
        (CALL("select", {"element": 4, "option": "three"}), 'element 4 has no option "three"; it has: one, two'),
        (CALL("select", {"element": 1, "option": "one"}), "element 1 has no options; click it"),
        (CALL("press", {"key": "Enterr"}), "unknown key 'Enterr'"),
        (CALL("scroll", {"element": 1, "direction": "down"}), "element 1 is in nothing that scrolls"),
        ("I am done.", "a turn has to call a tool"),
    ],
)
def test_a_mistake_is_an_observation(env: Any, call: str, error: str) -> None:
    env.reset(options=of_seed("slow", 0))
    seen, reward, terminated, _, info = env.step(call)
    assert error in seen and info["error"] and (reward, terminated) == (0.0, False)


def test_the_last_turn_costs_as_a_page_that_ran_out_of_time(folder: Path) -> None:
    env = made(folder, max_turns=2)
    env.reset(seed=0)
    assert env.step("Hm.")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step("Hm.")
    assert (reward, terminated, truncated, info["is_success"]) == (-1.0, False, True, False)
    env.close()


def test_environments_share_a_browser_which_ends_with_the_last(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "chromium"  # of another name, which no other test uses
    program.symlink_to(needs_browser())
    some, before = [made(folder, browser=program) for _ in range(3)], random.getstate()
    for env in some:
        env.reset(seed=0)
    assert random.getstate() == before, "playwright names its calls by draws from the global generator"
    first = some[0]._tab.chromium
    assert {env._tab.chromium for env in some} == {first}
    number = process_id(first)
    for env in some:
        os.kill(number, 0)
        env.close()
    assert not first.alive
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.parametrize("clone", [copy.deepcopy, pickle.dumps])
def test_a_page_in_a_browser_is_not_copied(env: Any, clone: Any) -> None:
    env.reset(seed=0)
    with pytest.raises(TypeError, match="a page in a browser cannot be copied"):
        clone(env.unwrapped)


def test_a_dead_browser_fails_its_episodes_and_is_started_again(folder: Path) -> None:
    one, two = made(folder), made(folder)
    for env in (one, two):
        env.reset(options=of_seed("enter-text", 1))
    before = process_id(one._tab.chromium)
    os.kill(before, signal.SIGKILL)
    for env in (one, two):  # the second finds another browser running, which is not its own
        with pytest.raises(EnvFailure, match="the browser failed"):
            env.step(env.expert_action())
        env.reset(options=of_seed("enter-text", 1))
        assert env.step(env.expert_action())[1] == 1.0
    assert one._tab.chromium is two._tab.chromium and process_id(one._tab.chromium) != before
    one.close()
    two.close()


def test_a_rollout_outlives_its_browser(folder: Path, tokenizer: Any) -> None:
    keeper = made(folder)
    keeper.reset(seed=0)
    killed: list[int] = []

    def act(episode: Any) -> str:
        if episode.env.unwrapped.task_id == "train/2" and not killed:
            killed.append(process_id(keeper._tab.chromium))
            os.kill(killed[0], signal.SIGKILL)
        return expert(episode)

    kwargs = {"page": "enter-text", "data": str(folder)}
    specs = [EpisodeSpec(ENV_ID, kwargs, seed=n, split="train", index=n, sampling_seed=n) for n in range(6)]
    episodes = roll(tokenizer, specs, act, max_live=2)
    failed = [episode for episode in episodes if episode.failure]
    assert killed and 1 <= len(failed) <= 2, "no more than were live"
    assert all(np.isnan(episode.reward) for episode in failed)
    assert all(episode.reward == 1.0 for episode in episodes if not episode.failure)
    keeper.close()


def test_a_page_that_hangs_fails_its_episode_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, other = made(folder, "hung"), made(folder)
    env.reset(seed=0)
    other.reset(options=of_seed("enter-text", 1))
    monkeypatch.setattr(browsers, "_PATIENCE_S", 2.0)
    with pytest.raises(EnvFailure, match="the browser did not answer within 2 s"):
        env.step(CALL("click", {"element": 1}))
    assert other.step(other.expert_action())[1] == 1.0
    monkeypatch.setattr(browsers, "_PATIENCE_S", 60.0)
    env.reset(seed=0)
    env.close()
    other.close()


def test_screenshots_are_images_of_the_messages(folder: Path) -> None:
    env = made(folder, screenshots=True)
    assert env.shows_images
    _, info = env.reset(seed=0)
    _, _, _, _, after = env.step(CALL("type", {"element": 1, "text": "word"}))
    first, second = (images_of(some["messages"])[0] for some in (info, after))
    assert first.size == second.size == (210, 160) and first != second
    env.close()


def test_what_is_missing_is_named_with_its_cure(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="run: agent-gym prepare miniwob"):
        made(tmp_path)
    with pytest.raises(ConfigError, match="page is 'no-page'; it must be one of these, or some: all, easy, solved, "):
        made(folder, "no-page")
    with pytest.raises(ConfigError, match="no Chromium here .looked for /no/chromium.; run: playwright install"):
        made(folder, browser="/no/chromium")
    with pytest.raises(ConfigError, match="split_by is 'name'; allowed: seed, page"):
        made(folder, split_by="name")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no Chromium here .* run: playwright install"):
        made(folder)
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(ConfigError, match=r"this needs the package 'playwright.async_api': .*\[miniwob\]"):
        made(folder)


def test_splits_have_other_seeds_or_other_pages(folder: Path) -> None:
    env = made(folder, ["slow", "curious", "hung"])
    seeds = {split: {task["seed"] for task in tasks} for split, tasks in env.tasks.items()}
    assert {split: (min(some), max(some)) for split, some in seeds.items()} == {
        "train": (0, 999), "validation": (1_000_000, 1_000_009), "test": (2_000_000, 2_000_009),
    }  # fmt: skip
    assert {task["page"] for task in env.tasks["test"]} == {"slow", "curious", "hung"}
    by_page = made(folder, "all", split_by="page").tasks
    pages = [page for tasks in by_page.values() for page in {task["page"] for task in tasks}]
    assert sorted(pages) == ["curious", "enter-text", "hung", "slow"]


def test_a_page_of_few_texts_has_seeds_of_its_own_in_each_split() -> None:
    """`splits.json` says which; training repeats them, and a page of one text is training's alone."""
    splits = splits_of(["choose-list", "click-test", "drag-cube"], "seed")
    seeds = {
        split: {page: [task["seed"] for task in tasks if task["page"] == page] for page in ("click-test", "drag-cube")}
        for split, tasks in splits.items()
    }
    assert {split: len(tasks) for split, tasks in splits.items()} == {"train": 3000, "validation": 11, "test": 11}
    assert seeds["train"]["click-test"] == [*range(1000)] and not seeds["test"]["click-test"]
    cube = {split: {*some["drag-cube"]} for split, some in seeds.items()}
    assert [*map(len, cube.values())] == [4, 1, 1] and len(set().union(*cube.values())) == 6
    assert splits_of(["click-test"], "seed").keys() == {"train"}
    for page, own in APART.items():
        found = [seed for some in own.values() for seed in some]
        assert len({*found}) == len(found), page
        assert all(len(own.get(split, ())) <= 10 for split in ("validation", "test")), page


def test_the_panel_shows_no_text_twice() -> None:
    """Twins, such as a page with and without a delay, draw the same texts."""
    panel = json.loads(PANEL.read_bytes())
    assert len({shown for _, shown, _ in panel["tasks"]}) == len(panel["tasks"]) == 124


def test_a_page_that_no_rule_fits_is_named(folder: Path, env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("click-dialog", "click-color", "use-spinner", "email-inbox-delete"):
        monkeypatch.setitem(EXPERTS, "slow", EXPERTS[rule])
        env.reset(options=of_seed("slow", 0))
        with pytest.raises(ConfigError, match="rule of 'slow' does not fit the page that asks 'Press Go when it is"):
            env.expert_action()


def test_it_keeps_the_contract(folder: Path) -> None:
    check_text_env(lambda: made(folder))
