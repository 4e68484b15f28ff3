"""Trajectories on disk: one JSON object per line, with everything needed to look at an episode and to replay it.

A row has the text of every token, so that the viewer needs no tokenizer. Each image is in a record once, and messages
and rows name it by its number. docs/evaluate.md explains every field; `replaying.py` plays a record again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agent_gym.errors import ConfigError, quoted, whole_file, writing
from agent_gym.images import Image, Shown
from agent_gym.public import public
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.failures import Failure
from agent_gym.transcript import KINDS, Span, kind_of
from agent_gym.untrusted import lines_of
from agent_gym.untrusted import misfit as shape_misfit

FORMAT_VERSION = 1
_NAMED = 10  # most lines that a message names
_NUMBER = (int, float)
_MISSING = type(None)
_SHAPE: Mapping[str, Any] = {
    "spec": {
        "env_id": str,
        "env_kwargs": dict,
        "seed": int,
        "split": (str, _MISSING),
        "index": (int, _MISSING),
        "group": int,
        "member": int,
        "sampling_seed": (int, _MISSING),
        "role?": str,
    },
    "task_id": str,
    "categories?": dict,
    "reward": (*_NUMBER, _MISSING),
    "reward_terms": dict,
    "success": bool,
    "terminated": bool,
    "truncated": bool,
    "truncation": (str, _MISSING),
    "failure": (str, _MISSING),
    "failure_details?": {"where": str, "traceback": str},
    "seconds": _NUMBER,
    "messages": [{"role": str, "content": (str, list)}],
    "opened?": (int, _MISSING),
    "tools": [{"function": {"name": str}}],
    "steps": [
        {
            "row": int,
            "start": int,
            "stop": int,
            "action": str,
            "observation": str,
            "reward": _NUMBER,
            "reward_terms": dict,
            "tool_calls": [{"name": str, "error": (bool, str, _MISSING), "seconds": _NUMBER}],
            "metrics": dict,
            "error": (str, _MISSING),
            "finish_reason": str,
            "env_seconds": _NUMBER,
            "versions?": [lambda run: isinstance(run, list) and [*map(type, run)] == [int, int]],
        }
    ],
    "rows": [{"token_ids": [int], "spans": [list], "logprobs": [_NUMBER], "tokens?": [str]}],
    "images?": [str],
}


def to_record(
    episode: Episode, tokenizer: Any = None, advantages: Sequence[Sequence[float]] | None = None, **extra: Any
) -> dict[str, Any]:
    """Turn a finished episode into a JSON-ready record, with `extra` entries.

    A tokenizer adds the text of each token; `advantages` are per row, (T,) for its tokens.
    """
    images: dict[Image, int] = {}

    def number(image: Image) -> int:
        return images.setdefault(image, len(images))

    rows = []
    for i, row in enumerate(episode.rows):
        record: dict[str, Any] = {
            "token_ids": row.token_ids,
            "spans": [list(span) for span in row.spans],
            "logprobs": [round(value, 6) for value in row.logprobs],
        }
        if tokenizer is not None:
            record["tokens"] = [tokenizer.decode([i]) for i in row.token_ids]
        if advantages is not None:
            record["advantages"] = [round(value, 6) for value in advantages[i]]
        if row.images:
            record["images"] = [[number(image), start, stop] for image, start, stop in row.images]
        rows.append(record)
    reward = episode.reward
    messages = [_with_images(message, number) for message in episode.messages]
    return {
        "version": FORMAT_VERSION,
        **extra,
        "spec": {**_fields(episode.spec), "env_kwargs": public(episode.spec.env_kwargs)},
        "task_id": episode.task_id,
        "categories": episode.categories,
        "reward": None if math.isnan(reward) else reward,
        "reward_terms": episode.reward_terms,
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "truncation": episode.truncation,
        **(episode.failure.to_record() if episode.failure else {"failure": None}),
        "seconds": round(episode.seconds, 4),
        "messages": messages,
        "opened": episode.opened,
        "tools": episode.tools,
        "steps": [{**_fields(step), "versions": [list(run) for run in step.versions]} for step in episode.steps],
        "rows": rows,
        **({"images": [image.url() for image in images]} if images else {}),
    }


def write_trajectories(path: str | Path, records: Iterable[Mapping[str, Any]], *, append: bool = False) -> None:
    """Write records as JSON lines. The file appears when it is whole, unless it is appended to; errors as `writing`."""
    with writing(path) if append else whole_file(path) as aside:
        (place := Path(aside or path)).parent.mkdir(parents=True, exist_ok=True)
        with place.open("a" if append else "w", encoding="utf-8") as file:
            file.writelines(map(to_line, records))


def to_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of strict JSON, whatever an environment has put into it.

    In ASCII, because a lone surrogate has no UTF-8 form. Numbers that are not finite become null, and a value without a
    form in JSON becomes its `repr`
    """
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError):
        return json.dumps(json_ready(record), allow_nan=False) + "\n"


def json_ready(value: Any, depth: int = 100) -> Any:
    """Return a value in which everything has a form in JSON; a value nested deeper than `depth` becomes "..."."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < 10_000 else None  # Python reads no number of more than 4,300 digits
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if not depth:
        return "..."
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _repr(key): json_ready(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_ready(item, depth - 1) for item in value]
    if isinstance(value, os.PathLike):
        return json_ready(os.fspath(value), depth - 1)
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return json_ready(value.tolist(), depth - 1)
    return _repr(value)


def read_trajectories(
    path: str | Path, *, left_out: Callable[[str], object] = warnings.warn
) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a file. Lines without a whole one, as a kill may leave them, are named to `left_out`.

    Raises:
        ConfigError: if the file is missing, cannot be read, or holds no episode.
    """
    wrong: list[str] = []
    count = 0
    for number, _, found in scan_trajectories(path):
        if isinstance(found, str):
            wrong.append(f"line {number}: {found}")
        else:
            count += 1
            yield found
    if not count:
        raise ConfigError(f"{path}, {wrong[0]}" if wrong else f"{path} holds no episodes")
    if wrong:
        more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        lines = "line is" if len(wrong) == 1 else "lines are"
        left_out(f"{path}: {len(wrong)} {lines} left out, {count} read: {'; '.join(wrong[:_NAMED])}{more}")


def scan_trajectories(path: str | Path) -> Iterator[tuple[int, bytes, dict[str, Any] | str]]:
    """Yield the number of each line that is not blank, the line itself, and its record or the fault in it."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no trajectory file at {path}")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file, path), 1):
                if line.strip():
                    yield number, line, _parse(line)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from lines_of(file)
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}; cut the file there") from error


def _parse(line: bytes) -> dict[str, Any] | str:
    try:
        # Older files may hold NaN, which no number of a record may be.
        record = json.loads(line.decode(), parse_constant=lambda name: None)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except ValueError as error:
        return f"not valid JSON: {error}"
    except RecursionError:
        return "nested too deeply"
    version = record.get("version") if isinstance(record, dict) else None
    if version != FORMAT_VERSION:
        return f"format {version!r}, this version reads {FORMAT_VERSION}"
    return misfit(record) or record


def from_record(record: Mapping[str, Any]) -> Episode:
    """Turn a record back into the episode that it was made of."""
    images = [Image.from_url(url) for url in record.get("images", ())]
    rows = [
        Row(
            row["token_ids"],
            [Span(*span) for span in row["spans"]],
            row["logprobs"],
            [Shown(images[number], start, stop) for number, start, stop in row.get("images", ())],
        )
        for row in record["rows"]
    ]
    steps = []
    for step in record["steps"]:
        # A number that was not finite is null in the file, and cannot be summed.
        numbers = {
            name: {key: value for key, value in step[name].items() if isinstance(value, int | float)}
            for name in ("reward_terms", "metrics")
        }
        # Files written before weights were numbered have no versions.
        steps.append(Step(**{**step, **numbers, "versions": [tuple(run) for run in step.get("versions", ())]}))
    kept = ("task_id", "terminated", "truncated", "truncation", "success", "seconds", "tools")
    return Episode(
        EpisodeSpec(**record["spec"]),
        rows=rows,
        messages=[_with_images(message, images.__getitem__) for message in record["messages"]],
        steps=steps,
        categories=record.get("categories", {}),
        failure=Failure.from_record(record),
        opened=record.get("opened"),
        **{name: record[name] for name in kept},
    )


def recorded_messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a record with their images."""
    images = [Image.from_url(url) for url in record.get("images", ())]
    return [_with_images(message, images.__getitem__) for message in record["messages"]]


def _with_images(message: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(message["content"], list):
        return message
    parts = [{**part, "image": form(part["image"])} if part["type"] == "image" else part for part in message["content"]]
    return {**message, "content": parts}


def _fields(value: Any) -> dict[str, Any]:
    # Not `asdict`: it copies values, and an environment's arguments may hold values that cannot be copied.
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def misfit(record: Mapping[str, Any]) -> str | None:
    """Return the fault in a record, None for a sound one."""
    if wrong := shape_misfit(record, _SHAPE):
        return wrong
    if record["failure"] is None and record["reward"] is None:
        return "reward is null, and the episode did not fail"
    for where, found, made in (("spec", record["spec"], EpisodeSpec), *(("steps", s, Step) for s in record["steps"])):
        if unknown := found.keys() - {field.name for field in dataclasses.fields(made)}:
            return f"{where} has {', '.join(sorted(unknown))}, which this version does not know"
    images = len(record.get("images", ()))
    for n, message in enumerate(record["messages"]):
        if isinstance(message["content"], list) and not all(_is_part(part, images) for part in message["content"]):
            return f"messages[{n}] has a part that is neither a text nor an image of the record"
    for n, row in enumerate(record["rows"]):
        length = len(row["token_ids"])
        if any(len(row[name]) != length for name in ("logprobs", "tokens") if name in row):
            return f"rows[{n}] has {length} token_ids, and another number of logprobs or tokens"
        for span in row["spans"]:
            match span:
                case [int(start), int(stop), str(source), int()] if kind_of(source) in KINDS:
                    if 0 <= start <= stop <= length:
                        continue
            return f"rows[{n}] has no span {quoted(span, 40)}"
    for n, step in enumerate(record["steps"]):
        if not 0 <= step["row"] < len(record["rows"]):
            return f"steps[{n}] is in row {step['row']}, which is missing"
    return None


def _is_part(part: Any, images: int) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "image":
        return isinstance(part.get("image"), int) and 0 <= part["image"] < images
    return isinstance(part.get("type"), str)
