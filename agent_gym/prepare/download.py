"""A file from an address, to be gone on with after an interruption.

What has arrived stays in `<name>.partial`; the next call asks for the rest. A server says by an entity tag or a date
which version of a file it sends, and is asked for the rest of that version only: the halves of two versions would make
a file that nobody ever wrote.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from agent_gym.errors import ConfigError, writing
from agent_gym.search import files

_CHUNK = 1 << 20
_TIMEOUT_S = 30
_PAUSES_S = (1.0, 4.0)  # before the second and the third attempt


def is_url(name: str) -> bool:
    """Whether this is the address of a file."""
    return name.startswith(("http://", "https://"))


def fetch(url: str, path: Path, *, sha256: str | None = None, progress: bool = False) -> None:
    """Download a file, unless it is there; it appears under its name when it is complete.

    Args:
        url: http or https.
        path: where to.
        sha256: its checksum, if it is known beforehand.
        progress: whether to show a progress bar.

    Raises:
        ConfigError: if the server cannot be reached or has no such file, or the file is another one.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, version = path.with_name(path.name + ".partial"), path.with_name(path.name + ".version")
    for pause in (*_PAUSES_S, None):
        try:
            _receive(url, partial, version, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if pause is None or refused:
                raise ConfigError(
                    f"cannot download {url} ({_reason(error)}); what has arrived is kept, and the same command goes on "
                    "with it. A copy on this machine can be given instead of the address"
                ) from error
            time.sleep(pause)
    if sha256 is not None and files.sha256_of(partial) != sha256:
        partial.unlink()
        raise ConfigError(f"{url} is not the file that was expected: its checksum is another one; ask its publisher")
    files.replace(partial, path)
    version.unlink(missing_ok=True)


def size_of(url: str) -> int | None:
    """Ask a server how many bytes a file has; None if it does not say.

    Raises:
        ConfigError: if it cannot be reached or has no such file.
    """
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT_S) as response:
            length = response.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"cannot reach {url} ({_reason(error)})") from error
    return int(length) if length else None


def _receive(url: str, partial: Path, version: Path, progress: bool) -> None:
    """Receive what is missing, or all of it where the server cannot or does not want to go on."""
    have = partial.stat().st_size if partial.exists() and version.exists() else 0
    headers = {"Range": f"bytes={have}-", "If-Range": version.read_text()} if have else {}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # killed after the last byte
        if error.code == 416:
            partial.unlink()
            raise ConnectionError("the file has become shorter") from error
        raise
    with response:
        have = have if response.status == 206 else 0
        version.write_text(response.headers.get("ETag") or response.headers.get("Last-Modified") or "")
        if not version.read_text():
            version.unlink()  # without a version there is no going on
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(total=total, initial=have, desc=partial.stem, unit="B", unit_scale=True, disable=not progress)
        with bar, partial.open("r+b" if have else "wb", buffering=0) as file:
            file.seek(have)
            while chunk := response.read(_CHUNK):
                left = memoryview(chunk)
                with writing(partial):
                    while left:
                        left = left[file.write(left) :]
                bar.update(len(chunk))
            received = file.tell()
    if total is not None and received != total:
        raise ConnectionError(f"the connection ended after {received} of {total} bytes")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
