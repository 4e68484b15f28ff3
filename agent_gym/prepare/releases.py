"""Source archives of Python packages: listed by the package index, fetched by their checksums, read and never run.

The index is the one that pip is configured for, by the simple API (PEP 503 and 691). Pip itself does not fetch these:
`pip download --no-binary` runs the setup program of its download. An archive is read into memory: links, devices
and names that lead out of it are left out, and there are bounds on how many files and bytes it may hold.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx

from agent_gym.errors import ConfigError
from agent_gym.untrusted import parse_json

PYPI = "https://pypi.org/simple"
MAX_FILES, MAX_FILE_BYTES, MAX_BYTES, MAX_ARCHIVE_BYTES = 6000, 4 << 20, 24 << 20, 16 << 20
_JSON = "application/vnd.pypi.simple.v1+json"
_ARCHIVE = re.compile(r"(?P<name>.+)-(?P<version>\d[^-]*?)\.(?:tar\.gz|tgz|tar\.bz2|zip)")
_FINAL = re.compile(r"\d+(\.\d+)*(\.post\d+)?")  # neither a preview nor a development version (PEP 440)
_TIMEOUT_S = 60


class Release(NamedTuple):
    """A source archive."""

    package: str
    version: str
    source: str  # an address, or a path
    sha256: str = ""  # "" where nobody says

    @property
    def rank(self) -> tuple[tuple[int, ...], int]:
        """The place among the versions: 1.10 after 1.9, 1.0.post1 after 1.0."""
        plain, _, post = self.version.partition(".post")
        numbers = [int(part) for part in plain.split(".")]
        while numbers and not numbers[-1]:
            numbers.pop()  # 1.0 is 1
        return tuple(numbers), int(post or -1)


def normal(name: str) -> str:
    """Return the one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release_of(file: str, source: str, sha256: str = "") -> Release | None:
    """Read the name of a source archive; None for other files, and for versions that are not final releases."""
    found = _ARCHIVE.fullmatch(file)
    if not found or not _FINAL.fullmatch(found["version"]):
        return None
    return Release(normal(found["name"]), found["version"], source, sha256)


def in_order(releases: Iterator[Release]) -> list[Release]:
    """Return releases from the oldest to the newest, each version once."""
    return sorted({one.rank: one for one in releases}.values(), key=lambda one: one.rank)


def in_folders(paths: list[Path]) -> dict[str, list[Release]]:
    """Return the source archives among files and in folders, by package."""
    found: dict[str, list[Release]] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"no such file or folder: {str(path)!r}; expected source archives, NAME-VERSION.tar.gz")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (one := release_of(file.name, str(file))) and file.is_file():
                found.setdefault(one.package, []).append(one)
    if not found:
        raise ConfigError(f"{', '.join(map(str, paths))} holds no source archive; expected NAME-VERSION.tar.gz")
    return {name: in_order(iter(some)) for name, some in sorted(found.items())}


def index_address() -> str:
    """Return the address of pip's index: of its variable, or its configuration."""
    if address := os.environ.get("PIP_INDEX_URL"):
        return address.rstrip("/")
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    found = re.findall(r"^(?:global|install|download)\.index-url='(.*)'$", listed, flags=re.M)
    return found[-1].rstrip("/") if found else PYPI


def on_index(package: str) -> list[Release]:
    """Ask the index for the source archives of a package's final releases that are not withdrawn."""
    page = f"{index_address()}/{normal(package)}/"
    answer = _get(page, {"Accept": f"{_JSON}, text/html;q=0.2"}, package)
    found = _of_json(answer, page) if "json" in answer.headers.get("content-type", "") else _of_html(answer, page)
    releases = in_order(one for one in found if one.package == normal(package))
    if not releases:
        raise ConfigError(f"the index {urlsplit(page).hostname} has no source archive of {package!r}; check the name")
    return releases


def _of_json(answer: httpx.Response, page: str) -> Iterator[Release]:
    try:
        listed = [dict(one) for one in parse_json(answer.text)["files"]]
        for one in listed:
            made = release_of(str(one["filename"]), urljoin(page, str(one["url"])), one["hashes"].get("sha256", ""))
            if made and not one.get("yanked"):
                yield made
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{page} cannot be read: {error}") from error


def _of_html(answer: httpx.Response, page: str) -> Iterator[Release]:
    reader = _Links()
    reader.feed(answer.text)
    for link in reader.found:
        address, fragment = urldefrag(urljoin(page, link))
        name = PurePosixPath(urlsplit(address).path).name
        if made := release_of(name, address, fragment.removeprefix("sha256=") if "sha256=" in fragment else ""):
            yield made


class _Links(HTMLParser):
    """The links of a page that are not withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href") and "data-yanked" not in given:
            self.found.append(str(given["href"]))


def _get(address: str, headers: Mapping[str, str], named: str) -> httpx.Response:
    try:
        with httpx.stream("GET", address, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as answer:
            answer.raise_for_status()
            data = bytearray()
            for part in answer.iter_bytes():
                data += part
                if len(data) > MAX_ARCHIVE_BYTES:
                    raise ConfigError(f"{named} is larger than {MAX_ARCHIVE_BYTES >> 20} MB at {address}")
            kept = {"content-type": answer.headers.get("content-type", "")}
            return httpx.Response(answer.status_code, headers=kept, content=bytes(data))
    except httpx.HTTPError as error:
        cure = "the same command tries it again; source archives on this machine can be given by --from FOLDER"
        raise ConfigError(f"cannot fetch {named} from {address} ({error}); {cure}") from error


def fetch(release: Release) -> bytes:
    """Return the bytes of a source archive; `ConfigError` if its checksum is not the known one."""
    if urlsplit(release.source).scheme in ("http", "https"):
        data = _get(release.source, {}, f"{release.package} {release.version}").content
    else:
        data = Path(release.source).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if release.sha256 and digest != release.sha256:
        raise ConfigError(
            f"{release.package} {release.version} has the sha256 {digest}, expected {release.sha256}; nothing of it is "
            "used: fetch it again, or ask the package's authors about the change"
        )
    return data


def unpack(data: bytes, name: str) -> dict[str, bytes]:
    """Return the regular files of a source archive by their paths in it, without the folder that holds all.

    Raises:
        ConfigError: if it cannot be read, or holds more than the bounds of this module.
    """
    found: dict[str, bytes] = {}
    room = MAX_BYTES
    try:
        for path, size, read in _members(data):
            parts = PurePosixPath(path).parts
            if len(parts) < 2 or parts[0] in ("/", "..") or ".." in parts or re.search("[\\\\\0\ud800-\udfff]", path):
                continue
            room -= size
            if size > MAX_FILE_BYTES or room < 0 or len(found) >= MAX_FILES:
                raise ConfigError(
                    f"{name} is too large: at most {MAX_FILES} files, {MAX_FILE_BYTES >> 20} MB each and "
                    f"{MAX_BYTES >> 20} MB together are read"
                )
            content = read()
            if len(content) != size:
                raise ConfigError(f"{name} cannot be unpacked: {path} is not as long as it says")
            found["/".join(parts[1:])] = content
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} cannot be unpacked: {error}") from error
    return found


def _members(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Give the regular files of an archive: a name, the bytes, and a function that reads it."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            for info in zipped.infolist():
                if not info.is_dir() and (info.external_attr >> 28) in (0, 8):  # a file, by the mode of Unix
                    yield info.filename, info.file_size, partial(_read, zipped, info)
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as tarred:
        for member in tarred:
            if member.isreg() and not member.sparse:
                stream = tarred.extractfile(member)
                if stream is not None:
                    yield member.name, member.size, stream.read


def _read(zipped: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with zipped.open(info) as stream:
        return stream.read(info.file_size + 1)
