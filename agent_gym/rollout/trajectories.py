"""Trajectories on disk: one JSON object per line, with everything needed to look at an episode and to replay it.

A record holds the spec (environment, arguments, seed, task), each step with its text, reward and tool calls, and each
row with ids, spans, logprobs and the text of every token, so that the viewer needs no tokenizer. `replay` plays the
recorded actions in a fresh environment and compares what the world answers now with what it answered then; summaries
that the policy wrote for itself are no actions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rollout.envs import make_env
from agent_gym.rollout.episode import Episode

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
        rows.append(record)
    reward = episode.reward
    return {
        "version": FORMAT_VERSION,
        **extra,
        "spec": dataclasses.asdict(episode.spec),
        "task_id": episode.task_id,
        "reward": None if math.isnan(reward) else reward,
        "reward_terms": episode.reward_terms,
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "truncation": episode.truncation,
        "failure": episode.failure,
        "seconds": round(episode.seconds, 4),
        "messages": episode.messages,
        "tools": episode.tools,
        "steps": [dataclasses.asdict(step) for step in episode.steps],
        "rows": rows,
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


def replay(record: Mapping[str, Any]) -> list[str]:
    """Play the recorded actions again and list every difference; an empty list means that the world agrees."""
    spec = record["spec"]
    env = make_env(spec["env_id"], spec["env_kwargs"])
    picked = {key: spec[key] for key in ("split", "index") if spec[key] is not None}
    _, info = env.reset(seed=spec["seed"], options=picked)
    differences = []

    def compare(what: str, now: Any, then: Any) -> None:
        if now != then:
            differences.append(f"{what} {now!r} instead of {then!r}")

    compare("task", info["task_id"], record["task_id"])
    # Only the user's words: the system prompt may describe tools where the recording model's template did not.
    question = next((message["content"] for message in record["messages"] if message["role"] == "user"), None)
    compare("opening", info["messages"][-1]["content"], question)
    total, ended, success = 0.0, False, False
    acts = [step for step in record["steps"] if step.get("kind", "act") == "act"]
    for n, step in enumerate(acts):
        observation, reward, ended, truncated, info = env.step(step["action"])
        compare(f"step {n}: observation", observation, step["observation"])
        compare(f"step {n}: reward", round(float(reward), 9), round(step["reward"], 9))
        total += float(reward)
        success = bool(info.get("is_success", False))
        if (ended or truncated) and n + 1 < len(acts):
            differences.append(f"step {n}: the episode ended {len(acts) - n - 1} steps early")
            break
    if record["failure"] is None:  # a failed episode broke off, and its reward is not a number
        compare("reward", round(total, 9), round(record["reward"], 9))
        compare("terminated", ended, record["terminated"])
        compare("success", success, record["success"])
    env.close()
    return differences
