"""The native engine beside the original one over fifty thousand steps in one go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest
from alfworld_tools import adventure

from agent_gym.envs.alfworld.data import game_names, load_game
from agent_gym.envs.alfworld.embedded.files import GRAMMARS
from agent_gym.envs.alfworld.engines import TextWorldEngine

STEPS = 50_000
RANDOM_STEPS = {"official": 60, "generated": 120, "small": 240}
"""Per game: where the original takes seconds to begin and long to step, fewer than where it does not."""

needs_original = pytest.mark.skipif(
    find_spec("textworld") is None or find_spec("alfworld") is None, reason="the extra alfworld is not installed"
)


@pytest.mark.slow
@needs_original
def test_both_engines_say_the_same_for_fifty_thousand_steps(request: pytest.FixtureRequest) -> None:
    """Random, hostile and expert commands; `TextWorldEngine` compares text, commands and end after each."""
    try:
        official = official_games(request.getfixturevalue("alfworld_folder"))
    except pytest.skip.Exception:
        official = iter(())  # the generated games are enough
    played = dict.fromkeys(RANDOM_STEPS, 0)
    engine = TextWorldEngine()
    for kind, name, grammar in games(official):
        game = load_game(name, grammar)
        engine.start(game)
        commands = adventure(game, random.Random(name), RANDOM_STEPS[kind])
        for command in commands:
            engine.step(command)
        assert engine.world.progress == 1.0, name
        played[kind] += len(commands)
        if sum(played.values()) >= STEPS:
            break
    engine.close()
    print(played)


def official_games(folder: Path) -> Iterator[str]:
    """All of the sample, in an order of their own."""
    names = game_names(str(folder))
    found = [*names["train"], *names["valid_seen"]]
    return iter(random.Random(0).sample(found, len(found)))


def games(official: Iterator[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield kind, name and grammar of games by turns: official as they are, generated of both grammars."""
    splits = ("train", "valid_seen", "valid_unseen")
    for number in count():
        name = next(official, None)
        if name is not None:
            yield "official", name, (None, None, *GRAMMARS)[number % 4]
        split, grammar = splits[number % 3], GRAMMARS[number % 2]
        yield "generated", f"embedded/{split}/{number % 134}", grammar
        for most in (5, 8):
            yield "small", f"embedded-{most}/{split}/{number % 1200}", grammar
