"""The cost of judging, its limits, and a cache of answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agent_gym.errors import ConfigError, RolloutError, quoted
from agent_gym.untrusted import parse_json

if TYPE_CHECKING:
    from agent_gym.judges.judge import Judge

COUNTS = ("requests", "cached", "unreadable", "failed", "read_tokens", "sampled_tokens", "cost", "pairs", "flips")
"""The counts: requests, questions that needed none, answers without a verdict, episodes without a reward, tokens, their
price, pairs that were asked about in both orders, and pairs whose verdict changed with it."""


class JudgeUsage:
    """Counts for one judge in one process. `totals` only grow, so that other threads may read them at any time."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.totals: dict[str, float] = dict.fromkeys(COUNTS, 0)
        for name in ("max_requests", "max_tokens", "max_cost"):
            limit = getattr(judge, name)
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise ConfigError(f"{name} is {limit!r}; it must be a number above 0, or left out for no limit")
        if min(judge.price_in, judge.price_out) < 0:
            raise ConfigError(f"price_in is {judge.price_in} and price_out {judge.price_out}; no price is below 0")
        if judge.max_cost is not None and not judge.price_in + judge.price_out:
            raise ConfigError("max_cost needs price_in and price_out, the prices of a million tokens")

    def begin(self) -> None:
        """Count a request; `RolloutError` if a limit is reached. Tokens of requests under way may go beyond theirs."""
        spent = self.totals
        tokens = spent["read_tokens"] + spent["sampled_tokens"]
        for name, used in (("max_requests", spent["requests"]), ("max_tokens", tokens), ("max_cost", spent["cost"])):
            if (limit := getattr(self._judge, name)) is not None and used >= limit:
                raise RolloutError(
                    f"the judge has used up {name} ({used:g} of {limit:g}): raise it and resume; with a cache nothing "
                    "is asked twice"
                )
        spent["requests"] += 1

    def end(self, tokens: tuple[int, int] | None) -> None:
        """Count an answer; `RolloutError` if a limit depends on tokens and the server does not count them."""
        if tokens is None:
            if self._judge.max_tokens is not None or self._judge.max_cost is not None:
                raise RolloutError("the judge's server reports no usage: only max_requests can be a limit there")
            return
        read, sampled = tokens
        self.totals["read_tokens"] += read
        self.totals["sampled_tokens"] += sampled
        self.totals["cost"] += (read * self._judge.price_in + sampled * self._judge.price_out) / 1e6


class Cache:
    """Verdicts by their questions, in a SQLite file that runs one after the other and processes at once may share.

    Without a path it is in memory. A file belongs on a disk of this machine: it is kept in WAL mode. `ConfigError` if
    it cannot be opened, `RolloutError` if it breaks later.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path or ":memory:"
        try:
            self._db = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # no wait for the disk at each answer
            self._db.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, numbers TEXT, answer TEXT)")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"the judge's cache {path} cannot be opened: {error}; name another file") from error

    def get(self, key: str) -> list[int] | None:
        with self._breaking():
            found = self._db.execute("SELECT CAST(numbers AS BLOB) FROM verdicts WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        with suppress(ValueError, AttributeError):
            numbers = parse_json(found[0].decode())
            if isinstance(numbers, list) and all(type(one) is int for one in numbers):
                return numbers
        raise RolloutError(f"the judge's cache {self._path} holds no verdict: {quoted(found[0])}; remove it")

    def put(self, key: str, numbers: list[int], answer: str) -> None:
        """Keep a verdict, and the whole answer for people."""
        answer = answer.encode("utf-8", "replace").decode()
        with self._breaking():
            self._db.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", (key, json.dumps(numbers), answer))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise RolloutError(f"the judge's cache {self._path} broke: {error}") from error
