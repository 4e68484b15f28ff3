"""Writes a git repository without git: the same bytes on every machine, and no process for a task that is only drawn.

The formats are the ones of git's documentation, gitformat-index and "Git Internals: Git Objects".
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_WHEN = 1_700_000_000
_HOUR = 3600
AUTHOR = "Ada <ada@example.com>"


def repository(commits: Sequence[Mapping[str, Any]], branches: Mapping[str, int]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of `.git`, by path, and the hashes of the commits.

    Args:
        commits: each with `files` (path to text, in one folder), `message`, and `parent`, the number of an earlier one.
        branches: names to numbers of commits; the first one is checked out.
    """
    made: dict[str, bytes] = {}

    def store(kind: str, body: bytes) -> bytes:
        name = object_name(kind, body)
        made[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(_header(kind, body) + body)
        return bytes.fromhex(name)

    hashes: list[str] = []
    for number, commit in enumerate(commits):
        entries = (f"100644 {path}\0".encode() + store("blob", text.encode()) for path, text in _files(commit))
        lines = [f"tree {store('tree', b''.join(entries)).hex()}"]
        lines += [f"parent {hashes[commit['parent']]}"] if commit.get("parent") is not None else []
        lines += [f"{role} {AUTHOR} {_WHEN + _HOUR * number} +0000" for role in ("author", "committer")]
        hashes.append(store("commit", "\n".join([*lines, "", commit["message"], ""]).encode()).hex())
    head, *_ = branches
    index = b""
    for path, text in _files(commits[branches[head]]):
        blob = store("blob", text.encode())
        # No times and sizes of files: git compares contents then, and fills them in.
        entry = struct.pack(">10I20sH", *[0] * 6, 0o100644, 0, 0, 0, blob, len(path)) + path.encode()
        index += entry + b"\0" * (8 - len(entry) % 8)
    index = b"DIRC" + struct.pack(">II", 2, len(commits[branches[head]]["files"])) + index
    made["index"] = index + hashlib.sha1(index, usedforsecurity=False).digest()
    made["HEAD"] = f"ref: refs/heads/{head}\n".encode()
    made["config"] = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
    made |= {f"refs/heads/{name}": f"{hashes[number]}\n".encode() for name, number in branches.items()}
    return made, hashes


def object_name(kind: str, body: bytes) -> str:
    """Return the hash by which git knows an object."""
    return hashlib.sha1(_header(kind, body) + body, usedforsecurity=False).hexdigest()


def _header(kind: str, body: bytes) -> bytes:
    return f"{kind} {len(body)}\0".encode()


def _files(commit: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted(commit["files"].items())
