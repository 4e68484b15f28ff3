"""Trajectories as a Hugging Face data set: a folder with parquet files and a card that explains the columns.

There are three formats. "trajectories" keeps the whole record, one episode per row. "sft" is ready for training: one
context per row, as token ids, with a mask of the tokens that the policy wrote. "messages" holds the same as text, for a
model with another tokenizer.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from datasets import Dataset

from agent_gym.errors import ConfigError, one_of, whole_folder
from agent_gym.transcript import Span, action_mask

FORMATS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    files(__package__).joinpath("columns.toml").read_text(encoding="utf-8")
)
"""The columns of each format, with their meaning."""


def export_trajectories(
    records: Iterable[Mapping[str, Any]],
    out: str | Path,
    *,
    form: str = "trajectories",
    min_reward: float | None = None,
    successful: bool = False,
) -> Dataset:
    """Write the records of `read_trajectories` as a data set that `datasets.load_dataset(out)` reads, and return it.

    `form` is a key of `FORMATS`. The data set keeps the episodes with at least `min_reward`, and with `successful` only
    the episodes that solved their task. Raises `ConfigError` for an unknown format, for a folder with content, or if no
    episode is left.
    """
    one_of("format", form, FORMATS)
    with whole_folder(out) as aside:
        every = list(records)
        kept = [record for record in every if _is_wanted(record, form, min_reward, successful)]
        if not kept:
            raise ConfigError(f"none of {len(every)} episodes is left; ask for less by --min_reward or --successful")
        if form != "trajectories" and any(record.get("images") for record in kept):
            raise ConfigError(f"format {form!r} has no place for images; 'trajectories' has one, the column `extra`")
        try:
            dataset = Dataset.from_list([row for record in kept for row in _rows(record, form)])
        except (TypeError, ValueError, ArithmeticError, NotImplementedError) as error:  # of pyarrow
            raise ConfigError(f"the episodes' values have no common type in parquet: {error}") from error
        (aside / "data").mkdir()
        dataset.to_parquet(str(aside / "data" / "train-00000-of-00001.parquet"))
        (aside / "README.md").write_text(_card(Path(out).name, form, kept, len(every), len(dataset)), encoding="utf-8")
    return dataset


def _is_wanted(record: Mapping[str, Any], form: str, min_reward: float | None, successful: bool) -> bool:
    if record["reward"] is None:  # an episode that a failure ended is not trained on
        return form == "trajectories" and min_reward is None and not successful
    return (min_reward is None or record["reward"] >= min_reward) and (record["success"] or not successful)


_OF_STEPS = ("reward", "error", "finish_reason", "row", "start", "stop")
_NAMED = ("task_id", "reward", "success", "terminated", "truncated", "failure")
_ELSEWHERE = {*_NAMED, "version", "spec", "messages", "tools", "steps", "rows", "reward_terms", "truncation", "seconds"}


def _rows(record: Mapping[str, Any], form: str) -> list[dict[str, Any]]:
    spec, tools = record["spec"], json.dumps(record["tools"])
    about = {"env_id": spec["env_id"], "task_id": record["task_id"], "reward": record["reward"]}
    # All messages get one shape, because a column of parquet has one type and some contents are lists of parts.
    messages = [
        {"role": message["role"], "content": _text(message["content"]), "name": message.get("name")}
        for message in record["messages"]
    ]
    if form == "messages":
        return [{"messages": messages, "tools": tools, **about}]
    rows = []
    for row in record["rows"]:
        mask = action_mask([Span(*span) for span in row["spans"]], len(row["token_ids"]))
        rows.append({"token_ids": row["token_ids"], "action_mask": list(map(int, mask)), "logprobs": row["logprobs"]})
    if form == "sft":
        learned = (row for row in rows if any(row["action_mask"]))
        return [{"input_ids": row["token_ids"], "assistant_masks": row["action_mask"], **about} for row in learned]
    steps = [
        {
            **{name: step[name] for name in _OF_STEPS},
            **{name: _text(step[name]) for name in ("action", "observation")},
            **{name: json.dumps(step[name]) for name in ("reward_terms", "tool_calls")},
        }
        for step in record["steps"]
    ]
    whole = {
        **{name: spec[name] for name in ("env_id", "split", "index", "seed", "group", "member")},
        "env_kwargs": json.dumps(spec["env_kwargs"]),
        **{name: record[name] for name in _NAMED},
        "reward_terms": json.dumps(record["reward_terms"]),
        "messages": messages,
        "tools": tools,
        "steps": steps,
        "rows": rows,
        "extra": json.dumps({key: value for key, value in record.items() if key not in _ELSEWHERE}),
    }
    return [whole]


def _text(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return text.encode("utf-8", "replace").decode("utf-8")  # parquet cannot hold half of a surrogate pair


def _card(name: str, form: str, kept: list[Mapping[str, Any]], total: int, rows: int) -> str:
    env_ids = sorted({record["spec"]["env_id"] for record in kept})
    rewards = [record["reward"] for record in kept if record["reward"] is not None]
    solved = sum(bool(record["success"]) for record in kept)
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    columns = "\n".join(f"- `{column}`: {meaning}" for column, meaning in FORMATS[form].items())
    return (
        "---\ntags:\n- agent-gym\n- trajectories\n# license: yours to fill in; that of the tasks binds you\n---\n\n"
        f"# {name}\n\n{len(kept)} of {total} episodes of {', '.join(env_ids)}, {rows} rows; {solved} episodes solved "
        f"their task, the mean reward is {mean:.3f}. Written by `agent-gym export trajectories --format {form}`.\n\n"
        f"## Columns\n\n{columns}\n"
    )
