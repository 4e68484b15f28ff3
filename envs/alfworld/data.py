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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder
from agent_gym.envs.alfworld import embedded
from agent_gym.envs.alfworld.embedded import EMBEDDED, GAME_FILE, ROOT, SPLIT_SIZES
from agent_gym.envs.alfworld.embedded.files import GRAMMARS, domain, grammar_text
from agent_gym.envs.alfworld.embedded.rooms import LEAST_RECEPTACLES
from agent_gym.envs.alfworld.game import TASK_TYPES, Game, task_of
from agent_gym.errors import ConfigError

OFFICIAL = "official"
ALIASES = {"validation": "valid_seen", "test": "valid_unseen"}
"""What the other environments here call their splits, to ALFWorld's own names."""

_CURE = "`agent-gym prepare alfworld` downloads the official games, and data='embedded' needs none"
_TAIL = 1 << 12  # bytes at the end of a file, which hold `solvable` and, in later releases, the walkthrough
_LISTING = threading.Lock()  # the many environments of a rollout are made at once, and only one of them has to list
_GENERATED = re.compile(rf"{EMBEDDED}(-(?P<receptacles>\d{{1,3}}))?/(?P<split>\w+)/(?P<number>\d+)", re.ASCII)
_SOLVABLE = re.compile(rb'"solvable": ?(true|false|null)')


def game_names(
    data: str, task_types: Sequence[str] | None = None, receptacles: int | None = None
) -> dict[str, list[str]]:
    """List the games of a source.

    Args:
        data: "embedded"; "official", which is looked for in `$ALFWORLD_DATA`, in ALFWorld's own cache and where
            `agent-gym prepare` puts it; or the folder that holds `json_2.1.1`, or `train`, `valid_seen` and so on.
        task_types: keep only games of these types.
        receptacles: of generated games, the most that a room has; None for rooms as full as official ones.

    Returns:
        Split to names: ALFWorld's splits, and under their aliases `validation` and `test` once more.

    Raises:
        ConfigError: for an unknown type, if there is no such folder, if a split has no game of the types, or for too
            few receptacles, or any number of them with games that are given.
    """
    types = (task_types,) if isinstance(task_types, str) else tuple(TASK_TYPES if task_types is None else task_types)
    if not types or set(types) - set(TASK_TYPES):
        raise ConfigError(f"task_types is {task_types!r}; it must name some of {', '.join(TASK_TYPES)}")
    _check_receptacles(receptacles, data)
    if data == EMBEDDED:
        sizes = SPLIT_SIZES if receptacles is None else embedded.SMALL_SPLIT_SIZES
        source = embedded.source(receptacles)
        listed = {
            split: [f"{source}/{split}/{index}" for index in range(size) if embedded.type_of(index) in types]
            for split, size in sizes.items()
        }
    else:
        root = _find_root(data)
        with _LISTING:
            files = _official_files(str(root), root.stat().st_mtime_ns)
        listed = {split: [str(file) for file, kind in found if kind in types] for split, found in files.items()}
    empty = [split for split, names in listed.items() if not names]
    if empty:
        raise ConfigError(f"{data}: split {empty[0]!r} has no game of the types {', '.join(types)}")
    return listed | {alias: listed[split] for alias, split in ALIASES.items() if split in listed}


def _check_receptacles(receptacles: int | None, data: str) -> None:
    if receptacles is not None and data != EMBEDDED:
        raise ConfigError(
            f"receptacles is {receptacles!r}, but the rooms of data={data!r} are as they are; leave it out, or leave "
            f"out data for generated games"
        )
    if receptacles is not None and (type(receptacles) is not int or receptacles < LEAST_RECEPTACLES):
        raise ConfigError(
            f"receptacles is {receptacles!r}; it must be an integer of at least {LEAST_RECEPTACLES}, or None for rooms "
            "as full as official ones"
        )


def load_game(game: Any, grammar: str | None = None) -> Game:
    """Return a game, parsed once for all environments of the process.

    Args:
        game: its name, the folder of its file, the JSON object of the file, or a game.
        grammar: "current" or "legacy", whatever the file is written in; None leaves it as it is.

    Raises:
        ConfigError: if there is no such game, or the file is none.
    """
    if isinstance(game, Game):
        return game
    if isinstance(game, Mapping):
        return _parsed(game, "given", grammar)
    if not isinstance(game, str | os.PathLike):
        raise ConfigError(f"a game of ALFWorld is a path, a name or the content of a file, got {game!r:.200}")
    name = os.fspath(game)
    if name.startswith((f"{EMBEDDED}/", f"{EMBEDDED}-")):
        return _generated(name, grammar)
    path = Path(os.path.abspath(Path(name).expanduser()))
    path = path / GAME_FILE if path.is_dir() else path
    try:
        return _from_file(str(path), path.stat().st_mtime_ns, grammar)
    except OSError as error:
        raise ConfigError(f"no game at {name!r} ({error.strerror}); expected the path of a {GAME_FILE}") from error


# 512 games are about 100 megabytes.
@functools.lru_cache(maxsize=512)
def _from_file(path: str, _changed: int, grammar: str | None) -> Game:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no game: {error}") from error
    return _parsed(data, path, grammar)


@functools.lru_cache(maxsize=512)
def _generated(name: str, grammar: str | None) -> Game:
    found = _GENERATED.fullmatch(name)
    if found is None or found["split"] not in SPLIT_SIZES:
        raise ConfigError(
            f"no generated game {name!r}; their names are {EMBEDDED}/<split>/<number>, in small rooms "
            f"{EMBEDDED}-<receptacles>/<split>/<number>, with the splits {', '.join(SPLIT_SIZES)}"
        )
    receptacles = int(found["receptacles"]) if found["receptacles"] else None
    _check_receptacles(receptacles, EMBEDDED)
    return embedded.generate(found["split"], int(found["number"]), grammar or GRAMMARS[0], receptacles).game


def _parsed(data: Any, name: str, grammar: str | None) -> Game:
    if grammar is not None:
        try:
            data = {**data, "pddl_domain": domain(grammar), "grammar": grammar_text(grammar, task_of(data["grammar"]))}
        except (KeyError, TypeError, ValueError):
            pass  # it is no game, and `Game` reports why
    return Game(data, name)


def _find_root(data: str) -> Path:
    """Return the folder of the splits."""
    if data == OFFICIAL:
        places = [Path("~/.cache/alfworld").expanduser(), cache_folder() / "alfworld"]
        if os.environ.get("ALFWORLD_DATA"):
            places.insert(0, Path(os.environ["ALFWORLD_DATA"]))
        roots = [place / ROOT for place in places]
        missing = f"found no {ROOT} in {', '.join(map(str, places))}"
    else:
        folder = Path(data).expanduser()
        roots = [folder / ROOT, folder]
        missing = f"{folder} holds no games: expected {ROOT}/train and so on, or train"
    for root in roots:
        if any((root / split).is_dir() for split in SPLIT_SIZES):
            return root
    raise ConfigError(f"{missing}; {_CURE}")


@functools.lru_cache(maxsize=8)
def _official_files(root: str, _changed: int) -> dict[str, list[tuple[Path, str]]]:
    """List the playable games of each split with their types, as ALFWorld itself chooses them.

    These are the games of the six types, without sliced objects and movable receptacles, that were found solvable:
    3,553 in train, 140 in valid_seen and 134 in valid_unseen.
    """
    found = {}
    for split in SPLIT_SIZES:
        games = []
        for file in sorted(Path(root, split).glob(f"*/*/{GAME_FILE}")):
            task = file.parts[-3]  # such as pick_heat_then_place_in_recep-Mug-None-Cabinet-3
            kind = task.split("-")[0]
            if kind in TASK_TYPES and "Sliced" not in task:
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
