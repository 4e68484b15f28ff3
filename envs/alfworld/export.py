"""Writes generated games to a folder, as the official ones are: for the original engine, or for reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from agent_gym.envs.alfworld.games import GAME_FILE, ROOT
from agent_gym.envs.alfworld.generator import SPLIT_SIZES, generate
from agent_gym.envs.alfworld.logic import task_of
from agent_gym.envs.alfworld.rooms import LAMP


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES, grammar: str = "current") -> Path:
    """Write generated games.

    Args:
        folder: where to; made if needed.
        sizes: split to the number of its games.
        grammar: "current" or "legacy".

    Returns:
        The folder, with `json_2.1.1/<split>/<task>/<trial>/` as the official data has them: `game.tw-pddl`,
        `initial_state.pddl` and `traj_data.json`. `data=` takes it, and so does ALFWorld as its `$ALFWORLD_DATA`.

    Raises:
        ConfigError: for an unknown split.
    """
    folder = Path(folder).expanduser()
    for split, size in sizes.items():
        for index in range(size):
            game = generate(split, index, grammar)
            trial = folder / ROOT / split / game.folder / f"trial_G{index:06d}"
            trial.mkdir(parents=True, exist_ok=True)
            (trial / GAME_FILE).write_text(json.dumps(game.file), encoding="utf-8")
            (trial / "initial_state.pddl").write_text(game.file["pddl_problem"], encoding="utf-8")
            lamp = "" if game.place else LAMP
            targets = {"object_target": game.thing, "parent_target": game.place, "toggle_target": lamp}
            about = {
                "task_id": trial.name,
                "task_type": game.task_type,
                "pddl_params": targets | {"mrecep_target": "", "object_sliced": False},
                "scene": {"floor_plan": f"FloorPlan{game.floor_plan}", "scene_num": game.floor_plan},
                "turk_annotations": {"anns": [{"task_desc": task_of(game.file["grammar"])}]},
            }
            (trial / "traj_data.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    return folder
