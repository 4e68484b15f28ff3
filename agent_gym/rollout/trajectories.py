"""Trajectories on disk: one JSON object per line, with everything needed to look at an episode and to replay it.

A record holds the spec (environment, arguments, seed, task), each step with its text, reward and tool calls, and each
row with ids, spans, logprobs and the text of every token, so that the viewer needs no tokenizer. Where images were
shown, each is in it once, and messages and rows name it by its number. docs/evaluate.md explains every field;
`replaying.py` plays a record again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.images import Image, Shown
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.failures import Failure
from agent_gym.transcript import Span

FORMAT_VERSION = 1


def to_record(
    episode: Episode, tokenizer: Any = None, advantages: Sequence[Sequence[float]] | None = None, **extra: Any
) -> dict[str, Any]:
    """Turn a finished episode into a JSON-ready record.

    Args:
        episode: what to record.
        tokenizer: adds the text of each token when given.
        advantages: per row, (T,) advantage of each token, when there is one.
        **extra: further entries, for example the training step.
    """
    images: dict[Image, int] = {}
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
            record["images"] = [[_number(image, images), start, stop] for image, start, stop in row.images]
        rows.append(record)
    reward = episode.reward
    messages = [_numbered(message, images) for message in episode.messages]
    return {
        "version": FORMAT_VERSION,
        **extra,
        "spec": dataclasses.asdict(episode.spec),
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
        "tools": episode.tools,
        "steps": [_record(step) for step in episode.steps],
        "rows": rows,
        **({"images": [image.url() for image in images]} if images else {}),
    }


def write_trajectories(path: str | Path, records: Iterable[Mapping[str, Any]], *, append: bool = False) -> int:
    """Write records as JSON lines, making the folder if needed, and return how many."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("a" if append else "w", encoding="utf-8") as file:
        for record in records:
            # In ASCII, because a lone surrogate has no UTF-8 form, and an environment may let one through.
            file.write(json.dumps(record) + "\n")
            count += 1
    return count


def read_trajectories(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file.

    Raises:
        ConfigError: if the file is missing, a line is not JSON, or the format is not one this version reads.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no trajectory file at {path}")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: not valid JSON: {error}") from error
            version = record.get("version") if isinstance(record, dict) else None
            if version != FORMAT_VERSION:
                raise ConfigError(f"{path}, line {number}: format {version!r}, this version reads {FORMAT_VERSION}")
            yield record


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
    kept = ("task_id", "terminated", "truncated", "truncation", "success", "seconds", "tools")
    return Episode(
        EpisodeSpec(**record["spec"]),
        rows=rows,
        messages=recorded_messages(record, images),
        steps=[_step(step) for step in record["steps"]],
        categories=record.get("categories", {}),
        failure=Failure.from_record(record),
        **{name: record[name] for name in kept},
    )


def recorded_messages(record: Mapping[str, Any], images: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Return the messages of a record with their images.

    Args:
        record: one that `read_trajectories` gave.
        images: what stands for its images, by default they themselves.
    """
    if images is None:
        images = [Image.from_url(url) for url in record.get("images", ())]

    def shown(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "image": images[part["image"]]} if part["type"] == "image" else part

    return [
        {**message, "content": [shown(part) for part in message["content"]]}
        if images and isinstance(message["content"], list)
        else message
        for message in record["messages"]
    ]


def _numbered(message: dict[str, Any], images: dict[Image, int]) -> dict[str, Any]:
    """Name the images of a message by their numbers."""
    if not isinstance(message["content"], list):
        return message
    content = [
        {**part, "image": _number(part["image"], images)} if part["type"] == "image" else part
        for part in message["content"]
    ]
    return {**message, "content": content}


def _number(image: Image, images: dict[Image, int]) -> int:
    return images.setdefault(image, len(images))


def _record(step: Step) -> dict[str, Any]:
    return {**dataclasses.asdict(step), "versions": [list(run) for run in step.versions]}


def _step(record: Mapping[str, Any]) -> Step:
    # Files written before weights were numbered have no versions.
    return Step(**{**record, "versions": [tuple(run) for run in record.get("versions", ())]})
