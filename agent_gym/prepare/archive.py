"""Archives of files that an environment reads as they are: fetched, and unpacked into one folder.

What an archive holds beside the files that are wanted (pictures, plans, another layout) stays in it. Files of local
folders are taken in the same way, so that what somebody has unpacked already can be given too.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from agent_gym.errors import ConfigError
from agent_gym.prepare.inputs import Inputs
from agent_gym.prepare.recipe import Archive, Forecast, Piece
from agent_gym.search import files

_BY_HAND = "unpack it yourself, and give the folder"
_CHUNK = 1 << 20
_GROWTH = 4  # times the bytes of the published archive may another one unpack to


@dataclass(frozen=True)
class UnpackedPiece(Piece):
    """The folder with all wanted files of some archives and folders.

    Attributes:
        archive: says what is wanted.
        sources: where it is.
    """

    archive: Archive
    sources: tuple[Path, ...]

    @property
    def path(self) -> str:
        """The folder."""
        return self.archive.folder

    def make(self, folder: Path, *, progress: bool) -> None:
        """Unpack; the folder appears under its name when it is complete.

        Raises:
            ConfigError: if a source is damaged, or none has a wanted file.
        """
        unfinished = folder / f"{self.path}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        if not sum(self._unpack(source, unfinished, progress) for source in self.sources):
            where = ", ".join(map(str, self.sources))
            raise ConfigError(f"{where} holds no file that is wanted; expected {self.archive.local}")
        files.replace(unfinished, folder / self.path)

    def _unpack(self, source: Path, target: Path, progress: bool) -> int:
        """Write what is wanted of one source, and count it."""
        count, room = 0, _GROWTH * self.archive.unpacked
        try:
            for name, open_file in tqdm(_members(source), desc=source.name, unit=" files", disable=not progress):
                found = self.archive.wanted.search(name)
                if found:
                    if (target / found[0]).exists():
                        raise ConfigError(f"{source} holds {found[0]} once more; give each file in one source")
                    _write(target / found[0], open_file(), room)
                    room -= (target / found[0]).stat().st_size
                    count += 1
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, EOFError) as error:
            raise ConfigError(f"{source} cannot be unpacked: {error}; fetch it again") from error
        except RuntimeError as error:  # a password, or a method of packing that Python does not know
            raise ConfigError(f"{source} cannot be unpacked: {error}; {_BY_HAND}") from error
        return count

    def rows(self, folder: Path) -> int:
        """Count the files."""
        return sum(file.is_file() for file in (folder / self.path).rglob("*"))

    def forecast(self) -> list[Forecast]:
        """Scale what was measured."""
        return [Forecast("write", self.path, self.archive.unpacked, self.archive.size_from)]


def from_archives(archive: Archive, paths: Sequence[Path], urls: Mapping[Path, str] | None = None) -> Inputs:
    """Take archives, or folders in which somebody has unpacked them.

    Args:
        archive: says what is wanted.
        paths: where it is.
        urls: from where archives were downloaded, for the manifest.

    Raises:
        ConfigError: if one is not there, or is neither.
    """
    for path in paths:
        if not path.exists():
            raise ConfigError(f"no such file or folder: {str(path)!r}; expected {archive.local}")
        if not (path.is_dir() or zipfile.is_zipfile(path) or tarfile.is_tarfile(path)):
            raise ConfigError(f"{path} is neither a folder nor a zip or tar archive; expected {archive.local}")
    origin = [{"url": urls[path]} if urls and path in urls else _origin(path) for path in paths]
    fetches = [Forecast("read", str(path), _size(path), "") for path in paths]
    return Inputs(origin, (), None, None, tuple(fetches), (UnpackedPiece(archive, tuple(paths)),))


def published(archive: Archive) -> list[Forecast]:
    """Say what fetching and unpacking the archive takes."""
    fetch = Forecast("fetch", archive.url, archive.size, archive.size_from)
    return [fetch, *UnpackedPiece(archive, ()).forecast()]


def _write(target: Path, stream: IO[bytes] | None, room: int) -> None:
    """Write a file of at most `room` bytes."""
    if stream is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with stream, target.open("wb") as file:
        while chunk := stream.read(_CHUNK):
            if file.tell() + len(chunk) > room:
                raise ConfigError(f"the archive unpacks to more than {_GROWTH} times the bytes expected; {_BY_HAND}")
            file.write(chunk)


def _origin(path: Path) -> dict[str, Any]:
    if path.is_file():
        return {"file": path.name, **files.describe(path)}
    digest = hashlib.sha256()
    for file in _files_in(path):
        digest.update(f"{file.relative_to(path).as_posix()} {files.sha256_of(file)}\n".encode())
    return {"file": path.name, "bytes": _size(path), "sha256": digest.hexdigest()}


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (_files_in(path) if path.is_dir() else [path]))


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _members(source: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """Give the files of an archive or a folder: a name with slashes, and what opens it."""
    if source.is_dir():
        for file in _files_in(source):
            yield f"{source.resolve().name}/{file.relative_to(source).as_posix()}", partial(_open, file)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as zipped:
            for name in sorted(name for name in zipped.namelist() if not name.endswith("/")):
                yield name, partial(zipped.open, name)
    else:
        with tarfile.open(source) as tarred:
            for member in tarred:
                if member.isfile():
                    yield member.name, partial(tarred.extractfile, member)


def _open(file: Path) -> IO[bytes]:
    return file.open("rb")
