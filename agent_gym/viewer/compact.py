"""From trajectory records to the small JSON that the page carries.

A record repeats itself: the same prompt in every member of a group, the same few hundred tokens everywhere, logprobs of
0 where nothing was sampled. Here tokens and long texts are written once and then named by number, logprobs are kept for
sampled tokens only, and advantages, which are constant over a turn more often than not, as runs. So 100 short episodes
stay well below a megabyte.

The keys are read by viewer.js and by nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

_SOURCES = ("system", "user", "agent", "env")
_KEPT = ("task_id", "reward", "reward_terms", "success", "terminated", "truncated", "truncation", "failure", "seconds")
_KEPT_OF_STEPS = ("reward", "reward_terms", "tool_calls", "error", "finish_reason", "env_seconds")
_RECORDED = {*_KEPT, "version", "spec", "messages", "tools", "steps", "rows"}


class _Table:
    """Numbers each distinct value, in order of first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def compact(records: Iterable[Mapping[str, Any]], title: str) -> dict[str, Any]:
    """Condense the records of a trajectory file.

    Args:
        records: what `agent_gym.rollout.read_trajectories` yields.
        title: heading of the page.

    Returns:
        A JSON-ready object without NaN: numbers that are not finite become null.
    """
    tokens, texts = _Table(), _Table()
    episodes = [_episode(record, tokens, texts) for record in records]
    return _clean({"title": title, "tokens": tokens.values, "texts": texts.values, "episodes": episodes})


def _episode(record: Mapping[str, Any], tokens: _Table, texts: _Table) -> dict[str, Any]:
    opening = []
    for message in record["messages"]:
        if message["role"] == "assistant":
            break
        opening.append([message["role"], texts.number(str(message["content"]))])
    return {
        **{key: record.get(key) for key in _KEPT},
        "spec": record["spec"],
        "extra": {key: value for key, value in record.items() if key not in _RECORDED},
        "opening": opening,
        "tools": [tool["function"]["name"] for tool in record["tools"]],
        "steps": [_step(k, step, record["rows"][step["row"]], texts) for k, step in enumerate(record["steps"])],
        "rows": [_row(row, tokens) for row in record["rows"]],
    }


def _step(number: int, step: Mapping[str, Any], row: Mapping[str, Any], texts: _Table) -> dict[str, Any]:
    # Files written before there were summaries do not say what kind a step is.
    entry = {key: step[key] for key in _KEPT_OF_STEPS} | {"kind": step.get("kind", "act")}
    if not _is_readable(number, row):
        entry["action"], entry["observation"] = texts.number(step["action"]), texts.number(step["observation"])
    return entry


def _is_readable(step: int, row: Mapping[str, Any]) -> bool:
    """Whether the texts of the step's tokens, put together, are the text.

    They are not where a character is spread over several tokens: each of these decodes to a replacement character.
    """
    spans = [(start, stop) for start, stop, _, k in row["spans"] if k == step]
    return "tokens" in row and not any("\ufffd" in token for a, b in spans for token in row["tokens"][a:b])


def _row(row: Mapping[str, Any], tokens: _Table) -> dict[str, Any]:
    names = row.get("tokens") or [None] * len(row["token_ids"])
    sampled = [i for start, stop, source, _ in row["spans"] if source == "agent" for i in range(start, stop)]
    entry: dict[str, Any] = {
        "tokens": [tokens.number(pair) for pair in zip(row["token_ids"], names, strict=True)],
        "spans": [[stop - start, _SOURCES.index(source), step] for start, stop, source, step in row["spans"]],
        "logprobs": [_short(row["logprobs"][i]) for i in sampled],
    }
    if "advantages" in row:
        entry["advantages"] = _runs([_short(row["advantages"][i]) for i in sampled])
    return entry


def _runs(values: Sequence[float]) -> list[list[float]]:
    return [[value, len(list(group))] for value, group in groupby(values)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _clean(value: Any) -> Any:
    """Replace what JSON or UTF-8 cannot hold: numbers that are not finite, and lone surrogates."""
    if isinstance(value, float):
        # A whole number is written without ".0": there are thousands of them.
        return None if not math.isfinite(value) else int(value) if value.is_integer() else value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value
