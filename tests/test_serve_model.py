"""`agent-gym serve model`: the command line that it becomes."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import pytest

from agent_gym.cli.serve import serve
from agent_gym.errors import ConfigError
from agent_gym.policies.vllm import launch
from agent_gym.policies.vllm.launch import server_command

WANTED = {"host": "127.0.0.1", "port": 8010, "context": 300, "max_num_seqs": 8}


@pytest.fixture(params=[False, True], ids=["gpu build", "cpu build"])
def on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(launch, "is_cpu_build", lambda: request.param)
    monkeypatch.setattr(launch, "installed", lambda name: name == "vllm")
    return request.param


def test_the_flags_are_those_of_the_installed_vllm(on_cpu: bool) -> None:
    cli = pytest.importorskip("vllm.entrypoints.launchers.cli_args")
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = server_command("org/model", **WANTED, further=["--max-num-seqs", "9"])
    start = command.index("org/model") + 1
    parsed = cli.make_arg_parser(FlexibleArgumentParser()).parse_args(command[start:])
    assert (parsed.max_model_len, parsed.max_num_seqs, parsed.port) == (300, 9, 8010)
    assert parsed.logprobs_mode == "processed_logprobs" and parsed.generation_config == "vllm"
    assert parsed.allowed_origins == [] and parsed.middleware == ["agent_gym.policies.vllm.launch.Guard"]
    assert parsed.enable_scale_out and parsed.worker_extension_cls.endswith("vllm.weights.WeightReceiver")
    assert (parsed.enable_chunked_prefill is False) == on_cpu


def test_a_build_for_gpus_is_started_by_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_cpu_build", lambda: False)
    monkeypatch.setattr(launch, "installed", lambda name: True)
    command = server_command("org/model", **WANTED)
    assert command[:5] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "org/model"]
    monkeypatch.setattr(launch, "installed", lambda name: False)
    with pytest.raises(ConfigError, match=r"pip install 'agentic-gym\[vllm"):
        server_command("org/model", **WANTED)


def test_the_command_becomes_vllm(on_cpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: became.append(call))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    serve(["model", "org/model", "--context", "300", "--", "--data-parallel-size", "2"])
    [(program, command, environment)] = became
    assert program == sys.executable and command[-2:] == ["--data-parallel-size", "2"]
    assert command[command.index("--max-model-len") + 1] == "300"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1" and "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment
    printed = capsys.readouterr().err
    assert "http://127.0.0.1:8010" in printed and "key in $AGENT_GYM_SERVER_KEY" in printed
    with pytest.raises(ConfigError, match="unknown argument '--contxt'"):
        serve(["model", "org/model", "--contxt", "300"])


def test_an_address_that_cannot_be_had_is_an_error_and_a_free_port_is_named(
    on_cpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: became.append(call))
    serve(["model", "org/model", "--port", "0"])
    [(_, command, _)] = became
    port = command[command.index("--port") + 1]
    assert int(port) > 0 and f"http://127.0.0.1:{port} " in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for wrong in (str(taken.getsockname()[1]), "99999"):
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {wrong}"):
                serve(["model", "org/model", "--port", wrong])


@pytest.mark.parametrize("size", ["nan", "inf", "0", "-1"])
def test_a_cache_that_is_no_size_is_refused(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_cpu_build", lambda: True)
    with pytest.raises(ConfigError, match="it must be a number of GiB above 0"):
        server_command("org/model", **WANTED, kv_cache_gib=float(size))
