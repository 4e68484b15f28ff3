"""The native engine: what TextWorld said to the same commands, its goals and its progress, threads and hostile text."""

from __future__ import annotations

import functools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from alfworld_tools import HOSTILE, TRACES, adventure, official_game, problem_digest, replay
from hypothesis import given
from hypothesis import strategies as st

from agent_gym import ConfigError, EnvFailure
from agent_gym.envs.alfworld.data import game_names, load_game
from agent_gym.envs.alfworld.engines import NativeEngine, TextWorldEngine
from agent_gym.envs.alfworld.env import ALFWorldEnv
from agent_gym.envs.alfworld.expert import next_command
from agent_gym.envs.alfworld.game import TASK_TYPES, Game
from agent_gym.envs.alfworld.world import NOTHING_HAPPENS, World

needs_original = pytest.mark.skipif(
    find_spec("textworld") is None or find_spec("alfworld") is None, reason="the extra alfworld is not installed"
)


@functools.cache
def traces() -> list[dict[str, Any]]:
    return json.loads(TRACES.read_text(encoding="utf-8"))


def game_of(trace: dict[str, Any]) -> Game:
    game = load_game(trace["game"], trace["grammar"])
    assert problem_digest(game) == trace["problem"], "the generator has changed: python tests/alfworld_tools.py"
    return game


# Word for word.


def test_native_engine_says_what_textworld_said_of_generated_games() -> None:
    generated = [trace for trace in traces() if trace["game"].startswith("embedded/")]
    assert {load_game(trace["game"]).task_type for trace in generated} == set(TASK_TYPES)
    assert {trace["grammar"] for trace in generated} == {"current", "legacy"}
    for trace in generated:
        assert replay(NativeEngine(), game_of(trace), trace["commands"]) == trace["said"], trace["game"]
        assert trace["said"][-1][2], "each ends with a solved game"


def test_native_engine_says_what_textworld_said_of_official_games(alfworld_folder: Path) -> None:
    official = [trace for trace in traces() if not trace["game"].startswith("embedded/")]
    assert len(official) == len(TASK_TYPES)
    for trace in official:
        game = load_game(official_game(alfworld_folder, trace["game"]))
        assert game.legacy and problem_digest(game) == trace["problem"]
        assert replay(NativeEngine(), game, trace["commands"]) == trace["said"], trace["game"]


def test_traces_contain_what_is_easily_got_wrong() -> None:
    """Otherwise the two tests above could pass on commands that say little."""
    said = "\n".join(view[0] for trace in traces() for view in trace["said"])
    commands = "\n".join(command for trace in traces() for command in trace["commands"])
    rare = ("There's nothing special", "This is a normal", "You sliced", "You are carrying", "Next to it, you see a ")
    for words in (NOTHING_HAPPENS, *rare, "arrive at loc ", "Available commands:", "This is a cold", "is a hot"):
        assert words in said, words
    for words in ("[look]", "heat ", "cool ", "clean ", "use ", "close ", "slice ", "examine ", "inventory"):
        assert words in commands, words


@pytest.mark.slow
@needs_original
def test_both_engines_agree_on_official_games(alfworld_folder: Path) -> None:
    """The engine of the original compares each view itself."""
    files = game_names(str(alfworld_folder))["valid_seen"]
    engine = TextWorldEngine()
    for number, file in enumerate(random.Random(0).sample(files, 8)):
        game = load_game(file)
        engine.start(game)
        for command in adventure(game, random.Random(number), 30):
            engine.step(command)
        assert engine.world.progress == 1.0
    engine.close()


@pytest.mark.slow
@needs_original
def test_a_dead_process_is_a_failure_and_the_next_episode_has_another() -> None:
    engine, game = TextWorldEngine(), load_game("embedded/train/1")
    first = engine.start(game)
    engine._original._process.kill()  # type: ignore[union-attr]
    with pytest.raises(EnvFailure, match="TextWorld"):
        engine.step("look")
    assert engine.start(game) == first
    engine.close()


def test_engines_are_named() -> None:
    with pytest.raises(ConfigError, match="'unity'.*native, textworld"):
        ALFWorldEnv(engine="unity")
    if find_spec("textworld") is None:
        with pytest.raises(ConfigError, match=r"agent-gym\[alfworld\].*GPL"):
            ALFWorldEnv(engine="textworld")


# What it is made of.


def test_every_admissible_command_does_something_and_no_other_does() -> None:
    for index in range(6):
        game = load_game(f"embedded/train/{index}")
        world, rng = World(game), random.Random(index)
        view = world.view
        for _ in range(40):
            assert list(view.admissible) == sorted(set(view.admissible))
            for command in (*HOSTILE, view.admissible[0].upper(), view.admissible[-1] + " now"):
                if command.strip() not in view.admissible:
                    again = world.step(command)
                    assert again.text == NOTHING_HAPPENS and again[1:] == view[1:]
            view = world.step(rng.choice(view.admissible))
            assert view.text != NOTHING_HAPPENS


def test_progress_counts_conditions_and_is_taken_back() -> None:
    """Two of a kind: each object that lies where it belongs is half of it."""
    world = World(load_game("embedded/train/5"))
    assert world.game.task_type == "pick_two_obj_and_place" and world.progress == 0.0
    seen, last = [], ""
    while world.progress < 0.5:
        last = next_command(world)
        world.step(last)
        seen.append(world.progress)
    assert seen[-1] == 0.5 and set(seen[:-1]) == {0.0}
    _, thing, number, _, *place = last.split()
    world.step(f"take {thing} {number} from {' '.join(place)}")
    assert world.progress == 0.0


def test_expert_takes_over_anywhere() -> None:
    for index in range(30):
        world, rng = World(load_game(f"embedded/valid_unseen/{index}")), random.Random(index)
        view = world.view
        for _ in range(40):
            view = world.step(rng.choice(view.admissible))
        for _ in range(20):
            if not view.won:
                command = next_command(world)
                assert command in view.admissible
                view = world.step(command)
        assert view.won, world.game.name


def test_threads_share_a_game() -> None:
    game = load_game("embedded/train/0")
    commands = adventure(game, random.Random(1), 200)
    expected = replay(NativeEngine(), game, commands)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: replay(NativeEngine(), game, commands), range(64)))
    assert all(answer == expected for answer in answers)
    assert load_game("embedded/train/0") is game


@given(st.text(max_size=300))
def test_any_text_is_harmless(command: str) -> None:
    world = World(load_game("embedded/train/0"))
    view = world.view
    after = world.step(command)
    assert (after.text == NOTHING_HAPPENS) == (command.strip() not in view.admissible)
