"""The native engine: what TextWorld answered to the same commands, goals, progress, threads, the expert."""

from __future__ import annotations

import functools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import count, islice
from typing import Any

import pytest
from alfworld_tools import HOSTILE, TRACES, Adventure, official_game, problem_digest, replay

from agent_gym import ConfigError, EnvFailure
from agent_gym.envs.alfworld.data import game_names, load_game
from agent_gym.envs.alfworld.embedded.files import GRAMMARS
from agent_gym.envs.alfworld.env import ALFWorldEnv
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.game import TASK_TYPES
from agent_gym.envs.alfworld.original import TextWorld
from agent_gym.envs.alfworld.world import NOTHING_HAPPENS, AlfworldWorld

needs_original = pytest.mark.skipif(
    find_spec("textworld") is None or find_spec("alfworld") is None, reason="the extra alfworld is not installed"
)
STEPS = 50_000


@functools.cache
def traces() -> list[dict[str, Any]]:
    return json.loads(TRACES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["generated", "official"])
def test_native_engine_answers_what_textworld_answered(kind: str, request: pytest.FixtureRequest) -> None:
    found = [trace for trace in traces() if trace["game"].startswith("embedded/") == (kind == "generated")]
    assert len(found) >= len(TASK_TYPES)
    folder = request.getfixturevalue("alfworld_folder") if kind == "official" else None
    for trace in found:
        game = load_game(official_game(folder, trace["game"]) if folder else trace["game"], trace["grammar"])
        assert problem_digest(game) == trace["problem"], "the generator has changed: python tests/alfworld_tools.py"
        assert replay(game, trace["commands"]) == trace["said"], trace["game"]
        assert trace["said"][-1][2], "each ends with a solved game"


@pytest.mark.slow
@needs_original
def test_both_engines_answer_the_same_for_fifty_thousand_steps(request: pytest.FixtureRequest) -> None:
    """Random, hostile and expert commands in one process; text, commands and end are compared after each."""
    try:
        names = game_names(str(request.getfixturevalue("alfworld_folder")))
        found = [*names["train"], *names["valid_seen"]]
    except pytest.skip.Exception:
        found = []  # the generated games are enough
    official = iter(random.Random(0).sample(found, len(found)))
    original, played = TextWorld(), 0
    for number in count():
        split, grammar = ("train", "valid_seen", "valid_unseen")[number % 3], GRAMMARS[number % 2]
        # Random steps per game: fewer where the original takes seconds to begin and long to step.
        games = [(f"embedded/{split}/{number % 134}", grammar, 120)]
        games += [(f"embedded-{most}/{split}/{number % 1200}", grammar, 240) for most in (5, 8)]
        games += [(name, (None, None, *GRAMMARS)[number % 4], 60) for name in islice(official, 1)]
        for name, form, steps in games:
            game = load_game(name, form)
            commands = Adventure(game, random.Random(name), steps).commands
            assert replay(game, commands, original)[-1][2], name
            played += len(commands)
        if played >= STEPS:
            break
    original.close()


@pytest.mark.slow
@needs_original
def test_a_dead_process_is_a_failure_and_the_next_episode_has_another() -> None:
    original, game = TextWorld(), load_game("embedded/train/1")
    first = original.send(game=game.data)
    original.process.kill()  # type: ignore[union-attr]
    with pytest.raises(EnvFailure, match="TextWorld"):
        original.send(command="look")
    assert original.send(game=game.data) == first == AlfworldWorld(game).view
    original.close()


@pytest.mark.skipif(find_spec("textworld") is not None, reason="textworld is installed")
def test_the_original_engine_names_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"agentic-gym\[alfworld\].*GPL"):
        ALFWorldEnv(engine="textworld")


def test_every_admissible_command_does_something_and_no_other_does() -> None:
    for index in range(6):
        world, rng = AlfworldWorld(load_game(f"embedded/train/{index}")), random.Random(index)
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
    world = AlfworldWorld(load_game("embedded/train/5"))
    expert = Expert(world)
    assert world.game.task_type == "pick_two_obj_and_place" and world.progress == 0.0
    while world.progress == 0.0:
        last = expert.next_command()
        world.step(last)
    assert world.progress == 0.5
    _, thing, number, _, *place = last.split()
    world.step(f"take {thing} {number} from {' '.join(place)}")
    assert world.progress == 0.0


def test_expert_takes_over_anywhere() -> None:
    for index in range(30):
        world, rng = AlfworldWorld(load_game(f"embedded/valid_unseen/{index}")), random.Random(index)
        expert = Expert(world)
        for _ in range(40):
            world.step(rng.choice(world.view.admissible))
        for _ in range(20):
            if not world.view.won:
                command = expert.next_command()
                assert command in world.view.admissible
                world.step(command)
        assert world.view.won, world.game.name


def test_threads_share_a_game() -> None:
    game = load_game("embedded/train/0")
    commands = Adventure(game, random.Random(1), 200).commands
    expected = replay(game, commands)
    with ThreadPoolExecutor(16) as pool:
        assert all(answer == expected for answer in pool.map(lambda _: replay(game, commands), range(64)))
    assert load_game("embedded/train/0") is game


def test_traces_contain_what_is_easily_wrong() -> None:
    """Otherwise the two tests above could pass on commands that do little."""
    texts = "\n".join(text for trace in traces() for text in (*trace["commands"], *(view[0] for view in trace["said"])))
    rare = ["There's nothing special", "This is a normal", "You sliced", "Next to it, you see a ", "arrive at loc "]
    rare += ["This is a cold", "is a hot", "You clean", "You close", "You turn on", "Available commands:", "[look]"]
    assert [words for words in (*rare, NOTHING_HAPPENS) if words not in texts] == []
