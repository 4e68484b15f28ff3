"""The sandbox server over real connections, its client, and servers that others wrote."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cli_tools import complaint
from sandbox_net import opened
from search_tools import answering, reply, running
from serve_tools import ask

from agent_gym.errors import ConfigError
from agent_gym.sandbox import Limits, RemoteSandbox, Sandbox, SandboxError
from agent_gym.serve.services import SandboxServer, bind

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=4, memory_mb=128, output_bytes=2000, written_bytes=50_000)


@pytest.fixture(scope="module")
def local():
    with opened(LIMITS, servers=1, packages=()) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def server(local):
    with running(SandboxServer(local, bind(port=0))) as server:
        yield server


@pytest.fixture
def remote(server):
    sandbox = RemoteSandbox(server.url, limits=LIMITS)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    "code",
    [
        "print('ž')",
        "import sys; print('e', file=sys.stderr); sys.exit(7)",
        "while True: pass",
        "x = bytearray(1 << 30)",
        "print('x' * 10_000)",
        "import os; os.abort()",
        "print(1)\0",
    ],
)
def test_far_and_near_agree(code, local, remote):
    far, near = remote.run(code), local.run(code)
    assert replace(far, cpu_seconds=0) == replace(near, cpu_seconds=0) and far.cpu_seconds > 0


def test_seeds_and_input_arrive(local, remote):
    assert remote.run("print('\ud800')").status in ("ok", "error"), "a surrogate in the program is no failure of ours"
    code = "import random; print(random.random(), input())"
    assert remote.run(code, seed=5, stdin="in").stdout == local.run(code, seed=5, stdin="in").stdout
    assert remote.run(code, seed=6, stdin="in").stdout != local.run(code, seed=5, stdin="in").stdout


def test_it_is_a_sandbox_without_sessions(remote):
    assert isinstance(remote, Sandbox) and copy.deepcopy(remote) is remote
    assert pickle.loads(pickle.dumps(remote)).url == remote.url
    with pytest.raises(ConfigError, match="no sessions"):
        remote.session()


def test_requests_can_only_tighten_the_limits(server):
    def limited(code, **wanted):
        return ask(server.url, "/run_code", {"code": code, **wanted})[1]["agent_gym"]

    assert limited("import time; time.sleep(60)", run_timeout=0.3)["status"] == "wall_limit"
    spent = limited("while True: pass", run_timeout=1000)
    assert spent["status"] == "cpu_limit" and spent["cpu_seconds"] < 1.0
    assert limited("x = bytearray(64 << 20)", memory_limit_MB=32)["status"] == "memory_limit"
    assert limited("x = bytearray(1 << 30)", memory_limit_MB=4096)["status"] == "memory_limit"
    assert limited("print(1)", memory_limit_MB=-1, run_timeout=None, stdin=None)["status"] == "ok"
    assert limited("print(1)", memory_limit_MB=10**300, run_timeout=10**400, cpu_limit_s=0)["status"] == "ok"


def test_the_protocol_of_sandboxfusion(server):
    def run_code(**body):
        return ask(server.url, "/run_code", body)[1]

    content = run_code(code="print(1)", language="python", files={}, compile_timeout=1)
    assert content["status"] == "Success" and content["compile_result"] is None
    assert content["run_result"].items() >= {"status": "Finished", "return_code": 0, "stdout": "1\n"}.items()
    failed = run_code(code="import sys; sys.exit(2)")
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 2)
    late = run_code(code="while True: pass", run_timeout=0.2)
    assert (late["status"], late["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert ask(server.url, "/v1/ping")[:2] == (200, "pong")
    status, content, _ = ask(server.url, "/health")
    assert status == 200 and content["status"] == "ok" and all(content["report"]["enforced"].values())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"code": 5}, "code must be a text"),
        ({"code": "", "language": "cpp"}, "python only"),
        ({"code": "", "files": {"a": "eA=="}}, "files is not supported"),
        ({"code": "", "seed": "x"}, "seed is 'x'"),
        ({"code": "", "run_timeout": "1"}, "run_timeout is '1'"),
        ({"code": "", "memory_limit_MB": 3}, "memory_mb is 3"),
        ({"code": "", "memory_limit_MB": 0.5}, "memory_mb is 1"),
        ('{"code": "", "memory_limit_MB": 1e400}', "memory_limit_MB is inf"),
        ({"code": "", "run_timeout": -0.5}, "run_timeout is -0.5"),
        ('{"code": "", "cpu_limit_s": NaN}', "cpu_limit_s is nan"),
    ],
)
def test_what_clients_get_wrong_is_named(server, body, message):
    status, content, _ = ask(server.url, "/run_code", body)
    assert status == 400 and message in content["detail"]


def test_a_sandbox_that_fails_behind_the_server_is_a_failure_here(server, remote, local, monkeypatch):
    def fail(*args, **kwargs):
        raise SandboxError("no fork server")

    monkeypatch.setattr(local, "run", fail)
    with pytest.raises(SandboxError, match="no fork server"):
        remote.run("print(1)")


# Servers of others, played.

FINISHED = {"status": "Finished", "return_code": 0, "stdout": "out\x00", "stderr": "", "execution_time": 0.1}


@contextmanager
def playing(*answers):
    """A server that gives these answers, one after the other."""
    with answering(*answers) as (url, requests, _):
        yield RemoteSandbox(url, limits=LIMITS, retries=2), requests


def other(status, content):
    return reply(content, f"{status} X", "Connection: close\r\n")


def answer(status, /, **result):
    return other(200, {"status": status, "message": "m", "run_result": {**FINISHED, **result}})


def test_answers_of_a_sandboxfusion():
    expected = [
        (answer("Success"), "ok", 0),
        (answer("Failed", return_code=3), "error", 3),
        (answer("Failed", return_code=-11), "killed", -11),
        (answer("Failed", return_code=1, stderr="Traceback\nMemoryError\n"), "memory_limit", 1),
        (answer("Failed", status="TimeLimitExceeded", return_code=None), "wall_limit", None),
    ]
    with playing(*(given for given, *_ in expected), answer("Success", stdout="x" * 10_000)) as (sandbox, requests):
        done = [sandbox.run("x", stdin="in") for _ in expected]
        long = sandbox.run("x")
    assert [(one.status, one.exit_code) for one in done] == [tuple(rest) for _, *rest in expected]
    assert done[0].stdout == "out\ufffd"
    assert long.truncated and len(long.stdout) < 2100
    sent = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert (
        sent.items() >= {"code": "x", "language": "python", "run_timeout": LIMITS.wall_seconds, "stdin": "in"}.items()
    )


def test_a_server_that_fails_is_not_a_wrong_answer_and_is_not_asked_twice():
    failures = [
        answer("SandboxError"),
        answer("Failed", status="Error"),
        other(500, {}),
        other(200, {"status": "Success"}),
        other(200, {"status": "Success", "run_result": {"status": "Finished", "return_code": "x"}}),
    ]
    with playing(*failures) as (sandbox, requests):
        for _ in failures:
            with pytest.raises(SandboxError):
                sandbox.run("x")
    assert len(requests) == len(failures)


def test_a_program_whose_server_was_lost_or_busy_is_run_again_but_not_for_ever():
    with playing(b"", b"", answer("Success")) as (sandbox, requests):
        assert sandbox.run("x").succeeded
        assert len(requests) == 3
    with playing(b"", b"", b"", answer("Success")) as (sandbox, requests):
        with pytest.raises(SandboxError, match="cannot be reached .*tried 3 times"):
            RemoteSandbox(sandbox.url).run("x")
        assert len(requests) == 3
    with playing(other(429, {}), other(503, {}), answer("Success")) as (sandbox, requests):
        assert sandbox.run("x").succeeded
        assert len(requests) == 3


# The command.


def test_the_command_serves_until_a_signal_ends_it(local):
    words = ["-m", "agent_gym", "serve", "sandbox", "--port", "0", "--slots", "2", "--cpu_seconds", "0.3"]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        line = process.stderr.readline()
        assert line.startswith("running programs at http://127.0.0.1:"), line + process.stderr.read()
        sandbox = RemoteSandbox(line.split()[-1])
        assert sandbox.run("print(1)").stdout == "1\n"
        assert sandbox.run("while True: pass").status == "cpu_limit"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and "stopped" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_command_names_what_is_wrong(capsys):
    assert "invalid choice: 'files'" in complaint(capsys, "serve", "files")
    with pytest.raises(ConfigError, match="at least 1"):
        RemoteSandbox("http://x", concurrency=0)
    assert "cpu_seconds is 0.0" in complaint(capsys, "serve", "sandbox", "--cpu_seconds", "0")
    assert "invalid choice: 'walls'" in complaint(capsys, "serve", "sandbox", "--waive", "walls")
    assert "unknown argument '--corpus'" in complaint(capsys, "serve", "sandbox", "--corpus", "x")
