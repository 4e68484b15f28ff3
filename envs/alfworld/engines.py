"""What runs a game: the native engine, or the original one beside it.

An engine belongs to one environment and plays one game after the other.
"""

from __future__ import annotations

from agent_gym.envs.alfworld.game import Game
from agent_gym.envs.alfworld.original import Original
from agent_gym.envs.alfworld.world import View, World
from agent_gym.errors import ConfigError, EnvFailure


class NativeEngine:
    """The engine in this package; see world.py."""

    world: World

    def start(self, game: Game) -> View:
        """Begin a game."""
        self.world = World(game)
        return self.world.view

    def step(self, command: str) -> View:
        """Give a command."""
        return self.world.step(command)

    def close(self) -> None:
        """There is nothing to give back."""


class TextWorldEngine(NativeEngine):
    """The original engine: what the policy reads comes from TextWorld, in a process of its own.

    The native engine plays along, because progress and the expert are read off its state. Both must say the same.

    Raises:
        ConfigError: if the packages are not installed.
        EnvFailure: if the process dies, or the two disagree.
    """

    def __init__(self) -> None:
        self._original = Original()

    def start(self, game: Game) -> View:
        """Begin a game."""
        return self._agreed(super().start(game), self._original.start(game.data), game.name)

    def step(self, command: str) -> View:
        """Give a command to both."""
        return self._agreed(super().step(command), self._original.step(command), command)

    def close(self) -> None:
        """End the process."""
        self._original.close()

    def _agreed(self, ours: View, theirs: View, when: str) -> View:
        if ours != theirs:
            raise EnvFailure(f"the native engine and TextWorld disagree after {when!r:.200}: {ours} and {theirs}")
        return theirs


ENGINES = {"native": NativeEngine, "textworld": TextWorldEngine}


def make_engine(name: str) -> NativeEngine:
    """Make an engine by name.

    Raises:
        ConfigError: for an unknown name, or if its packages are not installed.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine is {name!r}; it must be one of {', '.join(ENGINES)}")
    return ENGINES[name]()
