"""Reads the policy's files where its session has ended: which of the package differ from the ones at the start.

A program for the sandbox. It runs in the place of tests: no process of the policy is left, and nothing that the policy
has set is in its way. Only regular files are read, of the package alone, and no link is followed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat

_MAX_BYTES = 2 << 20
_FOLDER = "/app"


def main() -> None:
    """Print the differences as a line of JSON."""
    with open("/tests/before.json") as file:
        asked = json.load(file)
    found: dict[str, bytes] = {}
    for own in asked["own"]:
        if not _is_reached_by_a_link(own):
            for path in _files(f"{_FOLDER}/{own}".rstrip("/")):
                _read(path, found, asked["before"])
    deleted = [path for path in asked["before"] if path not in found]
    before = asked["before"]
    changed = {path: data for path, data in found.items() if hashlib.sha256(data).hexdigest() != before.get(path)}
    if sum(map(len, changed.values())) > _MAX_BYTES:
        print(json.dumps({"error": f"the changed files have more than {_MAX_BYTES >> 20} MB"}))
        return
    texts = {path: base64.b64encode(data).decode() for path, data in changed.items()}
    print(json.dumps({"changed": texts, "deleted": deleted}))


def _is_reached_by_a_link(own: str) -> bool:
    parts = own.rstrip("/").split("/")
    return any(os.path.islink(f"{_FOLDER}/{'/'.join(parts[:end])}") for end in range(1, len(parts) + 1))


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [f"{folder}/{name}" for folder, _, names in os.walk(path, followlinks=False) for name in names]


def _read(path: str, found: dict[str, bytes], before: dict[str, str]) -> None:
    name = os.path.relpath(path, _FOLDER)
    try:
        name.encode()  # other names are not the package's
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, UnicodeError):
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            # A file that is too large is read so far that the sum above says so.
            found[name] = file.read(_MAX_BYTES + 1 if name not in before else 32 << 20)


if __name__ == "__main__":
    main()
