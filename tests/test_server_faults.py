"""A model server is killed while two ranks train: both stop, name the cause, and go on with another server as if never.

Where in a step the server dies is drawn from a seed; AGENT_GYM_TEST_SEED tries others.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from engines import EOS, largest_difference, make_requests  # noqa: E402
from model_server import model_server, model_servers  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM, TrainerCallback  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.policies import Generation  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
SEED = int(os.environ.get("AGENT_GYM_TEST_SEED", "0"))
STEPS = 4
RUN: dict[str, Any] = {"max_steps": STEPS, "optim": "adamw_torch", "lr_scheduler_type": "cosine"}


class Kill(TrainerCallback):
    """Kills a server once, in the step after `step`, at a point drawn from a seed."""

    def __init__(self, trainer: Any, server: int, when: str, step: int, rng: random.Random) -> None:
        self.trainer, self.server, self.when, self.step = trainer, server, when, step
        self.at: float | None = None
        policy, n_weights = trainer.runner.policy, len(list(trainer.model.parameters()))
        self.left = rng.randrange(1, 6) if when == "rollout" else rng.randrange(n_weights)
        submit, sync = policy.submit, policy.sync
        policy.submit = lambda request: (self.count("rollout"), submit(request))[1]
        policy.sync = lambda named: sync((self.count("sync"), pair)[1] for pair in named)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.left = 0 if self.when == "update" else self.left
        self.count("update")

    def count(self, what: str) -> None:
        if self.when == what and self.at is None and self.trainer.state.global_step == self.step:
            if self.left == 0:
                os.killpg(self.server, signal.SIGKILL)
                self.at = time.monotonic()
            self.left -= 1


def build(folder: str, url: str, transfer: str) -> Any:
    return make_trainer(
        folder,
        policy=None,
        layout="server",
        vllm_server_base_url=url,
        weights_transfer=transfer,
        per_device_train_batch_size=4,
        save_strategy="steps",
        save_steps=1,
        **RUN,
    )


def killed(folder: str, url: str, server: int, when: str, transfer: str, seed: int) -> tuple[str, float | None, float]:
    """Train until the server is killed; return the error, when rank 0 killed it, and when this rank had stopped."""
    trainer = build(folder, url, transfer)
    rng = random.Random(f"{seed} {when} {transfer}")
    step = rng.randrange(1, STEPS - 1)
    trainer.runner  # noqa: B018  (all ranks make their policy at the same point)
    fault = Kill(trainer, server, when, step, rng) if os.environ["RANK"] == "0" else None
    if fault is not None:
        trainer.add_callback(fault)
    with pytest.raises(RolloutError) as caught:
        trainer.train()
    return str(caught.value), fault.at if fault else None, time.monotonic()


def resumed(folder: str, url: str) -> tuple[Any, list[int]]:
    trainer = build(folder, url, "files")
    trainer.train(resume_from_checkpoint=True)
    trainer.runner.policy.close()
    return weights(trainer.model), [log["step"] for log in trainer.state.log_history if "time/update" in log]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with model_server(Path(model_folder()), tmp_path_factory.mktemp("healthy") / "log.txt", context=256) as (url, _):
        yield url


@functools.cache
def undisturbed() -> tuple[Any, dict[str, Any]]:
    """The weights, and the start, of a run in one process without a server."""
    trainer = make_trainer(tempfile.mkdtemp(), policy=None, per_device_train_batch_size=8, **RUN)
    start = weights(trainer.model)
    trainer.train()
    return weights(trainer.model), start


@pytest.mark.parametrize(
    ("when", "transfer"), [("rollout", "files"), ("sync", "files"), ("sync", "broadcast"), ("update", "files")]
)
def test_killed(healthy: str, when: str, transfer: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with model_server(Path(model_folder()), tmp_path / "log.txt", context=256) as (url, process):
        stopped = in_ranks(killed, 2, str(folder), url, process.pid, when, transfer, SEED, timeout_s=600)
    killed_at = stopped[0][1]
    assert killed_at is not None
    for message, _, stopped_at in stopped:
        assert "cannot be reached" in message and "--resume_from_checkpoint" in message
        assert stopped_at - killed_at < 60, "seconds; a wait for the server would last for minutes"
    assert message.startswith("process 0 failed") or when == "rollout", "rank 1 names whose failure it was"

    saved = max(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))
    assert 1 <= saved < STEPS
    (one, steps), (other, _) = in_ranks(resumed, 2, str(folder), healthy, timeout_s=600)
    assert steps == list(range(1, STEPS + 1)), "each step counts once, those before the kill from the checkpoint"
    expected, start = undisturbed()
    assert distance(one, other) == 0.0
    assert distance(one, expected) < 1e-5, "an episode that counted twice, or not at all, would show here"
    assert distance(one, start) > 1e-3


def signal_engine(server: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill the engine of a server, a process of its own, and nothing else, or send it another signal."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(server)], capture_output=True, text=True, check=True
    )
    [engine] = [int(line.split()[0]) for line in listed.stdout.splitlines() if "Engine" in line]
    os.kill(engine, number)


def test_an_engine_is_killed_and_its_server_answers_that(tmp_path: Path) -> None:
    """Until it ends, which takes seconds, the server answers with an error of its own. Others take its turns."""
    requests, model = make_requests(24), AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    with model_servers(Path(model_folder()), [tmp_path / "0.txt", tmp_path / "1.txt"], context=256) as servers:
        urls = [url for url, _ in servers]
        with closing(VLLMServerPolicy(urls, [EOS], context=256)) as policy:
            for request in requests:
                policy.submit(request)
            signal_engine(servers[0][1].pid)
            finished: dict[int, Generation] = {}
            with pytest.warns(UserWarning, match=f"{urls[0]} is left out"):
                while policy.pending:
                    finished |= {one.id: one for one in policy.poll()}
            assert largest_difference(model, requests, finished) < 1e-5
            for request in requests:
                policy.submit(request)
            signal_engine(servers[1][1].pid)
            with pytest.raises(RolloutError, match=f"{urls[1]} .*--resume_from_checkpoint"):
                while policy.pending:
                    policy.poll()


def test_an_engine_is_killed_while_it_takes_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's server then keeps the call of its workers open, and stops listening."""
    monkeypatch.setattr("agent_gym.policies.vllm.server._SILENCE_S", 1.0)
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    with model_server(Path(model_folder()), tmp_path / "log.txt", context=256) as (url, server):
        with closing(VLLMServerPolicy([url], [EOS], context=256)) as policy:
            policy.sync(model.named_parameters())
            signal_engine(server.pid, signal.SIGSTOP)
            killer = threading.Timer(4.0, signal_engine, [server.pid])
            killer.start()
            with pytest.raises(RolloutError, match="no answer.*--resume_from_checkpoint"):
                policy.sync(model.named_parameters())
            assert killer.finished.is_set(), "it was waited for as long as it lived"
            killer.join()
