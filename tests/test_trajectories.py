"""Trajectories on disk: nothing is lost on the way there and back, and a replay notices what was changed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from rollout_tools import counting, roll

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.rollout import (
    Budget,
    Episode,
    EpisodeSpec,
    from_record,
    read_trajectories,
    replay,
    scan_trajectories,
    to_record,
    write_trajectories,
)
from agent_gym.tools import HermesParser

GSM8K = "AgentR1/GSM8K-v0"


@pytest.fixture(scope="module")
def episodes(tokenizer: Any) -> list[Episode]:
    """Won, cut off, crashed, over budget, inline, and with tools."""
    broken = counting(3, "Toy/Broken-v0", tasks=[1])
    specs = [*counting(2), *broken, *counting(1, "Toy/Inline-v0")]
    specs += [EpisodeSpec(GSM8K, {"max_turns": 6}, seed=i, split="test", index=i, member=i) for i in range(4)]
    return roll(tokenizer, specs) + roll(tokenizer, counting(1), budget=Budget(max_turns=2))


@pytest.fixture
def records(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [to_record(episode) for episode in episodes]


def test_round_trip(records: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "t.jsonl"
    write_trajectories(path, records)
    assert list(read_trajectories(path)) == records
    write_trajectories(path, records[:2], append=True)
    assert list(read_trajectories(path)) == records + records[:2]
    write_trajectories(path, records[:1])
    assert len(list(read_trajectories(path))) == 1


def test_a_record_holds_the_whole_episode(episodes: list[Episode], tokenizer: Any) -> None:
    for episode in episodes:
        advantages = [[0.5] * len(row.token_ids) for row in episode.rows]
        record = json.loads(json.dumps(to_record(episode, tokenizer, advantages, step=7), allow_nan=False))
        kept = {one.name: getattr(episode, one.name) for one in dataclasses.fields(Episode)}
        assert from_record(record) == Episode(**kept | {"seconds": record["seconds"]})
        assert record["step"] == 7 and (record["reward"] is None if episode.failure else True)
        for row, saved in zip(episode.rows, record["rows"], strict=True):
            assert len(saved["tokens"]) == len(saved["advantages"]) == len(row.token_ids)


def test_hostile_text_can_be_written(tokenizer: Any, tmp_path: Path) -> None:
    """Half characters, control characters, line separators and template tokens from policy and world alike."""
    calls = (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "\\ud83d", "x": "\\u0000\\u2028"}}</tool_call>'
    )
    texts = iter(["\u2028\x85\x00\n", calls, "<|im_end|>\ud800", HermesParser().render("é" * 50, {"b": 1e308})] * 9)
    made = roll(
        tokenizer, [EpisodeSpec(GSM8K, seed=1)] * 4, lambda episode: next(texts).encode("utf-8", "replace").decode()
    )
    saved = [to_record(episode, tokenizer) for episode in made]
    write_trajectories(tmp_path / "t.jsonl", saved)
    assert list(read_trajectories(tmp_path / "t.jsonl")) == saved
    lone = {**saved[0], "extra": "\ud800"}  # for example in an environment's own metrics or errors
    write_trajectories(tmp_path / "t.jsonl", [lone])
    assert list(read_trajectories(tmp_path / "t.jsonl")) == [lone]


def test_what_was_recorded_replays_also_from_before_there_were_summaries(records: list[dict[str, Any]]) -> None:
    for record in records:
        old = json.loads(json.dumps(record))
        assert replay(old) == []
        for step in old["steps"]:
            del step["kind"], step["process_reward"]
        assert replay(old) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("steps", 1, "observation"), "1000000", "step 1: observation"),
        (("steps", -1, "reward"), 0.5, "reward"),
        (("steps", 0, "action"), "<answer>-1</answer>", "early"),
        (("spec", "index"), 9, "task"),
        (("messages", 1, "content"), "What is 1+1?", "opening"),
        (("success",), False, "success"),
        (("reward",), 2.0, "reward"),
    ],
)
def test_replay_detects_what_was_changed(
    episodes: list[Episode], path: tuple[Any, ...], value: Any, words: str
) -> None:
    won = next(e for e in episodes if e.spec.env_id == GSM8K and e.success and len(e.steps) >= 3)
    record = json.loads(json.dumps(to_record(won)))
    assert replay(record) == []
    assert replay({**record, "steps": record["steps"][:-1]}), "a step is missing"
    assert replay({**record, "steps": record["steps"] + record["steps"][-1:]}), "a step too many"
    place = record
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    assert any(words in difference for difference in replay(record))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for text, words in (
        ('{"version": 1}\n', "line 1: no spec"),
        ('{"version": 99}\n', "line 1: format 99, this version reads 1"),
        ("[]\n", "line 1: format None"),
    ):
        (tmp_path / "t.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=words):
            list(read_trajectories(tmp_path / "t.jsonl"))
    with pytest.raises(ConfigError, match="no trajectory file at"):
        list(read_trajectories(tmp_path / "none.jsonl"))


# Damaged files: what is whole is read, the rest is named.


def damaged(good: list[dict[str, Any]]) -> tuple[bytes, set[int]]:
    """A file in which good records stand between lines of every kind of damage, and the numbers of the latter."""
    record = json.loads(json.dumps(good[0]))
    lines: list[Any] = [good[0], b"\xff\xfe{", b"[" * 200_000, b'{"version": 1', b"\x00" * 30, good[1]]
    lines += [{name: value for name, value in record.items() if name != left} for left in ("messages", "spec", "steps")]
    changes: list[dict[str, Any]] = [
        {"messages": "hello"},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": 3}]}]},
        {"spec": {**record["spec"], "env_id": 3}},
        {"spec": {**record["spec"], "of_the_future": 3}},
        {"reward": None},
        {"tools": [{}]},
        {"steps": [{**record["steps"][0], "row": 9}]},
        {"steps": [{**record["steps"][0], "tool_calls": ["add"]}]},
        {"rows": []},
        {"rows": [{**record["rows"][0], "logprobs": [0.0]}]},
        {"rows": [{**record["rows"][0], "spans": [[0, 10**9, "agent", 0]]}]},
        {"rows": [{**record["rows"][0], "spans": [[0, 1, "nobody", 0]]}]},
        {"rows": [{**record["rows"][0], "token_ids": ["a"] * len(record["rows"][0]["token_ids"])}]},
    ]
    lines += [{**record, **change} for change in changes]
    lines += [b"", good[2], json.dumps(good[3]).encode()[:-20]]
    whole = [good[0], good[1], good[2]]
    content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return content, {n for n, line in enumerate(lines, 1) if line not in (*whole, b"")}


def test_of_a_damaged_file_the_good_records_are_read(records: list[dict[str, Any]], tmp_path: Path) -> None:
    good = [record for record in records if record["failure"] is None]
    content, bad = damaged(good)
    (tmp_path / "t.jsonl").write_bytes(content)
    warned: list[str] = []
    assert list(read_trajectories(tmp_path / "t.jsonl", left_out=warned.append)) == json.loads(json.dumps(good[:3]))
    assert f"{len(bad)} lines are left out, 3 read: line {min(bad)}: not UTF-8 text" in warned[0]
    assert f"and {len(bad) - 10} more" in warned[0] and len(warned) == 1
    numbers = [number for number, _, found in scan_trajectories(tmp_path / "t.jsonl") if isinstance(found, str)]
    assert set(numbers) == bad
    with pytest.warns(UserWarning, match="lines are left out"):
        list(read_trajectories(tmp_path / "t.jsonl"))


def test_every_command_reads_what_is_whole_in_a_damaged_file(
    tokenizer: Any, episodes: list[Episode], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [to_record(episode, tokenizer) for episode in episodes if not episode.failure]
    good[1]["steps"][0]["metrics"] = {"speed": None}  # it was not finite
    content, bad = damaged(good)
    path, other, empty = tmp_path / "t.jsonl", tmp_path / "other.jsonl", tmp_path / "empty.jsonl"
    path.write_bytes(content)
    write_trajectories(other, good)
    empty.write_text("")
    for words in (
        ["view", str(path)],
        ["rescore", str(path), "--output", str(tmp_path / "again.jsonl")],
        ["compare", str(path), str(other)],
        ["export", "trajectories", str(path), str(tmp_path / "sft"), "--format", "sft"],
    ):
        assert main(words) == 0, words
        assert f"{path}: {len(bad)} lines are left out, 3 read" in capsys.readouterr().err
    assert len(list(read_trajectories(tmp_path / "again.jsonl"))) == 3
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\n")
    for words, message in (
        (["view", str(empty)], f"{empty} holds no episodes"),
        (["compare", str(other), str(empty)], f"{empty} holds no episodes"),
        (["view", str(tmp_path / "bad.jsonl")], "line 1: not UTF-8 text"),
    ):
        assert message in complaint(capsys, *words)
