"""What a rollout has finished is on disk, whatever happens to the process, the endpoint, an environment or the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("transformers")

from cli_tools import complaint, small_disk  # noqa: E402
from openai_tools import Server, says, serving  # noqa: E402
from rollout_tools import scripted  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from toy_envs import CountingEnv  # noqa: E402

from agent_gym import Reply  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate import EpisodeFile  # noqa: E402
from agent_gym.rollout import EpisodeSpec, Runner, read_trajectories, to_record, write_trajectories  # noqa: E402

GSM8K, NO_TOOL = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return ["--tokenizer", str(make_tiny_model(tmp_path_factory.mktemp("model")))]


def indexes(path: Path) -> list[int]:
    """The tasks of a file in which every line must be whole; the strict reader of JSON knows no NaN."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    return sorted(json.loads(line, parse_constant=refuse)["spec"]["index"] for line in path.read_bytes().splitlines())


# The process.


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_an_ended_process(how: signal.Signals, tokens: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = ["rollout", GSM8K, "--expert", "--episodes", "1500", "--output", str(path), *tokens]
    process = subprocess.Popen([sys.executable, "-m", "agent_gym", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not path.exists() or path.stat().st_size < 20_000:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, how)
    _, said = process.communicate(timeout=60)
    there = list(read_trajectories(path, left_out=print))
    assert len(there) >= 3 and all(record["success"] for record in there)
    if how == signal.SIGINT and process.returncode:
        assert process.returncode == 130 and f"{len(there)} of 1500 episodes were finished; they are in {path}" in said
    assert main([*words, "--resume"]) == 0
    assert indexes(path) == list(range(1500))


# The endpoint.


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((500, {"error": "out of memory"}), "answered 500"),
        ((200, {"choices": []}), "answered strangely"),
        ((200, [1, 2]), "answered strangely"),
        (says(5), "answered strangely"),  # type: ignore[arg-type]
        (says([{"type": "text", "text": "x"}]), "answered strangely"),  # type: ignore[arg-type]
        ((200, {"choices": [{"message": "#### 4", "finish_reason": "stop"}]}), "answered strangely"),
        ((200, {"choices": [{"finish_reason": "stop"}]}), "answered strangely"),
    ],
)
def test_an_endpoint_that_fails(
    answer: tuple[int, Any], words: str, tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    run = ["rollout", NO_TOOL, "--episodes", "14", "--concurrency", "1", *tokens, "--output", str(path)]
    with serving(Server(*[says("#### 4")] * 10, answer)) as url:
        assert main([*run, "--endpoint", url]) == 1
    (said,) = [
        line for line in capsys.readouterr().err.splitlines() if "agent-gym: " in line and "takes messages" not in line
    ]
    finished = indexes(path)
    assert (
        words in said
        and f"{len(finished)} of 14 episodes were finished; they are in {path}; go on with --resume" in said
    )
    assert len(finished) >= 8
    with serving(Server(says("#### 5"))) as url:
        assert main([*run, "--endpoint", url, "--resume", "--model", "m"]) == 0
    assert set(indexes(path)) == set(range(14))


def test_an_endpoint_that_answers_with_half_a_character(tokens: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with serving(Server(says("a \ud800 #### 4"))) as url:
        assert main(["rollout", NO_TOOL, "--episodes", "4", *tokens, "--endpoint", url, "--output", str(path)]) == 0
    assert [record["steps"][0]["action"] for record in read_trajectories(path)] == ["a ? #### 4"] * 4


# Environments.


class Numpy(CountingEnv):
    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        terms = {name: np.float32(value) for name, value in reply.terms.items()}
        return Reply(
            reply.text, terms=terms, terminated=reply.terminated, success=reply.success, metrics={"n": np.int64(3)}
        )


class Closing(CountingEnv):
    def close(self) -> None:
        raise ValueError("the connection is closed already")


class Unsayable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class Raising(CountingEnv):
    def respond(self, action: str) -> Reply:
        if self.task_id.endswith("/2"):
            raise Unsayable
        return super().respond(action)


@pytest.fixture(params=[Numpy, Closing, Raising])
def strange(request: pytest.FixtureRequest) -> Iterator[str]:
    env_id = f"Lost/{request.param.__name__}-v0"
    gymnasium.register(env_id, entry_point=request.param)
    yield env_id
    del gymnasium.registry[env_id]


def test_a_strange_environment(
    strange: str, tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    assert main(["rollout", strange, "--expert", "--episodes", "8", *tokens, "--output", str(path)]) == 0
    assert indexes(path) == list(range(8))
    failed = [record for record in read_trajectories(path) if record["failure"]]
    assert [record["reward"] for record in failed] == [None] * ("Raising" in strange)
    if failed:
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
    runner = Runner(scripted(tokenizer), tokenizer)
    (episode,) = runner.run([EpisodeSpec("Toy/Counting-v0", index=0)])
    runner.close()
    episode.steps[0].metrics = odd
    episode.steps[0].tool_calls = [{"name": "x", "arguments": {"a": deep}, "error": None, "seconds": 0.0}]
    write_trajectories(tmp_path / "t.jsonl", [to_record(episode)])
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    metrics = record["steps"][0]["metrics"]
    assert metrics["nan"] is metrics["huge"] is None and metrics["inf"] == [None] and metrics["array"] == [0, 1]
    assert metrics["path"] == str(tmp_path) and metrics["7"] == "key" and metrics["half"] == "\ud800"


# The disk.


def test_a_full_disk(tokens: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = ["rollout", GSM8K, "--expert", "--episodes", "60", "--output", str(path), *tokens]
    done = small_disk(words, 100_000)
    (said,) = [line for line in done.stderr.splitlines() if "agent-gym: " in line]
    finished = indexes(path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"cannot write {path}: File too large; make room; {len(finished)} of 60 episodes were finished" in said
    assert 0 < len(finished) < 60
    assert main([*words, "--resume"]) == 0
    assert indexes(path) == list(range(60))


def test_a_device_that_is_full(tokens: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", GSM8K, "--expert", *tokens, "--output", "/dev/full"]) == 1
    assert "cannot write /dev/full: No space left on device; make room" in capsys.readouterr().err
    assert main(["rollout", GSM8K, "--expert", *tokens, "--output", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


# Files that are not the run's own.


def test_a_used_file_is_refused(tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    words = ["rollout", GSM8K, "--expert", "--episodes", "3", *tokens, "--output", str(path)]
    assert main(words) == 0
    before = path.read_bytes()
    assert "go on with --resume, or name another file" in complaint(capsys, *words)
    assert "played with seed 0, now it is 1" in complaint(capsys, *words, "--resume", "--seed", "1")
    holder = EpisodeFile(path, resume=True)
    assert "another process is writing" in complaint(capsys, *words, "--resume")
    holder.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda record: "my notes", "not valid JSON"),
        (lambda record: "my notes\nof today\n", "line 1: not valid JSON"),
        (lambda record: json.dumps(record) + "\nnotes\n", "line 2: not valid JSON"),
        (lambda record: json.dumps({k: v for k, v in record.items() if k != "settings"}) + "\n", "not written by eval"),
    ],
)
def test_a_file_of_somebody_else_stays_as_it_is(
    make: Callable[[Any], str], words: str, tokens: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    run = ["rollout", GSM8K, "--expert", "--episodes", "1", *tokens, "--output", str(path)]
    assert main(run) == 0
    path.write_text(make(json.loads(path.read_text())))
    before = path.read_bytes()
    assert words in complaint(capsys, *run, "--resume")
    assert path.read_bytes() == before


def test_a_file_whose_first_line_was_cut_off_is_ours(tokens: list[str], tmp_path: Path) -> None:
    run = ["rollout", GSM8K, "--expert", "--episodes", "1", *tokens, "--output"]
    assert main([*run, str(tmp_path / "whole.jsonl")]) == 0
    content = (tmp_path / "whole.jsonl").read_bytes()
    path = tmp_path / "run.jsonl"
    for length in (1, 9, 15, len(content) - 1):
        path.write_bytes(content[:length])
        assert main([*run, str(path), "--resume"]) == 0
        assert indexes(path) == [0]


def test_failed_episodes_leave_a_link_a_link(tokens: list[str], tmp_path: Path) -> None:
    target, path = tmp_path / "target.jsonl", tmp_path / "run.jsonl"
    run = ["rollout", GSM8K, "--expert", "--episodes", "2", *tokens, "--output"]
    assert main([*run, str(target)]) == 0
    first, second = target.read_text().splitlines()
    failed = json.dumps({**json.loads(first), "failure": "EnvFailure: gone", "reward": None})
    target.write_text(f"{failed}\n{second}\n")
    path.symlink_to(target)
    assert main([*run, str(path), "--resume"]) == 0
    assert path.is_symlink() and indexes(target) == [0, 1] and second in target.read_text()
