"""Where games are found, by folder, name and type, what is refused, and what generated games are like."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent_gym import ConfigError
from agent_gym.envs.alfworld.data import game_names, load_game
from agent_gym.envs.alfworld.embedded import SPLIT_SIZES, generate, rooms, write_embedded
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.game import TASK_TYPES, AlfworldGame
from agent_gym.envs.alfworld.world import AlfworldWorld


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few generated games, as official files."""
    return write_embedded(tmp_path_factory.mktemp("games"), {"train": 6, "valid_seen": 6, "valid_unseen": 6})


def test_splits_have_two_names_and_types_filter_their_games(exported: Path) -> None:
    names = game_names("embedded")
    assert [len(names[split]) for split in SPLIT_SIZES] == [3553, 140, 134]
    assert names["validation"] is names["valid_seen"] and names["test"] is names["valid_unseen"]
    for data in ("embedded", str(exported)):
        names = game_names(data, ("pick_heat_then_place_in_recep", "pick_two_obj_and_place"))
        types = {load_game(name).task_type for split in SPLIT_SIZES for name in names[split][:10]}
        assert types == {"pick_heat_then_place_in_recep", "pick_two_obj_and_place"}
    for wrong in (("pick_nothing",), (), "heat"):
        with pytest.raises(ConfigError, match="task_types.*pick_and_place_simple"):
            game_names("embedded", wrong)


def test_small_rooms_are_a_source_of_their_own(exported: Path) -> None:
    names = game_names("embedded", ("look_at_obj_in_light",), 5)
    assert [len(found) for found in names.values()] == [5000, 500, 500, 500, 500]
    game = load_game(names["test"][3])
    assert game.name == names["test"][3] == "embedded-5/valid_unseen/19" and len(game.place) <= 5
    assert load_game("embedded/valid_unseen/19").data != game.data
    for few in (3, 4.5, True):
        with pytest.raises(ConfigError, match="receptacles is .*at least 4, or None"):
            game_names("embedded", None, few)
    with pytest.raises(ConfigError, match="receptacles is 6, but only data=.embedded. has it"):
        game_names(str(exported), None, 6)
    with pytest.raises(ConfigError, match="receptacles is 3; it must"):
        load_game("embedded-3/train/0")


def test_folders_are_taken_at_either_level(exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = game_names(str(exported))
    assert names == game_names(str(exported / "json_2.1.1"))
    assert [len(names[split]) for split in ("train", "valid_seen", "test")] == [6, 6, 6]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ALFWORLD_DATA", str(exported))
    assert game_names("official") == names
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(ConfigError, match="agent-gym prepare alfworld"):
        game_names("official")


def test_only_solvable_games_without_slices_are_taken(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "data")
    root = tmp_path / "data" / "json_2.1.1" / "train"
    files = sorted(root.glob("*/*/game.tw-pddl"))
    data = json.loads(files[0].read_text())
    for file, mark in zip(files, (False, None, "absent", True, True, True), strict=True):
        changed = {**data, "solvable": mark, "walkthrough": None}
        if mark == "absent":
            del changed["solvable"]
        file.write_text(json.dumps(changed))
    task = files[3].parts[-3].split("-")
    (root / files[3].parts[-3]).rename(root / "-".join([task[0], f"{task[1]}Sliced", *task[2:]]))
    (root / files[4].parts[-3]).rename(root / "pick_and_place_with_movable_recep-Egg-Bowl-Desk-1")
    assert [Path(name).parts[-3] for name in game_names(str(tmp_path / "data"))["train"]] == [files[5].parts[-3]]


def test_official_games_are_found_solved_and_of_their_folders_type(alfworld_folder: Path) -> None:
    """All 260: the expert finds a way from the goal alone."""
    names = game_names(str(alfworld_folder))
    assert len(names["valid_seen"]) == 140 and len(names["train"]) == 120
    for name in (*names["valid_seen"], *names["train"]):
        game = AlfworldGame(json.loads(Path(name).read_text()), name)
        assert Path(name).parts[-3].split("-")[0] == game.task_type
        world = AlfworldWorld(game)
        expert = Expert(world)
        for _ in range(20):
            if not world.view.won:
                world.step(expert.next_command())
        assert world.view.won, name


def test_a_game_is_parsed_once_until_its_file_changes(exported: Path) -> None:
    name = game_names(str(exported))["train"][0]
    game = load_game(name)
    assert load_game(name) is game and load_game(Path(name).parent) is game
    Path(name).write_text(Path(name).read_text().replace("Your task is to: ", "Your task is to: please "))
    assert load_game(name).task == f"please {game.task}"


GOAL = {"pddl_domain": "", "grammar": 'x "Your task is to: y."'}


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("/no/such/game.tw-pddl", "no game at"),
        ("embedded/dev/1", "embedded/<split>/<number>"),
        ("embedded/train/x", "embedded/<split>/<number>"),
        ({"grammar": 3}, "is not a game of ALFWorld"),
        ({**GOAL, "pddl_problem": "(:init) (:goal ("}, "not a game"),
        ({**GOAL, "pddl_problem": "(:init (atLocation a b)) (:goal (and (cleanable x)))"}, "no condition"),
        ({**GOAL, "pddl_problem": "(:init (atLocation a b)) (:goal (or (holds a x)))"}, "'or' is not understood"),
        (3, "a path, a name or the content"),
    ],
)
def test_what_is_no_game_is_refused(game: Any, words: str) -> None:
    for grammar in (None, "legacy"):
        with pytest.raises(ConfigError, match=words):
            load_game(game, grammar)


def test_files_and_folders_that_hold_no_game_are_refused(tmp_path: Path) -> None:
    for text in ("{", "[]"):
        (tmp_path / "game.tw-pddl").write_text(text)
        with pytest.raises(ConfigError, match="is not a game"):
            load_game(tmp_path)
    with pytest.raises(ConfigError, match="json_2.1.1"):
        game_names(str(tmp_path))
    (tmp_path / "train").mkdir()
    with pytest.raises(ConfigError, match="no solvable game"):
        game_names(str(tmp_path))


def test_the_expert_carries_what_no_receptacle_takes_back() -> None:
    """37 of the official games of the sample have such a thing; nothing else can be put anywhere then."""
    game = load_game("embedded/train/0")
    wanted = {argument for fact in game.goal.facts for argument in fact}
    where = {thing: place for place, things in AlfworldWorld(game).inside.items() for thing in things}
    thing = next(thing for thing in sorted(where) if thing in game.able["pickupable"] - wanted)
    takers = re.compile(rf"\(cancontain \S+ {game.kind_of[thing]}\s*\)", re.IGNORECASE)
    problem, count = takers.subn("", game.data["pddl_problem"])
    world = AlfworldWorld(load_game({**game.data, "pddl_problem": problem}))
    name, place = world.game.names[thing], world.game.names[where[thing]]
    for command in (f"go to {place}", f"open {place}", f"take {name} from {place}"):
        world.step(command)
    assert count and world.hand == thing
    command = Expert(world).next_command()
    assert command in world.view.admissible and world.step(command).text and world.hand == thing


# Generated games.


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
            assert AlfworldWorld(one.game).progress < 1.0 and one.file["walkthrough"]
    assert not plans["valid_unseen"] & (plans["train"] | plans["valid_seen"])
    assert len(plans["train"]) > 40 and len(plans["valid_unseen"]) >= 12


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
        world = AlfworldWorld(game)
        won = [world.step(command).won for command in data["walkthrough"]]
        assert won[-1] and not any(won[:-1]) and 3 <= len(won) <= 12
    with pytest.raises(ConfigError, match="'dev'.*valid_unseen"):
        write_embedded(tmp_path / "other", {"dev": 1})


def test_grammar_can_be_changed(exported: Path) -> None:
    name = game_names(str(exported))["valid_seen"][0]
    for game in (name, json.loads(Path(name).read_text()), "embedded/train/0"):
        worlds = {grammar: AlfworldWorld(load_game(game, grammar)) for grammar in ("current", "legacy")}
        for grammar, world in worlds.items():
            assert ("help" in world.view.admissible) == (grammar == "current")
            text = world.step(next(one for one in world.view.admissible if one.startswith("go to "))).text
            assert ("arrive at loc " in text) == (grammar == "legacy")
        assert worlds["current"].game.task == worlds["legacy"].game.task
