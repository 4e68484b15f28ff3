"""Which split a file of rows is: one function from names to splits, and the files of a folder by split.

A split is named by a word of the file's name, in any place and any case, else by a folder that the file is in. Where
that leaves two answers there is none: two files of one split that are not parts of one, or two splits in one name, are
refused. Nothing here depends on the order of the alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError
from agent_gym.row_files import SUFFIXES, are_records, suffix_of
from agent_gym.untrusted import read_json

SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training", "trn", "trainset"), "train"),
    **dict.fromkeys(("validation", "val", "valset", "validationset"), "validation"),
    "valid": "valid",
    **dict.fromkeys(("dev", "development", "devset"), "dev"),
    **dict.fromkeys(("test", "testing", "tst", "testset"), "test"),
}
"""The words of a name, in small letters, and the split that each names."""
SPLIT_NAMES = ("train", "validation", "valid", "dev", "test")
"""The names of the splits of files and folders; the order in which a folder's are listed."""
_WEAK = ("eval", "evaluation")  # also words for a kind of program or of task, so that any of the others decides
_QUALIFIED = ("seen", "unseen")  # as ALFWorld and others have two of one kind
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NUMBERED = re.compile(r"(?P<before>.*?)[-_.]?(?P<n>\d+)-of-(?P<all>\d+)(?P<after>.*)", re.DOTALL)
_COUNTED = re.compile(r"(?P<before>.*?)(?:^|[-_.]|part|shard)(?P<n>\d+)", re.DOTALL)
_NO_ROWS = re.compile(
    r"(dataset_infos?|dataset_dict|state|manifest|croissant|package|package-lock|tsconfig)\.json|cache-.*\.arrow"
)
_PROSE = re.compile(r"(readme|licen[cs]e|notice|citation|changelog|makefile|dockerfile|thumbs\.db|desktop\.ini)\b.*"
                    r"|.*\.(md|rst|py|ya?ml|lock|toml|cfg|ini|sh|ipynb|sha256|md5|metadata|crc|png|jpe?g|svg|pdf|bib)"
                    r"|_success", re.IGNORECASE)  # fmt: skip
_LEVELS = 4  # of folders below the one that is given


class FoundFiles(NamedTuple):
    """The files of a folder."""

    splits: Mapping[str, Sequence[Path]]  # in the order of their parts
    others: Sequence[Path]  # next to them, files of rows whose names hold no split
    unread: Sequence[Path]  # files that hold no rows as far as their names show


def split_word(name: str) -> str | None:
    """Return the split that a name holds, None if it holds none.

    Raises:
        ConfigError: if it holds two.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    found = dict.fromkeys(SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS)
    if not found:
        return "validation" if any(word in _WEAK for word in words) else None
    kinds = {split if split in ("train", "test") else "held out" for split in found}
    if len(kinds) > 1:
        raise ConfigError(f"the name {name!r} holds two splits, {' and '.join(found)}; give the file another name")
    (split, *_) = found
    return next((f"{split}_{word}" for word in words if word in _QUALIFIED), split)


class FolderSplits(dict[str, Any]):
    """The splits of a folder. A single one is not taken where no split was named."""


def default_split(splits: Mapping[str, Any]) -> str | None:
    """Return the split that is played where none is named: "train", or one that was given alone, by file or in Python.

    A folder without "train", and several splits without it, have none: the first of them is often the test.
    """
    if "train" in splits:
        return "train"
    alone = len(splits) == 1 and not (isinstance(splits, FolderSplits) and splits.keys() <= {*SPLIT_NAMES})
    return next(iter(splits)) if alone else None


def split_of(file: Path) -> str:
    """Return the split that a file is when it is given alone: that of its name, else "train"."""
    return split_word(stem_of(file)) or "train"


def stem_of(file: Path) -> str:
    """Return the name of a file without the suffix of its format."""
    return file.name[: len(file.name) - len(suffix_of(file.name))] if suffix_of(file.name) else file.stem


def find_files(folder: Path, config: str | None = None, pass_over: Callable[[Path], bool] | None = None) -> FoundFiles:
    """Find the files of rows of a folder, by split, training first.

    Args:
        folder: with a file per split; with a folder per split; a folder of `save_to_disk` of `datasets`; or a snapshot
            of a data set of the hub. Hidden files, texts about the data, and files with facts about them are ignored.
        config: which of several folders to take, as the configurations of a hub data set are.
        pass_over: says which files are not meant.

    Raises:
        ConfigError: if no file of rows is found, two files are of one split and no parts of one, or parts are missing.
    """
    folder = _snapshot(folder)
    if config and (folder / config).is_dir():
        folder = folder / config
    if saved := _saved(folder):
        return FoundFiles(saved, (), ())
    levels: list[list[Path]] = []
    named: dict[str, list[Path]] = {}
    others: list[Path] = []
    for level in _levels(folder, pass_over or (lambda file: False)):
        levels.append(level)
        for file in level:
            if suffix_of(file.name) and (split := split_below(file, folder)):
                named.setdefault(split, []).append(file)
        if named:
            listed = {file for files in named.values() for file in files}
            others = [file for file in level if suffix_of(file.name) and file not in listed]
            break
    unread = [file for level in levels for file in level if not suffix_of(file.name)]
    if not named:
        named, others = _without_names(levels, folder), []
    order = [*(name for name in SPLIT_NAMES if name in named), *sorted(named.keys() - set(SPLIT_NAMES))]
    return FoundFiles({split: _parts(named[split], split, folder) for split in order}, others, unread)


def _levels(folder: Path, pass_over: Callable[[Path], bool]) -> Iterator[list[Path]]:
    """Yield the files of each level below a folder, without the ones that a rule ignores."""
    folders = [folder]
    for _ in range(_LEVELS + 1):
        inside = sorted(path for one in folders for path in one.iterdir() if not _ignored(path.name))
        yield [path for path in inside if path.is_file() and not pass_over(path)]
        folders = [path for path in inside if path.is_dir()]


def _ignored(name: str) -> bool:
    return name.startswith((".", "__")) or bool(_NO_ROWS.fullmatch(name.lower()) or _PROSE.fullmatch(name))


def split_below(file: Path, folder: Path) -> str | None:
    """Return the split that the name of a file holds, else that of the nearest folder, below the one that is given."""
    for name in (stem_of(file), *reversed(file.relative_to(folder).parts[:-1])):
        if split := split_word(name):
            return split
    return None


def rows_files(folder: Path) -> list[Path]:
    """Return the files of rows of the first level that has some, of a folder or a snapshot of the hub."""
    levels = _levels(_snapshot(folder), lambda file: False)
    return next((some for level in levels if (some := [file for file in level if suffix_of(file.name)])), [])


def are_parts(files: Sequence[Path]) -> bool:
    """Whether several files are the parts of one by their names."""
    parts = [_of_part(file) for file in files]
    return len({shared for shared, *_ in parts}) == 1 and len({number for _, number, _ in parts} - {None}) == len(files)


def _without_names(levels: Iterable[Sequence[Path]], folder: Path) -> dict[str, list[Path]]:
    """Name the splits where no name holds one: one file, or the parts of one, are "train", others go by their names."""
    files = next((some for level in levels if (some := [file for file in level if suffix_of(file.name)])), [])
    if not files:
        raise ConfigError(f"{folder} holds no {', '.join(SUFFIXES)} file; expected for example train.jsonl")
    if len({_of_part(file)[0] for file in files}) == 1:
        return {"train": [*files]}
    if are_records(files):
        return {split_word(folder.name) or "train": [*files]}
    named: dict[str, list[Path]] = {}
    for file in files:
        named.setdefault(_of_part(file)[0][0] or stem_of(file), []).append(file)
    return named


def _of_part(file: Path) -> tuple[tuple[str, str, Path], int | None, int | None]:
    """Return the common name of a file's parts, this part's number, and their count, as far as its name tells."""
    stem = stem_of(file)
    if found := _NUMBERED.fullmatch(stem):
        shared = f"{found['before']}{found['after']}", suffix_of(file.name), file.parent
        return shared, int(found["n"]), int(found["all"])
    if found := _COUNTED.fullmatch(stem):
        return (found["before"], suffix_of(file.name), file.parent), int(found["n"]), None
    return (stem, suffix_of(file.name), file.parent), None, None


def _parts(files: Sequence[Path], split: str, folder: Path) -> list[Path]:
    """Return the files of a split in the order of their parts; `ConfigError` if they are not the parts of one file."""
    parts = sorted((number or 0, file) for file in files for _, number, _ in [_of_part(file)])
    (_, number, total), *_ = (_of_part(file) for file in files)
    names = ", ".join(str(file.relative_to(folder)) for file in files[:6])
    if not total and are_records(files):
        return sorted(files, key=_in_order)
    if len(files) > 1:
        shared = {_of_part(file)[0] for file in files}
        counted = [number for number, _ in parts]
        if len(shared) > 1 or number is None or len(set(counted)) < len(counted):
            places = {file.parent for file in files}
            cure = "give the folder of one of them" if len(places) > 1 else "give one of them, or take the others away"
            told = "two files" if len(files) == 2 else f"{len(files):,} files"
            raise ConfigError(f"{folder} holds {told} of the split {split!r}, {names}; {cure}")
    wanted = range(total) if total else range(parts[0][0], parts[0][0] + len(parts))
    if total is not None or len(files) > 1:
        there = [number for number, _ in parts]
        if there != [*wanted] or (total is None and there[0] > 1):
            told = f"{len(there)} of {total}" if total else f"those numbered {', '.join(map(str, there[:8]))}"
            raise ConfigError(f"{folder}: of the parts of the split {split!r} there are {told}; fetch the others")
    return [file for _, file in parts]


def _in_order(file: Path) -> list[tuple[str, int]]:
    """Return a key by which 2.json comes before 10.json."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(file))]


def _snapshot(folder: Path) -> Path:
    """Return the newest state of a data set in the cache of the hub's client; any other folder as it is."""
    states = folder / "snapshots"
    if not states.is_dir():
        return folder
    main, there = folder / "refs" / "main", sorted(path for path in states.iterdir() if path.is_dir())
    if main.is_file() and (chosen := states / main.read_text(encoding="utf-8").strip()) in there:
        return chosen
    if len(there) != 1:
        raise ConfigError(f"{states} holds {len(there)} states; give the folder of one of them")
    return there[0]


def _saved(folder: Path) -> dict[str, list[Path]] | None:
    """Return the files that `save_to_disk` wrote, of one data set or of several splits."""
    if isinstance(names := _facts(folder / "dataset_dict.json").get("splits"), list):
        return {split: files for name in names for split, files in _saved_files(folder / str(name), str(name)).items()}
    if (folder / "state.json").is_file():
        # Both halves of a data set that was divided say of themselves that they are of its old split.
        return _saved_files(folder, split_word(folder.name) or _split_of_state(folder) or "train") or None
    return None


def _split_of_state(folder: Path) -> str | None:
    name = _facts(folder / "state.json").get("_split")
    return split_word(name) if isinstance(name, str) else None


def _saved_files(folder: Path, split: str) -> dict[str, list[Path]]:
    listed = _facts(folder / "state.json").get("_data_files")
    names = [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    files = [folder / str(name) for name in names]
    if missing := [file for file in files if not file.is_file()]:
        raise ConfigError(f"{missing[0]} is not there, and {folder / 'state.json'} names it; save the data set again")
    if not files and folder.name != split:
        return {}
    if not files:
        raise ConfigError(f"{folder} holds no rows; save the data set again")
    return {split: files}


def _facts(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
