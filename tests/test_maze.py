"""The maze: every setting that it allows ends, and a policy that does not look does not find the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from agent_gym import ConfigError
from agent_gym.envs.maze.env import SIZES, Layouts, VisualMazeEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import maze as baselines


@pytest.mark.parametrize("size", range(3, 13))
def test_every_setting_has_layouts_in_every_split(size: int) -> None:
    for longest in (1, 2, 144):
        env = VisualMazeEnv(size=np.int64(size), longest=longest)
        for split, length in SIZES.items():
            assert 50 <= len(env.tasks[split]) <= length
            for index in (0, len(env.tasks[split]) - 1):
                env.reset(seed=0, options={"split": split, "index": index})
                assert 1 <= env._layout.distances[env._layout.start] <= longest


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"size": 2}, "size is 2; .*whole number from 3 to 12"),
        ({"size": 5.0}, "size is 5.0"),
        ({"longest": 0}, "longest is 0; .*from 1 to 144"),
        ({"cell_pixels": "28"}, "cell_pixels is '28'"),
    ],
)
def test_settings_without_mazes_are_refused(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        gymnasium.make("AgentR1/VisualMaze-v0", **kwargs)
    with pytest.raises(ConfigError, match=r"size 2 .* 1 moves .*'test'"):  # the search for a layout ends
        Layouts("test", 500, 2, 1)[0]


def test_a_wall_is_seen_and_not_told_unless_asked() -> None:
    for feedback, text in ((False, "<image>"), (True, "There is a wall.\n<image>")):
        env = VisualMazeEnv(size=3, feedback=feedback)
        env.reset(seed=0, options={"split": "test", "index": 0})
        observation, reward, *_, info = env.step("up")
        assert (observation, reward, info["error"]) == (text, 0.0, None)


def test_the_blind_baselines_are_those_of_the_card() -> None:
    played = {
        "random moves {}": baselines.success(baselines.random_moves),
        "a fixed spiral around the start {}": baselines.success(baselines.spiral),
        "a depth-first search {}": baselines.success(baselines.search),
        "reads where walls are and solves {}": baselines.success(baselines.search, feedback=True),
    }
    card = " ".join(str(VisualMazeEnv.__doc__).split())
    for words, share in played.items():
        assert words.format(f"{100 * share:.1f}%") in card, (words, share)
    blind = played["a depth-first search {}"]
    assert blind <= played["random moves {}"] < 0.25
