"""Rows of Agent-R1's recipes for ALFWorld and WebShop are the tasks of the environments here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pyarrow
import pyarrow.parquet
import pytest

from agent_gym.envs.alfworld.embedded import write_embedded
from agent_gym.errors import ConfigError


def wins(env: Any, split: str, tasks: int) -> int:
    won = 0
    for index in range(tasks):
        env.reset(seed=index, options={"split": split, "index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.unwrapped.expert_action())
            over = terminated or truncated
        won += info["is_success"]
    return won


def write(rows: list[dict[str, Any]], file: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def test_games_of_alfworld_are_those_of_the_rows_and_of_their_folder(tmp_path: Path) -> None:
    source = write_embedded(tmp_path / "source", {"train": 6, "valid_seen": 6}) / "json_2.1.1"
    folder = tmp_path / "data"
    shutil.copytree(source, folder / "games")
    games = sorted((folder / "games/valid_seen").rglob("game.tw-pddl"))
    rows = [
        {
            "data_source": "alfworld_valid_seen",
            "prompt": [{"role": "user", "content": "put it there"}],
            "reward_model": {"ground_truth": {"success": None}, "style": "rule"},
            "extra_info": {"split": "valid_seen", "game_relative_path": str(game.relative_to(folder / "games"))},
        }
        for game in games[:4]
    ]
    write(rows, folder / "valid_seen.parquet")
    made: Any = gymnasium.make("AgentR1/ALFWorld-v0", data=str(folder))
    whole = made.unwrapped.tasks
    assert {split: len(whole[split]) for split in whole} == {"train": 6, "valid_seen": 6, "validation": 6}
    env: Any = gymnasium.make("AgentR1/ALFWorld-v0", data=str(folder / "valid_seen.parquet"), split="validation")
    assert env.unwrapped.tasks["validation"] == [str(game) for game in games[:4]]
    assert wins(env, "validation", 4) == 4
    outside = next((source / "train").rglob("game.tw-pddl"))
    (folder / "valid_seen.parquet").unlink()
    above = f"../../source/json_2.1.1/{outside.relative_to(source)}"
    for wrong in ("valid_seen/none/game.tw-pddl", str(outside), above):
        rows[1]["extra_info"]["game_relative_path"] = wrong
        write(rows, folder / "valid_seen.parquet")
        with pytest.raises(ConfigError, match=r"valid_seen.parquet: row 1 has .*game_relative_path.*below .*games"):
            gymnasium.make("AgentR1/ALFWorld-v0", data=str(folder / "valid_seen.parquet"))


def test_goals_of_webshop_come_from_the_rows(tmp_path: Path) -> None:
    made: Any = gymnasium.make("AgentR1/WebShop-v0")
    goals = made.unwrapped.tasks
    rows = {
        split: [
            {
                "data_source": f"webshop_small_{split}",
                "prompt": [{"role": "user", "content": goal["instruction_text"]}],
                "reward_model": {
                    "style": "rule",
                    "ground_truth": {
                        "asin": goal["asin"],
                        "attributes": goal["attributes"],
                        "goal_index": number,
                        "goal_options": [{"name": str(n), "value": v} for n, v in enumerate(goal["goal_options"])],
                        "instruction": goal["instruction_text"],
                        "price_upper": goal["price_upper"],
                    },
                },
                "extra_info": {"split": split, "goal_index": number},
            }
            for number, goal in enumerate(goals[split][:12])
        ]
        for split in ("train", "test")
    }
    for split in rows:
        write(rows[split], tmp_path / f"{split}.parquet")
    env: Any = gymnasium.make("AgentR1/WebShop-v0", goals=str(tmp_path), split="test")
    assert {split: list(env.unwrapped.tasks[split]) for split in rows} == {s: list(goals[s][:12]) for s in rows}
    assert wins(env, "test", 12) == 12
    named = {"name": "color", "value": "red"}
    rows["test"][0]["reward_model"]["ground_truth"]["goal_options"] = [named]
    rows["test"][1]["reward_model"]["ground_truth"]["asin"] = "B0NOTHERE0"
    (tmp_path / "one.jsonl").write_text(json.dumps(rows["test"][0]), encoding="utf-8")
    env = gymnasium.make("AgentR1/WebShop-v0", goals=str(tmp_path / "one.jsonl"), split="train")
    assert env.unwrapped.tasks["train"][0]["goal_options"] == {"color": "red"}
    write(rows["test"], tmp_path / "test.parquet")
    with pytest.raises(ConfigError, match=r"row 1 of test is no goal: KeyError 'B0NOTHERE0'; reward_model"):
        gymnasium.make("AgentR1/WebShop-v0", goals=str(tmp_path / "test.parquet"))
    twice = [named, {"name": "color", "value": "blue"}]
    for field, value in (("attributes", "soft"), ("goal_options", twice)):
        truth = {**rows["train"][0]["reward_model"]["ground_truth"], field: value}
        row = {**rows["train"][0], "reward_model": {"ground_truth": truth}}
        (tmp_path / "one.jsonl").write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(ConfigError, match=r"row 0 of train is no goal: TypeError attributes is a text .* one name"):
            gymnasium.make("AgentR1/WebShop-v0", goals=str(tmp_path / "one.jsonl"))
    with pytest.raises(ConfigError, match="goals is 'nowhere.parquet'.*synthetic"):
        gymnasium.make("AgentR1/WebShop-v0", goals="nowhere.parquet")
