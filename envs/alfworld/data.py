"""Where games are: official files in a folder, or the generator; and each of them parsed once.

A game goes by a name, which is the path of its file or, for a generated one, "embedded/<split>/<number>"; in a small
room with at most 6 receptacles "embedded-6/<split>/<number>". Splits are lists of names: listing games reads none.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder, load_splits
from agent_gym.envs.alfworld import embedded
from agent_gym.envs.alfworld.embedded import EMBEDDED, GAME_FILE, ROOT, SPLIT_SIZES
from agent_gym.envs.alfworld.embedded.files import GRAMMARS, domain, grammar_text
from agent_gym.envs.alfworld.embedded.rooms import LEAST_RECEPTACLES
from agent_gym.envs.alfworld.game import TASK_TYPES, AlfworldGame, task_of
from agent_gym.errors import ConfigError, only_embedded, quoted, some_of

OFFICIAL = "official"
ALIASES = {"validation": "valid_seen", "test": "valid_unseen"}  # names of splits elsewhere here, to ALFWorld's own

_SHORT = ("pick_and_place_simple", "look_at_obj_in_light")
LADDER: tuple[Mapping[str, Any], ...] = (
    {},
    {"receptacles": 4, "task_types": _SHORT},
    {"receptacles": 6, "task_types": None},
    {"receptacles": 12, "task_types": None},
    {"receptacles": None, "task_types": None},
    {"receptacles": None, "task_types": tuple(one for one in TASK_TYPES if one not in _SHORT)},
)
"""Difficulty to arguments of `game_names`: rooms from small to as full as official ones, and types of tasks."""

_CURE = "`agent-gym prepare alfworld` downloads the official games, and data='embedded' needs none"
_TAIL = 1 << 12  # bytes at the end of a file, which hold `solvable` and, in later releases, the walkthrough
_LISTING = threading.Lock()  # the many environments of a rollout are made at once, and one of them lists
_GENERATED = re.compile(rf"{EMBEDDED}(?:-(\d{{1,3}}))?/({'|'.join(SPLIT_SIZES)})/(\d+)", re.ASCII)
_SOLVABLE = re.compile(rb'"solvable": ?(true|false|null)')


def game_names(
    data: str, task_types: Collection[str] | None = None, receptacles: int | None = None
) -> dict[str, list[str]]:
    """Return the names of games by split, under ALFWorld's names and the ones of `ALIASES`; see `ALFWorldEnv`.

    `ConfigError` if the folder does not exist, for a split without a game of the types, and for wrong arguments.
    """
    types = some_of("task_types", TASK_TYPES if task_types is None else task_types, TASK_TYPES)
    only_embedded("receptacles", receptacles, data)
    if data == EMBEDDED:
        _check_receptacles(receptacles)
        sizes = SPLIT_SIZES if receptacles is None else embedded.SMALL_SPLIT_SIZES
        source = embedded.source(receptacles)
        listed = {
            split: [f"{source}/{split}/{index}" for index in range(size) if embedded.type_of(index) in types]
            for split, size in sizes.items()
        }
    else:
        with _LISTING:
            files = _games_of(data)
        listed = {split: [str(file) for file, kind in found if kind in types] for split, found in files.items()}
    if empty := [split for split, names in listed.items() if not names]:
        raise ConfigError(f"{data}: split {empty[0]!r} has no game of the types {', '.join(types)}")
    return listed | {alias: listed[split] for alias, split in ALIASES.items() if split in listed}


def _check_receptacles(receptacles: int | None) -> None:
    if receptacles is not None and (type(receptacles) is not int or receptacles < LEAST_RECEPTACLES):
        raise ConfigError(
            f"receptacles is {receptacles!r}; it must be an integer of at least {LEAST_RECEPTACLES}, or None for rooms "
            "as full as official ones"
        )


def load_game(game: Any, grammar: str | None = None) -> AlfworldGame:
    """Return a game, parsed once for all environments of the process; `ConfigError` if there is none.

    Args:
        game: its name, the folder of its file, or the JSON object of the file.
        grammar: "current" or "legacy", whatever the file is written in; None leaves it as it is.
    """
    if isinstance(game, Mapping):
        return _parsed(game, "given", grammar)
    if not isinstance(game, str | os.PathLike):
        raise ConfigError(f"a game of ALFWorld is a path, a name or the content of a file, got {quoted(game, 200)}")
    name = os.fspath(game)
    if name.startswith((f"{EMBEDDED}/", f"{EMBEDDED}-")):
        return _generated(name, grammar)
    path = Path(os.path.abspath(Path(name).expanduser()))
    path = path / GAME_FILE if path.is_dir() else path
    try:
        return _from_file(path, path.stat().st_mtime_ns, grammar)
    except OSError as error:
        raise ConfigError(f"no game at {name!r} ({error.strerror}); expected the path of a {GAME_FILE}") from error


# 512 games are about 100 megabytes.
@functools.lru_cache(maxsize=512)
def _from_file(path: Path, _changed: int, grammar: str | None) -> AlfworldGame:
    return _parsed(path.read_text(encoding="utf-8"), str(path), grammar)


@functools.lru_cache(maxsize=512)
def _generated(name: str, grammar: str | None) -> AlfworldGame:
    found = _GENERATED.fullmatch(name)
    if found is None:
        raise ConfigError(
            f"no generated game {name!r}; their names are {EMBEDDED}/<split>/<number>, in small rooms "
            f"{EMBEDDED}-<receptacles>/<split>/<number>, with the splits {', '.join(SPLIT_SIZES)}"
        )
    receptacles = int(found[1]) if found[1] else None
    _check_receptacles(receptacles)
    return embedded.generate(found[2], int(found[3]), grammar or GRAMMARS[0], receptacles).game


def _parsed(content: Mapping[str, Any] | str, name: str, grammar: str | None) -> AlfworldGame:
    try:
        data = json.loads(content) if isinstance(content, str) else content
        if grammar is not None:
            data = {**data, "pddl_domain": domain(grammar), "grammar": grammar_text(grammar, task_of(data["grammar"]))}
        return AlfworldGame(data, name)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(f"{name} is not a game of ALFWorld ({GAME_FILE}): {quoted(error, 200)}") from error


def _games_of(data: str) -> dict[str, list[tuple[Path, str]]]:
    """List the games of a folder, or of a file of rows, by split, with their types."""
    path = Path(data).expanduser()
    if path.is_file():
        rows = load_splits(path, columns=("extra_info",))
        return {split: [_game_of(row, path, at) for at, row in enumerate(rows[split])] for split in rows}
    root = _find_root(data)
    return _official_files(root, root.stat().st_mtime_ns)


def _game_of(row: Mapping[str, Any], file: Path, at: int) -> tuple[Path, str]:
    """Return the game of a row of Agent-R1's recipe, which copies games to the folder `games` next to its rows."""
    extra = row["extra_info"]
    name = extra.get("game_relative_path") if isinstance(extra, Mapping) else None
    game = file.parent / "games" / str(name)
    below = isinstance(name, str) and not {"..", "/"} & {*Path(name).parts}
    if not below or not game.is_file():
        raise ConfigError(
            f"{file}: row {at} has extra_info.game_relative_path {quoted(name)}; it must be the path of a {GAME_FILE} "
            f"below {file.parent / 'games'}"
        )
    return game, game.parts[-3].split("-")[0]


def _find_root(data: str) -> Path:
    if data == OFFICIAL:
        places = (os.environ.get("ALFWORLD_DATA", ""), "~/.cache/alfworld", str(cache_folder() / "alfworld"))
        folders = [Path(place).expanduser() for place in places if place]
        roots = [folder / ROOT for folder in folders]
        missing = f"found no {ROOT} in {', '.join(map(str, folders))}"
    else:
        folder = Path(data).expanduser()
        roots = [folder / ROOT, folder / "games", folder]
        missing = f"{folder} holds no games: expected {ROOT}/train and so on, or train"
    for root in roots:
        if any((root / split).is_dir() for split in SPLIT_SIZES):
            return root
    raise ConfigError(f"{missing}; {_CURE}")


@functools.lru_cache(maxsize=8)
def _official_files(root: Path, _changed: int) -> dict[str, list[tuple[Path, str]]]:
    """List the playable games of each split with their types, as ALFWorld itself chooses them.

    These are the games of the six types, without sliced objects and movable receptacles, that were found solvable:
    3,553 in train, 140 in valid_seen and 134 in valid_unseen.
    """
    found = {}
    for split in SPLIT_SIZES:
        games = []
        for file in sorted((root / split).glob(f"*/*/{GAME_FILE}")):
            task = file.parts[-3]  # such as pick_heat_then_place_in_recep-Mug-None-Cabinet-3
            kind = task.split("-")[0]
            if kind in TASK_TYPES and "Sliced" not in task and file.is_file():
                # The mark is at the end of a file; parsing thousands of files would take a minute.
                with file.open("rb") as stream:
                    stream.seek(max(0, file.stat().st_size - _TAIL))
                    marks = _SOLVABLE.findall(stream.read())
                if marks and marks[-1] == b"true":
                    games.append((file, kind))
        if games:
            found[split] = games
    if not found:
        raise ConfigError(f"{root} holds no solvable game ({GAME_FILE}); {_CURE}")
    return found
