"""The turns of live conversations on disk: each is written when it is answered, so that no kill loses one.

The first answered turn of a conversation makes a line in the record FILE.jsonl, of an episode that was interrupted. Its
later turns go into the folder FILE.jsonl.open next to it, which has a file for each live conversation: a record without
steps, then a line for each answered turn. When the episode is in the record its first line is covered with spaces,
which are nothing in JSON, and the file goes. The files of a gateway that was killed are folded into its record: within
a second by a watcher, a small process that outlives the gateway, or by the next gateway with the same record. The
watcher runs this file as a script, so that it imports nothing of agent_gym.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

SUFFIX = ".open"
INTERRUPTED = "interrupted"
"""The `truncation` of an episode that was folded: the gateway ended before it."""
_LOCK = "lock"


class Journal:
    """Writes the turns of live conversations.

    Args:
        record: the file that episodes go to.
        warn: gets a line when something cannot be written, and when it can be again.

    Raises:
        OSError: `BlockingIOError` if another gateway writes this record, others if the folder cannot be made.
    """

    def __init__(self, record: Path, warn: Callable[[str], object]) -> None:
        self._folder, self._warn, self._full = folder_of(record), warn, False
        self.writing = threading.RLock()  # held by whoever writes into the record, which a full disk may cut
        self._record, self._first = record, dict[str, list[int]]()  # the places of first lines
        self._bases: dict[str, Mapping[str, Any]] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._contexts: dict[str, list[int]] = {}
        self._pending: dict[str, list[bytes]] = {}
        self._lock = locked(self._folder)
        self.recovered = fold(record)
        if left := sorted(path.name for path in self._folder.glob("*.unreadable")):
            warn(f"{self._folder} holds conversations that cannot be read: {', '.join(left)}; they are kept there")
        words = [sys.executable, "-I", __file__, str(record.resolve())]
        # In a separate session: a signal to the gateway's group must not end it.
        self._watcher = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def begin(self, key: str, base: Mapping[str, Any]) -> None:
        """Begin a conversation; `base` is its record, without steps and rows."""
        self._contexts[key], self._pending[key], self._bases[key] = [], [], base
        self._append(key, base)

    def answered(
        self,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        prompt: Sequence[int],
        turn: Mapping[str, Any],
    ) -> None:
        """Write a turn before its answer is sent.

        Args:
            key: of the conversation.
            messages: the new ones since the last turn.
            tools: the ones that the request offered.
            prompt: (T,) all ids that the policy read; only the new ones are written.
            turn: `text`, `token_ids` (N,), `logprobs` (N,), `cut`.
        """
        context = self._contexts.get(key)
        if context is None:  # not of this gateway's record
            return
        kept = _common(context, prompt)
        line = {"messages": [*messages], "tools": [*tools], "kept": kept, "prompt": [*prompt[kept:]], **turn}
        context[kept:] = [*prompt[kept:], *turn["token_ids"]]
        self._append(key, line)
        if (base := self._bases.pop(key, None)) is not None:
            self._begin_line(key, base, line)

    def _begin_line(self, key: str, base: Mapping[str, Any], turn: Mapping[str, Any]) -> None:
        line = json.dumps(folded(b"\n".join(json.dumps(one, default=repr).encode() for one in (base, turn))))
        with suppress(OSError), self.writing, self._record.open("ab", buffering=0) as file:
            place = [os.fstat(file.fileno()).st_size, len(line) + 1]
            self._append(key, {"place": place})  # before the line, so that a kill in between is seen
            write_all(file, line.encode() + b"\n")
            self._first[key] = place

    def end(self, key: str) -> None:
        """Forget a conversation, whose episode is in the record."""
        for known in (self._contexts, self._pending, self._bases):
            known.pop(key, None)
        if place := self._first.pop(key, None):
            with self.writing:
                cover(self._record, *place)
        if file := self._files.pop(key, None):
            file.close()
            self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder if nothing is left in it, and let the watcher end."""
        for file in self._files.values():
            file.close()
        with suppress(BrokenPipeError):
            self._watcher.communicate(b"done")
        left = [path for path in self._folder.iterdir() if path.name != _LOCK]
        if not left:
            (self._folder / _LOCK).unlink(missing_ok=True)
            self._folder.rmdir()
        self._lock.close()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.jsonl"

    def _append(self, key: str, value: Mapping[str, Any]) -> None:
        """Append a line; where the disk is full it waits in memory for the next one."""
        pending = self._pending[key]
        pending.append(json.dumps(value, default=repr).encode() + b"\n")
        try:
            if key not in self._files:
                self._files[key] = self._path(key).open("ab", buffering=0)
            while pending:
                write_all(self._files[key], pending[0])
                del pending[0]
        except OSError as error:
            if not self._full:
                self._warn(f"a turn cannot be written to {self._folder}: {error.strerror}; it is kept in memory")
            self._full = True
        else:
            if self._full:
                self._warn(f"{self._folder} can be written again")
            self._full = False


def folder_of(record: Path) -> Path:
    """Return the folder of the live conversations of a record."""
    return record.with_name(record.name + SUFFIX)


def locked(folder: Path) -> IO[bytes]:
    """Make the folder and hold its lock; `BlockingIOError` if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def fold(record: Path) -> int:
    """Append the conversations that were left to the record, and return how many; the caller holds the lock."""
    count = 0
    for path in sorted(folder_of(record).glob("*.jsonl")):
        if path.is_symlink() or not path.is_file():
            continue  # not of a gateway, and what it names may be anything
        try:
            content = path.read_bytes()
            episode, place = folded(content), written(record, content)
        except (KeyError, TypeError, AttributeError, IndexError):  # damaged, or not of a gateway: it is kept
            path.rename(path.with_name(path.name + ".unreadable"))
            continue
        if episode is not None:
            if place is None or len(episode["steps"]) > 1:  # else the line of the first turn is the episode
                with record.open("ab", buffering=0) as file:
                    write_all(file, json.dumps(episode).encode() + b"\n")
                    os.fsync(file.fileno())
                if place is not None:
                    cover(record, *place)
            count += 1
        path.unlink()
    return count


def cover(record: Path, start: int, length: int) -> None:
    """Cover a line of a record with spaces, which become the beginning of the next line."""
    with suppress(OSError), record.open("r+b", buffering=0) as file:
        file.seek(start)
        if file.read(2) == b'{"' and start + length <= os.fstat(file.fileno()).st_size:  # else another file by now
            os.pwrite(file.fileno(), b" " * length, start)


def written(record: Path, content: bytes) -> tuple[int, int] | None:
    """Return where the record holds the first turn of a conversation, None if it does not; half a line is cut off."""
    lines = content.split(b"\n")
    with suppress(ValueError, TypeError, KeyError, OSError, StopIteration), record.open("r+b", buffering=0) as file:
        start, length = next(json.loads(line)["place"] for line in lines if line.startswith(b'{"place": ['))
        file.seek(start)
        found, whole = file.read(length), json.dumps(folded(b"\n".join(lines[:2]))).encode() + b"\n"
        if found == whole:
            return start, length
        if found and whole.startswith(found):  # the gateway was killed while it wrote
            file.truncate(start)
    return None


def folded(content: bytes) -> dict[str, Any] | None:
    """Return the record of a conversation from its file; None if no turn of it was answered."""
    lines = []
    for line in content.split(b"\n"):
        with suppress(ValueError, RecursionError):  # half of the last line, which a kill may leave
            lines.append(json.loads(line))
    if len(lines) < 2:
        return None
    base, *turns = (line for line in lines if "place" not in line)
    if not turns:
        return None
    if "spec" not in base:
        raise KeyError("spec")  # the first line is lost
    messages: list[Any] = []
    rows: list[dict[str, Any]] = []
    steps = []
    for number, turn in enumerate(turns):
        if not rows or turn["kept"] < len(rows[-1]["token_ids"]):
            begin = [] if not rows else rows[-1]["token_ids"][: turn["kept"]]
            rows.append({"token_ids": [], "spans": [], "logprobs": []})
            _extend(rows[-1], begin, "user", -1)
        row = rows[-1]
        _extend(row, turn["prompt"], "env" if row["token_ids"] and number else "user", number - 1)
        start = len(row["token_ids"])
        _extend(row, turn["token_ids"], "agent", number, turn["logprobs"])
        steps.append(
            {"row": len(rows) - 1, "start": start, "stop": len(row["token_ids"]), "action": turn["text"]}
            | {"observation": "", "reward": 0.0, "reward_terms": {}, "tool_calls": [], "metrics": {}, "error": None}
            | {"finish_reason": "length" if turn["cut"] else "stop", "env_seconds": 0.0}
        )
        messages += [*turn["messages"], {"role": "assistant", "content": turn["text"]}]
    opened = len(turns[0]["messages"])
    end = {"terminated": False, "truncated": True, "truncation": INTERRUPTED, "reward": 0.0}
    made = {"messages": messages, "opened": opened, "tools": turns[-1]["tools"], "steps": steps, "rows": rows}
    return {**base, **made, **end}


def _extend(
    row: dict[str, Any], ids: Sequence[int], source: str, step: int, logprobs: Sequence[float] | None = None
) -> None:
    if ids:
        start = len(row["token_ids"])
        row["token_ids"] += ids
        row["logprobs"] += logprobs or [0.0] * len(ids)
        row["spans"].append([start, start + len(ids), source, step])


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    if len(a) <= len(b) and list(b[: len(a)]) == a:
        return len(a)
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write all or nothing, where the file can be cut: half a line would spoil the next one."""
    whole, left = os.fstat(file.fileno()).st_size, memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with suppress(OSError):
            file.truncate(whole)
        raise


def watch(record: Path) -> None:
    """Wait until the gateway has ended. If it did not say "done", fold its remaining files."""
    if sys.stdin.buffer.read() == b"done":
        return
    for _ in range(100):
        if not folder_of(record).is_dir():
            return
        # A process that is killed may close its pipe before it lets go of its lock. The next gateway may have it, too.
        with suppress(BlockingIOError), locked(folder_of(record)):
            fold(record)
            with suppress(OSError):  # a file that could not be read is kept
                (folder_of(record) / _LOCK).unlink()
                folder_of(record).rmdir()
            return
        time.sleep(0.1)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
