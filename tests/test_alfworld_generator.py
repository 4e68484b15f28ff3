"""Generated games: solvable, official in form, as full as the official ones, and unseen rooms that stay unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest

from agent_gym import ConfigError
from agent_gym.envs.alfworld.data import load_game
from agent_gym.envs.alfworld.embedded import SPLIT_SIZES, generate, rooms, type_of, write_embedded
from agent_gym.envs.alfworld.game import TASK_TYPES, Game
from agent_gym.envs.alfworld.world import World

# Means of a game over the 260 official games of the sample.
OFFICIAL = {"receptacles": 24.3, "their kinds": 9.2, "objects": 41.7, "kinds of objects": 23.7, "empty": 0.43}


def contents(game: Game) -> dict[str, float]:
    """The same numbers of one game; "empty" is the share of receptacles with nothing in them."""
    filled = {receptacle for _, receptacle in game.start["inreceptacle"]}
    return {
        "receptacles": len(game.place),
        "their kinds": len({game.type_of[receptacle] for receptacle in game.place}),
        "objects": len(game.kind_of),
        "kinds of objects": len(set(game.kind_of.values())),
        "empty": mean(receptacle not in filled for receptacle in game.place),
    }


def test_rooms_are_as_full_as_official_ones() -> None:
    found = [contents(load_game(f"embedded/train/{index}")) for index in range(240)]
    for name, official in OFFICIAL.items():
        assert mean(one[name] for one in found) == pytest.approx(official, rel=0.15), name


def test_types_are_equally_frequent_and_goals_are_theirs() -> None:
    assert Counter(map(type_of, range(60))) == dict.fromkeys(TASK_TYPES, 10)
    for index in range(60):
        game = load_game(f"embedded/valid_seen/{index}")
        assert game.task_type == type_of(index) and World(game).progress < 1.0
        assert game.goal.conditions == {"look_at_obj_in_light": 4, "pick_and_place_simple": 1}.get(game.task_type, 2)


@pytest.mark.parametrize("most", [None, rooms.LEAST_RECEPTACLES, 10])
def test_unseen_rooms_are_seen_nowhere_else_and_small_ones_have_every_type_of_task(most: int | None) -> None:
    plans = {}
    for split in SPLIT_SIZES:
        games = [generate(split, index, receptacles=most) for index in range(120)]
        plans[split] = {one.setting.plan.number for one in games}
        assert Counter(one.game.task_type for one in games) == dict.fromkeys(TASK_TYPES, 20)
        for one in games if most else ():
            assert 3 <= len(one.game.place) <= most
            assert len(one.game.start["inreceptacle"]) <= 2 * (most + 2) + 1
            assert World(one.game).progress < 1.0 and one.file["walkthrough"]
    assert not plans["valid_unseen"] & (plans["train"] | plans["valid_seen"])
    assert len(plans["train"]) > 40 and len(plans["valid_unseen"]) >= 12


def test_generation_depends_on_nothing_but_split_and_index() -> None:
    code = (
        "import hashlib; from agent_gym.envs.alfworld.embedded import generate;"
        "print(hashlib.sha256(repr([generate(s, i).file for s in ('train', 'valid_unseen') for i in range(12)])"
        ".encode()).hexdigest())"
    )
    digests = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        digests.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(digests) == 1


def test_export_is_laid_out_as_the_official_data_and_walkthroughs_solve_it(tmp_path: Path) -> None:
    root = write_embedded(tmp_path / "data", {"train": 6, "valid_unseen": 12}, grammar="legacy")
    files = sorted(root.glob("json_2.1.1/*/*/*/game.tw-pddl"))
    assert len(files) == 18
    for file in files:
        about = json.loads(file.with_name("traj_data.json").read_text())
        data = json.loads(file.read_text())
        game = load_game(file)
        assert re.fullmatch(rf"{game.task_type}-\w+-None-\w+-{about['scene']['scene_num']}", file.parts[-3])
        assert about["task_type"] == game.task_type and data["solvable"] is True and game.legacy
        assert file.with_name("initial_state.pddl").read_text() == data["pddl_problem"]
        assert set(data) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
        world = World(game)
        won = [world.step(command).won for command in data["walkthrough"]]
        assert won[-1] and not any(won[:-1]) and 3 <= len(won) <= 12
    with pytest.raises(ConfigError, match="'dev'.*valid_unseen"):
        write_embedded(tmp_path / "other", {"dev": 1})
