"""Weights from memory to memory: real processes, gloo in place of NCCL. With a server: test_policy_server.py."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies.vllm import weights  # noqa: E402
from agent_gym.policies.vllm.broadcast import Channel, open_store, own_address, reach_store  # noqa: E402
from agent_gym.policies.vllm.weights import WeightSender  # noqa: E402


def receiver(port: int, rank: int, size: int, sizes: list[int], dies: bool, received: Any) -> None:
    channel = Channel(reach_store("127.0.0.1", port), rank, size, "gloo")
    for length in sizes:
        bucket = torch.zeros(length, dtype=torch.uint8)
        channel.broadcast(bucket)
        if dies:
            os._exit(1)
        received.put((rank, bucket.tolist()))


@pytest.fixture
def group() -> Iterator[Callable[..., tuple[Channel, Any]]]:
    """Start receivers; return the sender's end, and the queue of what has come."""
    context = multiprocessing.get_context("fork")
    started = []

    def start(receivers: int, sizes: list[int], dies: bool = False) -> tuple[Channel, Any]:
        store, received = open_store("127.0.0.1"), context.Queue()
        for rank in range(1, receivers + 1):
            process = context.Process(target=receiver, args=(store.port, rank, receivers + 1, sizes, dies, received))
            process.start()
            started.append(process)
        return Channel(store, 0, receivers + 1, "gloo"), received

    yield start
    for process in started:
        process.kill()
        process.join()


def test_bytes_arrive_at_all_members(group: Any) -> None:
    buckets = [torch.arange(200, dtype=torch.uint8), torch.full((1,), 7, dtype=torch.uint8)]
    channel, received = group(2, [200, 1])
    for bucket in buckets:
        channel.broadcast(bucket)
        expected = bucket.tolist()
        assert sorted(received.get(timeout=60) for _ in range(2)) == [(1, expected), (2, expected)]


def test_the_meeting_point_listens_at_its_own_address_only() -> None:
    # All of 127.0.0.0/8 is this machine: 127.0.0.2 stands for another of its addresses.
    store = open_store("127.0.0.1")
    socket.create_connection(("127.0.0.1", store.port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 5)
    reach_store("127.0.0.1", store.port).set("word", "hello")
    assert store.get("word") == b"hello"


def test_a_receiver_that_dies_is_an_error_of_the_sender(group: Any) -> None:
    channel, _ = group(1, [10_000], dies=True)
    with pytest.raises(RuntimeError):
        for _ in range(100):
            channel.broadcast(torch.zeros(10_000, dtype=torch.uint8))


class Described:
    """Servers that report where they are, and refuse to meet."""

    def __init__(self, device: str) -> None:
        self.living = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        self.device, self.calls = device, []  # type: ignore[var-annotated]

    def call_workers(self, method: str, arguments: Any, *, spare: bool = False) -> Future[list[Any]]:
        self.calls.append((method, list(arguments)))
        answer: Future[list[Any]] = Future()
        if method == "join_trainer":
            answer.set_exception(RolloutError("no group"))
        else:
            answer.set_result([[{"device": self.device, "dtype": "float32"}] * 2] * 2)
        return answer

    def world_sizes(self) -> list[int]:
        return [2, 4]


def no_group(*arguments: Any) -> None:
    raise RuntimeError("no group")


@pytest.mark.parametrize(
    ("transfer", "device", "calls"),
    [
        ("auto", "cpu", []),
        ("auto", "cuda", ["join_trainer"]),
        ("files", "cuda", []),
    ],
)
def test_the_way_is_chosen_by_where_both_are(transfer: str, device: str, calls: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(weights, "Channel", no_group)
    servers = Described(device)
    sender = WeightSender(servers, transfer, None)
    if "join_trainer" in calls:
        with pytest.warns(UserWarning, match="weights go through files, because a broadcast is not possible: no group"):
            sender.send([("w", torch.ones(1))])
        [first, second] = dict(servers.calls)["join_trainer"]
        assert first["backend"] == "nccl" and first["size"] == second["size"] == 7
        assert (first["first_rank"], second["first_rank"]) == (1, 3)
    else:
        sender.send([("w", torch.ones(1))])
    taken = ["receive_bucket", "finish_weights"]
    assert [method for method, _ in servers.calls] == ["describe", *calls, *taken]
    sender.send([("w", torch.ones(1))])
    assert [method for method, _ in servers.calls] == ["describe", *calls, *taken, *taken], "the choice is made once"


def test_the_error_names_why_there_is_no_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "Channel", no_group)
    with pytest.raises(RolloutError, match="cannot reach each other for a broadcast: no group"):
        WeightSender(Described("cpu"), "broadcast", None).send([])
    with pytest.raises(ConfigError, match="weights_transfer is 'nccl'; allowed: auto, files, broadcast"):
        WeightSender(Described("cpu"), "nccl", None)
    with pytest.raises(RolloutError, match="no way to http://no.such.host.invalid:1"):
        own_address(["http://no.such.host.invalid:1"])
