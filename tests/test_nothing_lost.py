"""What a rollout has finished is on disk, whatever happens to the process, the endpoint, an environment or the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("transformers")

from cli_tools import complaint, small_disk  # noqa: E402
from openai_tools import Server, says, serving  # noqa: E402
from process_tools import Fork, until  # noqa: E402
from rollout_tools import counting, roll  # noqa: E402
from toy_envs import CountingEnv  # noqa: E402

from agent_gym import Reply  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate import EpisodeFile  # noqa: E402
from agent_gym.rollout import read_trajectories, to_record, write_trajectories  # noqa: E402

GSM8K, NO_TOOL = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"


@pytest.fixture(scope="module")
def tokens(tiny_model: str) -> list[str]:
    return ["--tokenizer", tiny_model]


def words(path: Path | str, episodes: int, tokens: list[str], env: str = GSM8K) -> list[str]:
    return ["rollout", env, "--expert", "--episodes", str(episodes), *tokens, "--output", str(path)]


def indexes(path: Path) -> list[int]:
    """The tasks of a file in which every line must be whole; the strict reader of JSON knows no NaN."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    return sorted(json.loads(line, parse_constant=refuse)["spec"]["index"] for line in path.read_bytes().splitlines())


# The process.


def test_a_killed_process(tokens: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = words(path, 200, tokens)
    process = Fork(lambda: main(run))
    until(lambda: path.exists() and path.stat().st_size >= 20_000, 120)
    assert process.poll() is None
    process.kill()
    process.wait()
    there = list(read_trajectories(path, left_out=print))
    assert len(there) >= 3 and all(record["success"] for record in there)
    assert main([*run, "--resume"]) == 0
    assert indexes(path) == list(range(200))


# The endpoint.


@pytest.mark.parametrize("answer", [(500, {"error": "out of memory"}), (200, {"choices": []})])
def test_an_endpoint_that_fails(
    answer: tuple[int, Any],
    tokens: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.1)
    path = tmp_path / "run.jsonl"
    run = ["rollout", NO_TOOL, "--episodes", "14", "--concurrency", "1", *tokens, "--output", str(path)]
    with serving(Server(*[says("#### 4")] * 10, answer)) as url:
        assert main([*run, "--endpoint", url]) == 1
    lines = capsys.readouterr().err.splitlines()
    told = ("calls of tools are", "takes messages")  # of the model, when it is loaded
    (line,) = [line for line in lines if "agent-gym: " in line and not any(words in line for words in told)]
    finished = indexes(path)
    assert ("answered 500" if answer[0] == 500 else "answered strangely") in line
    assert f"{len(finished)} of 14 episodes were finished; they are in {path}; continue with --resume" in line
    assert len(finished) >= 8
    with serving(Server(says("a \ud800 #### 5"))) as url:  # half of a character
        assert main([*run, "--endpoint", url, "--resume", "--model", "m"]) == 0
    assert set(indexes(path)) == set(range(14))
    actions = [record["steps"][0]["action"] for record in read_trajectories(path)]
    assert set(actions) == {"#### 4", "a ? #### 5"}


# Environments.


class Unsayable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class Raising(CountingEnv):
    def respond(self, action: str) -> Reply:
        if self.task_id.endswith("/2"):
            raise Unsayable
        return super().respond(action)

    def close(self) -> None:
        raise ValueError("the connection is closed already")


def test_an_environment_that_raises_what_has_no_text(
    tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    gymnasium.register("Lost/Raising-v0", entry_point=Raising)
    try:
        assert main(words(path, 8, tokens, "Lost/Raising-v0")) == 0
    finally:
        del gymnasium.registry["Lost/Raising-v0"]
    assert indexes(path) == list(range(8))
    assert [record["reward"] for record in read_trajectories(path) if record["failure"]] == [None]
    report = capsys.readouterr().out
    assert "failed episodes: 1" in report and "1 x Unsayable" in report and "test_nothing_lost.py:" in report


def test_what_json_has_no_form_for_is_written_all_the_same(tokenizer: Any, tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    odd = {
        "nan": float("nan"), "inf": [np.float64("inf")], "array": np.arange(2), "set": {1}, "path": tmp_path, 7: "key",
        "raises": Unsayable(), "deep": deep, "huge": 10**5000, "half": "\ud800",
    }  # fmt: skip
    odd["itself"] = odd
    (episode,) = roll(tokenizer, counting(1))
    episode.steps[0].metrics = odd
    episode.steps[0].tool_calls = [{"name": "x", "arguments": {"a": deep}, "error": None, "seconds": 0.0}]
    write_trajectories(tmp_path / "t.jsonl", [to_record(episode)])
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    metrics = record["steps"][0]["metrics"]
    assert metrics["nan"] is metrics["huge"] is None and metrics["inf"] == [None] and metrics["array"] == [0, 1]
    assert metrics["path"] == str(tmp_path) and metrics["7"] == "key" and metrics["half"] == "\ud800"


# The disk.


@pytest.mark.slow
def test_a_full_disk(tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    run = words(path, 60, tokens)
    line, finished = small_disk(run, 100_000), indexes(path)
    assert f"cannot write {path}: File too large; make room; {len(finished)} of 60 episodes were finished" in line
    assert 0 < len(finished) < 60
    assert main([*run, "--resume"]) == 0
    assert indexes(path) == list(range(60))
    assert main(words("/dev/full", 2, tokens)) == 1
    assert "cannot write /dev/full: No space left on device; make room" in capsys.readouterr().err


# Files that are there already.


@pytest.fixture(scope="module")
def lines(tokens: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The file of a run of two episodes."""
    path = tmp_path_factory.mktemp("played") / "run.jsonl"
    assert main(words(path, 2, tokens)) == 0
    return path.read_text().splitlines(keepends=True)


def test_a_used_file_is_refused_and_stays_as_it_is(
    lines: list[str], tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(lines))
    run = words(path, 2, tokens)
    assert "continue it with --resume, or name another file" in complaint(capsys, *run)
    assert "played with seed 0, now it is 1" in complaint(capsys, *run, "--resume", "--seed", "1")
    holder = EpisodeFile(path, resume=True)
    assert "another process is writing" in complaint(capsys, *run, "--resume")
    holder.close()
    assert path.read_text() == "".join(lines)
    for text, message in (
        ("my text", "not valid JSON"),
        (lines[0] + "my text\n", "line 2: not valid JSON"),
        (lines[0].replace('"settings"', '"other"'), "not written by eval"),
    ):
        path.write_text(text)
        assert message in complaint(capsys, *run, "--resume")
        assert path.read_text() == text


def test_a_line_that_was_cut_off_is_played_again(lines: list[str], tokens: list[str], tmp_path: Path) -> None:
    path, link = tmp_path / "run.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    for length in (1, 15, len(lines[0]) - 1):
        path.write_text(lines[0][:length])
        assert main([*words(link, 1, tokens), "--resume"]) == 0
        assert link.is_symlink() and indexes(path) == [0]
