"""Files that are not on the hub, of which the environment itself builds what it reads.

Nothing is fetched: whoever publishes such files does it where a program cannot ask for them, and says why. The class of
the environment has `build_data(source, folder, progress=...)`, and is found by the id, as `gym.make` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agent_gym.errors import ConfigError
from agent_gym.prepare.inputs import Inputs
from agent_gym.prepare.recipe import Built, Forecast, Piece, Recipe
from agent_gym.search import files


@dataclass(frozen=True)
class BuiltPiece(Piece):
    """What an environment builds of its files, a folder.

    Attributes:
        built: what that takes.
        env_id: the environment.
        source: the folder with the files, or the one file that says where they are.
    """

    built: Built
    env_id: str
    source: Path

    @property
    def path(self) -> str:
        """The folder."""
        return self.built.folder

    def make(self, folder: Path, *, progress: bool) -> None:
        """Have the environment build it; the folder appears under its name when it is complete."""
        spec = gymnasium.spec(self.env_id)
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        creator.build_data(self.source, folder / self.path, progress=progress)

    def forecast(self) -> list[Forecast]:
        """Scale what was measured."""
        size = sum(file.stat().st_size for file in _wanted(self.built, self.source))
        return [Forecast("write", self.path, round(size * self.built.growth), self.built.growth_from)]


def from_built(recipe: Recipe, built: Built, paths: Sequence[Path], urls: Mapping[Path, str] | None = None) -> Inputs:
    """Take a folder with the files, or the files.

    Args:
        recipe: for which environment.
        built: what is wanted.
        paths: where it is; nothing for what is published.
        urls: from where files were downloaded, for the manifest.

    Raises:
        ConfigError: if there is nothing, because it has to be fetched by hand, or something is missing.
    """
    if not paths:
        offers = f"fetch it by hand, and give it: --from PATH, with {built.local}; {recipe.without_download()}"
        raise ConfigError(f"{recipe.name} cannot be fetched by a program: {built.why}; {offers}")
    for path in paths:
        if not path.exists():
            raise ConfigError(f"no such file or folder: {str(path)!r}; expected {built.local}")
    # Of several files the first that is wanted stands for all: they lie side by side.
    source = next((path for path in paths if path.is_dir() or path.match(built.names[0])), paths[0])
    wanted = _wanted(built, source)
    if not wanted:
        raise ConfigError(f"{source} holds nothing that {recipe.name} is made of; expected {built.local}")
    origin = [
        {"url": urls[path]} if urls and path in urls else {"file": path.name, **files.describe(path)} for path in wanted
    ]
    fetches = [Forecast("read", str(path), path.stat().st_size, "") for path in wanted]
    piece = BuiltPiece(built, recipe.env_id, source)
    return Inputs(origin, (), None, None, tuple(fetches), (piece,))


def _wanted(built: Built, source: Path) -> list[Path]:
    folder = source if source.is_dir() else source.parent
    return sorted(path for path in folder.iterdir() if path.is_file() and any(path.match(name) for name in built.names))
