"""How many threads a CPU computes with, by the size of the model and what the user has exported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent_gym import threads as module
from agent_gym.threads import cores

CODE = """
from agent_gym.policies.vllm import set_environment
import agent_gym.threads as module
module.begin_with_one_thread()
set_environment()
import torch
module.cores = lambda: 3
def model(weights):
    return torch.nn.Linear(weights, 1, bias=False, device="meta")
threads = [torch.get_num_threads()]
for weights in (1000, module.LARGE):
    module.use_cores(model(weights))
    threads.append(torch.get_num_threads())
print(*threads)
"""


@pytest.mark.parametrize(
    ("exported", "threads"), [(None, "1 1 3"), ("2", "2 2 2"), pytest.param("1", "1 1 1", marks=pytest.mark.slow)]
)
def test_a_large_model_has_all_cores_unless_the_user_exported_a_number(exported: str | None, threads: str) -> None:
    # Not what an engine has left in the environment of this process, which torch may count threads by.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment |= {"OMP_NUM_THREADS": exported} if exported else {}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == threads.split()


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)]
)
def test_a_container_has_the_cores_of_its_quota(monkeypatch, quota: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(module.Path, "read_text", lambda *_, **__: quota)
    assert cores() == expected


def test_a_machine_without_control_groups_has_its_cores(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)

    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(module.Path, "read_text", missing)
    assert cores() == 5
