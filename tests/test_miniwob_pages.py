"""`MiniWoB-v0` on MiniWoB++'s own pages: seeds, the expert, random play, and many at once.

They skip where the wheel is not prepared: agent-gym prepare miniwob, or AGENT_GYM_MINIWOB=WHEEL.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniwob_tools import made, of_seed, prepared_folder

from agent_gym.envs.miniwob.data import APART, GROUPS, pages_of
from agent_gym.envs.miniwob.experts import EXPERTS
from agent_gym.testing import expert_episode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_folder(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def env(folder: Path) -> Any:
    made_env = made(folder, "all")
    yield made_env
    made_env.close()


def test_there_are_130_pages_and_the_expert_solves_62(env: Any, folder: Path) -> None:
    solved = {task["page"] for task in made(folder, "solved").tasks["train"]}
    assert len(pages_of("all", folder, ())) == 130 and len(solved) == len(EXPERTS) == 62


def test_a_seed_gives_the_same_page_and_the_same_play(env: Any, folder: Path) -> None:
    """Each page, twice, by the same calls at random: nothing depends on the machine's clock or load."""

    def played(page: str) -> list[str]:
        rng = np.random.default_rng(5)
        seen = [env.reset(options=of_seed(page, 11))[0]]
        for _ in range(4):
            observation, reward, terminated, *_ = env.step(env.random_action(rng))
            seen.append(f"{observation} {reward}")
            if terminated:
                break
        return seen

    assert [page for page in pages_of("all", folder, ()) if played(page) != played(page)] == []


@pytest.mark.parametrize("page", sorted(EXPERTS))
def test_the_expert_solves_its_pages(env: Any, page: str) -> None:
    for seed in range(3_000, 3_004):
        *_, (_, reward, terminated, _, info) = expert_episode(env, options=of_seed(page, seed))
        assert terminated and info["is_success"] and reward == 1.0, seed


def test_twenty_pages_live_in_one_browser(folder: Path) -> None:
    envs = [made(folder, "solved") for _ in range(20)]
    rewards: list[float] = []

    def work(one: Any, index: int) -> None:
        *_, (_, reward, *_) = expert_episode(one, options={"split": "validation", "index": index})
        rewards.append(reward)

    for start in (0, 20):
        threads = [threading.Thread(target=work, args=(one, start + n)) for n, one in enumerate(envs)]
        for thread in threads:
            thread.start()
            time.sleep(0.01)
        for thread in threads:
            thread.join()
    assert rewards == [1.0] * 40 and len({one._tab.chromium for one in envs}) == 1
    for one in envs:
        one.close()


def test_each_page_without_a_rule_has_a_reason(folder: Path) -> None:
    assert {*GROUPS["unsolved"]} == {*pages_of("all", folder, ())} - EXPERTS.keys()


@pytest.mark.parametrize("page", sorted(APART)[::6])
def test_no_two_splits_of_a_page_show_one_text(env: Any, page: str) -> None:
    texts = {
        split: {env.reset(options=of_seed(page, seed))[0] for seed in seeds[:40]}
        for split, seeds in APART[page].items()
    }
    assert len(set().union(*texts.values())) == sum(len(seeds[:40]) for seeds in APART[page].values())
