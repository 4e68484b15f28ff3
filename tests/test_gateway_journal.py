"""The gateway writes each turn as it answers it: kills, a closed terminal and a full disk lose nothing."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from model_server import free_port
from process_tools import Fork, until

pytest.importorskip("torch")

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.gateway.journal import Journal, fold, folded, folder_of  # noqa: E402
from agent_gym.rollout import read_trajectories, to_record  # noqa: E402
from agent_gym.rollout.episode import Episode, EpisodeSpec  # noqa: E402
from agent_gym.rollout.trajectories import misfit  # noqa: E402


def ask(url: str, key: str, messages: list[Any]) -> str:
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 6}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/chat/completions", body, headers), timeout=120
    ) as got:
        return str(json.load(got)["choices"][0]["message"]["content"])


def talk(url: str, key: str, turns: int) -> list[str]:
    """Hold a conversation and return the answers."""
    messages: list[Any] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"I am {key}, turn {turn}."})
        messages.append({"role": "assistant", "content": ask(url, key, messages)})
    return [message["content"] for message in messages[1::2]]


@contextmanager
def gateway(model: str, *words: str, before: Callable[[], None] | None = None) -> Iterator[tuple[str, Any]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["gateway", "--port", str(port), "--model", model, "--engine", "transformers", *words]

    def serve() -> int:
        if before:
            before()
        return main(command)

    read, write = os.pipe()
    process: Any = Fork(serve, errors=write)
    os.close(write)
    process.lines = list[str]()
    reader = threading.Thread(target=lambda: process.lines.extend(os.fdopen(read)))
    reader.start()

    def lives() -> bool:
        with suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5):
            return True
        assert process.poll() is None, process.lines
        return False

    try:
        until(lives, 240)
        yield url, process
    finally:
        process.kill()
        process.wait()
        reader.join()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGHUP", "SIGTERM"])
def test_no_answered_turn_is_lost(name: str, tiny_model: str, tmp_path: Path) -> None:
    record = tmp_path / "talks.jsonl"

    def heard() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored, if the tests run under it

    with gateway(tiny_model, "--record", str(record), "--max_conversations", "3", before=heard) as (url, process):
        answers = {key: talk(url, key, turns) for key, turns in (("a", 1), ("b", 3), ("c", 2))}
        with pytest.raises(urllib.error.HTTPError) as refused:
            talk(url, "d", 1)
        assert refused.value.code == 429 and "--max_conversations" in refused.value.read().decode()
        assert len(record.read_text().splitlines()) == 3, "the first turn of each is there at once"
        process.send_signal(getattr(signal, name))
        process.wait(60)
        until(lambda: not folder_of(record).exists(), 60)
    found = [[step["action"] for step in one["steps"]] for one in read_trajectories(record)]
    assert sorted(map(len, found)) == [1, 2, 3]
    for written in answers.values():
        assert any([one.strip() for one in steps] == [one.strip() for one in written] for steps in found)


def test_a_full_disk_ends_no_conversation(tiny_model: str, tmp_path: Path) -> None:
    record = tmp_path / "talks.jsonl"

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))

    with gateway(tiny_model, "--record", str(record), "--idle", "1", before=small) as (url, process):
        for key in "abcdef":
            assert len(talk(url, key, 2)) == 2
        until(lambda: any("6 episodes wait" in line for line in process.lines), 60)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        talk(url, "room", 1)  # there is room now
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    errors = "".join(process.lines)
    assert "cannot write" in errors and "Traceback" not in errors
    assert sorted(len(one["steps"]) for one in read_trajectories(record)) == [1, 2, 2, 2, 2, 2, 2]
    assert not folder_of(record).exists()


# The journal by itself.


def base() -> dict[str, Any]:
    return to_record(
        Episode(EpisodeSpec("AgentR1/Agent-v0", {"session": "s"}, split="train", index=0), task_id="train/0")
    )


def begun(tmp_path: Path) -> tuple[Path, Journal, list[str]]:
    warnings: list[str] = []
    record = tmp_path / "record.jsonl"
    journal = Journal(record, warnings.append)
    journal.begin("0", base())
    return record, journal, warnings


def turn(text: str, ids: list[int]) -> dict[str, Any]:
    return {"text": text, "token_ids": ids, "logprobs": [-0.5] * len(ids), "cut": False}


def test_a_folded_conversation_has_each_token_once_and_in_its_place(tmp_path: Path) -> None:
    record, journal, _ = begun(tmp_path)
    user = {"role": "user", "content": "hi"}
    journal.answered("0", [user], [], [1, 2, 3], turn("a", [7, 8]))
    journal.answered("0", [user], [], [1, 2, 3, 7, 8, 4], turn("b", [9]))
    journal.answered("0", [user], [], [1, 2, 5], turn("c", [6, 6]))  # the client has changed the conversation
    (path,) = folder_of(record).glob("*.jsonl")
    made = folded(path.read_bytes() + b'{"half a li')
    assert made is not None and misfit(made) is None
    assert [row["token_ids"] for row in made["rows"]] == [[1, 2, 3, 7, 8, 4, 9], [1, 2, 5, 6, 6]]
    agent = [span[:2] for row in made["rows"] for span in row["spans"] if span[2] == "agent"]
    assert agent == [[3, 5], [6, 7], [3, 5]]
    assert [(step["row"], step["start"], step["stop"]) for step in made["steps"]] == [(0, 3, 5), (0, 6, 7), (1, 3, 5)]
    assert (made["truncated"], made["truncation"], made["opened"]) == (True, "interrupted", 1)
    journal.end("0")
    journal.close()
    assert not folder_of(record).exists()


def test_a_long_conversation_is_written_in_linear_size(tmp_path: Path) -> None:
    record, journal, _ = begun(tmp_path)
    context: list[int] = []
    for number in range(400):
        context += [number] * 20
        journal.answered("0", [{"role": "user", "content": "x"}], [], context, turn("y", [3] * 10))
        context += [3] * 10
    (path,) = folder_of(record).glob("*.jsonl")
    assert path.stat().st_size < 400 * 700
    made = folded(path.read_bytes())
    assert made is not None and made["rows"][0]["token_ids"] == context and len(made["rows"]) == 1
    journal.end("0")
    journal.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_record_has_one_line_for_each_conversation_whenever_it_is_read(tmp_path: Path, seed: int) -> None:
    """Whatever order turns and ends come in, and also after a kill, which the next journal recovers from."""
    record, journal, _ = begun(tmp_path)
    journal.end("0")
    rng, live, ended = random.Random(seed), dict[str, int](), dict[str, int]()
    for number in range(60):
        if not live or rng.random() < 0.3:
            journal.begin(key := str(number + 1), base())
            live[key] = 0
        key = rng.choice([*live])
        if rng.random() < 0.7 or not live[key]:
            live[key] += 1
            said = [{"role": "user", "content": "x" * rng.randrange(3000)}]
            journal.answered(key, said, [], [1] * live[key], turn(f"{key} {live[key]}", [2]))
        else:
            line = json.dumps({**base(), "steps": [{"action": f"{key} end"}]})
            with record.open("a") as file:
                file.write(line + "\n")
            ended[key] = live.pop(key)
            journal.end(key)
        found = [json.loads(one) for one in record.read_text().splitlines()] if record.exists() else []
        last = sorted(one["steps"][-1]["action"] for one in found)
        assert last == sorted([f"{key} 1" for key, turns in live.items() if turns] + [f"{key} end" for key in ended])
    journal._watcher.kill()
    journal._watcher.wait()
    journal._lock.close()
    Journal(record, print).close()
    found = [json.loads(one) for one in record.read_text().splitlines()]
    last = sorted(one["steps"][-1]["action"] for one in found)
    assert last == sorted([f"{key} {turns}" for key, turns in live.items() if turns] + [f"{key} end" for key in ended])
    assert not folder_of(record).exists()


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_kill_while_the_first_line_is_written_leaves_one_line(tmp_path: Path, kept: float) -> None:
    record, journal, _ = begun(tmp_path)
    journal.answered("0", [{"role": "user", "content": "hi"}], [], [1], turn("a", [2]))
    whole = record.read_bytes()
    record.write_bytes(whole[: int(kept * len(whole))])
    journal._watcher.kill()
    journal._watcher.wait()
    journal._lock.close()
    Journal(record, print).close()
    assert record.read_bytes() == whole


def test_two_gateways_do_not_share_a_record(tmp_path: Path) -> None:
    record, journal, _ = begun(tmp_path)
    with pytest.raises(BlockingIOError):
        Journal(record, print)
    journal.end("0")
    journal.close()


def test_what_a_killed_gateway_and_its_watcher_left_is_recovered_by_the_next(tmp_path: Path) -> None:
    record, journal, _ = begun(tmp_path)
    journal.answered("0", [{"role": "user", "content": "hi"}], [], [1], turn("a", [2]))
    journal._watcher.kill()
    journal._watcher.wait()
    journal._lock.close()
    again = Journal(record, print)
    assert again.recovered == 1 and len(list(read_trajectories(record))) == 1
    again.close()
    assert fold(record) == 0


def test_a_turn_waits_in_memory_while_the_disk_is_full(tmp_path: Path) -> None:
    record, journal, warnings = begun(tmp_path)
    full = open("/dev/full", "wb", buffering=0)
    kept, journal._files["0"] = journal._files["0"], full
    journal.answered("0", [{"role": "user", "content": "hi"}], [], [1], turn("a", [2]))
    assert len(warnings) == 1 and "memory" in warnings[0]
    journal._files["0"] = kept
    journal.answered("0", [{"role": "user", "content": "go on"}], [], [1, 2, 3], turn("b", [4]))
    assert len(warnings) == 2
    made = folded((folder_of(record) / "0.jsonl").read_bytes())
    assert made is not None and [step["action"] for step in made["steps"]] == ["a", "b"]
    full.close()
    journal.end("0")
    journal.close()
    assert os.listdir(tmp_path) == [record.name] and not record.read_bytes().strip(), "its first line is covered"
