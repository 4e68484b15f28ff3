"""A colocated vLLM in a process of its own: real servers, which belong to who has started them and end with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from process_tools import until  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, settings, weights  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies import Engine, Interruptible  # noqa: E402
from agent_gym.policies.vllm import child  # noqa: E402
from agent_gym.policies.vllm.child import VLLMChildPolicy  # noqa: E402
from agent_gym.trainers import engine  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT = 512
TOLERANCE = 1e-5


def group(leader: int) -> list[str]:
    """The living processes that a server consists of, by their names."""
    found = subprocess.run(["pgrep", "--list-name", "--runstates", "RSD", "-g", str(leader)], capture_output=True)
    return found.stdout.decode().splitlines()


@pytest.mark.slow
def test_it_samples_syncs_sleeps_is_interrupted_and_leaves_nothing() -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    with closing(VLLMChildPolicy(model_folder(), [EOS], context=CONTEXT, kv_cache_gib=0.1)) as policy:
        assert isinstance(policy, Engine) and isinstance(policy, Interruptible)
        server, folder = policy._server.pid, policy._folder
        assert any("Engine" in line for line in group(server))
        assert folder.stat().st_mode & 0o077 == 0, "others cannot reach the socket"
        requests = make_requests(8)
        policy._sleeps = True  # on a CPU vLLM gives up no memory, but takes the same commands
        for seed in range(2):
            policy.sleep()
            with pytest.raises(RolloutError, match="the engine sleeps; call sync"):
                policy.submit(requests[0])
            disturb(model, seed)
            policy.wake()
            policy.sync(model.named_parameters())
            assert largest_difference(model, requests, run(policy, requests)) < TOLERANCE
        for request in make_requests(200, max_tokens=400):  # more than it decodes at once
            policy.submit(request)
        time.sleep(0.5)
        begun = policy.interrupt()
        assert policy.pending == 0 and "abort" in {turn.finish_reason for turn in begun}
        assert len(run(policy, requests)) == 8
    until(lambda: not group(server))
    assert not folder.exists()


@pytest.mark.slow
def test_a_model_that_cannot_be_served_is_reported_in_the_words_of_vllm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"does not start in a separate process; (?s:.)*Error"):
        VLLMChildPolicy(tmp_path, [EOS], context=CONTEXT)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["EngineCor", "python"], ids=["engine", "server"])
def test_the_end_of_a_part_ends_the_rollout_with_what_the_log_tells(victim: str) -> None:
    with closing(VLLMChildPolicy(model_folder(), [EOS], context=CONTEXT, kv_cache_gib=0.1)) as policy:
        for request in make_requests(4, max_tokens=400):
            policy.submit(request)
        leader = policy._server.pid
        found = leader if victim == "python" else int(next(x for x in group(leader) if victim in x).split()[0])
        os.kill(found, signal.SIGKILL)
        began = time.monotonic()
        told = r"the last lines of its log:\n." if victim == "python" else r"the errors in its log:\n[\w.]+Error: "
        with pytest.raises(RolloutError, match=f"process has ended; .* resume with .*{told}"):
            while policy.pending:
                policy.poll()
        assert time.monotonic() - began < 30
        until(lambda: not group(leader))


STARTS_ONE = """
import os, signal, sys
from agent_gym.policies.vllm.child import VLLMChildPolicy
policy = VLLMChildPolicy(sys.argv[1], [2], context=512, kv_cache_gib=0.1)
print(policy._server.pid, flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit("a trainer that does not close its policy")
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_it_ends_with_its_trainer_however_that_ends(end: str) -> None:
    command = [sys.executable, "-c", STARTS_ONE, model_folder(), end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 1), done.stderr[-2000:]
    until(lambda: not group(int(done.stdout)))


def trained(folder: str, own: bool, batch: int) -> Any:
    options = {"use_vllm": True, "engine_process": own, "max_steps": 2, "per_device_train_batch_size": batch}
    trainer = make_trainer(folder, policy=None, **options)
    trainer.train()
    assert isinstance(trainer.runner.policy, VLLMChildPolicy) == own
    trainer.runner.policy.close()
    return weights(trainer.model)


@pytest.mark.slow
def test_two_ranks_with_an_engine_each_train_as_one_process_with_its_own(tmp_path: Path) -> None:
    here = trained(str(tmp_path / "here"), False, 8)
    one, other = in_ranks(trained, 2, str(tmp_path / "two"), True, 4, timeout_s=600)
    assert distance(here, one) < 1e-5 and distance(one, other) == 0.0


def test_where_the_engine_runs_is_chosen_by_the_device_and_what_the_policy_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reads:
        vision: Any = None

    def chosen(own: bool | None) -> bool:
        renderer: ChatRenderer = Reads()  # type: ignore[assignment]
        return engine._in_own_process(settings(tmp_path, engine_process=own), renderer)

    assert (chosen(None), chosen(True), chosen(False)) == (False, True, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen(None) and not chosen(False)
    Reads.vision = object()
    assert not chosen(None)
    with pytest.raises(ConfigError, match="engine_process is true, and vLLM reads images"):
        chosen(True)


@pytest.mark.parametrize(
    ("bf16", "device", "expected"), [(True, "cuda", "bfloat16"), (False, "cuda", "float16"), (False, "cpu", None)]
)
def test_the_engine_computes_as_the_loss_does(bf16: bool, device: str, expected: str | None) -> None:
    args: Any = SimpleNamespace(bf16=bf16, device=torch.device(device))
    assert engine._engine_dtype(args, SimpleNamespace(dtype=torch.float16)) == expected


@pytest.mark.parametrize(("visible", "device"), [(None, "1"), ("4,6", "6")])
def test_the_engine_sees_the_device_of_its_trainer_and_nothing_of_its_group(
    visible: str | None, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in {"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "CUDA_VISIBLE_DEVICES": visible}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    (tmp_path / "log.txt").touch()
    command = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]  # which does not end by itself
    server = child._start(command, tmp_path / "log.txt", "key")
    seen = Path(f"/proc/{server.pid}/environ").read_bytes().decode().split("\0")
    child._end(server, tmp_path)
    assert f"CUDA_VISIBLE_DEVICES={device}" in seen and "AGENT_GYM_SERVER_KEY=key" in seen
    assert not [line for line in seen if line.startswith(("RANK=", "TORCHELASTIC", "VLLM_ENABLE_V1"))]
    assert not tmp_path.exists()
