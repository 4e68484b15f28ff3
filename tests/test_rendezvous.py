"""The trainers' rendezvous listens at one private address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from agent_gym.cli import rendezvous
from agent_gym.cli.rendezvous import ADDRESS, listening_address
from agent_gym.errors import ConfigError

HOLD = """
from agent_gym.cli.rendezvous import bind_store
bind_store()
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
def parameters(is_host):
    return RendezvousParameters("c10d", "127.0.0.5:PORT", "run", 1, 1, None, is_host=is_host)
backend, store = create_backend(parameters(True))
store.set("a", "b")
other, again = create_backend(parameters(False))
print(again.get("a"), flush=True)
input()
"""


def test_the_store_listens_at_the_address_that_is_given_and_at_no_other():
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", HOLD.replace("PORT", str(port))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, ADDRESS: "127.0.0.5"}, **pipes) as holder:
        assert holder.stdout.readline() == "b'b'\n"
        socket.create_connection(("127.0.0.5", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.6", port), timeout=5)
        holder.communicate("\n")
    assert holder.returncode == 0


def test_the_address_is_the_one_that_other_machines_reach():
    assert listening_address(["some-name", "127.0.0.1"], 29500) == "127.0.0.1"
    assert listening_address(["localhost"], 29500) in ("127.0.0.1", "::1")
    with pytest.raises(ConfigError, match="unknown here"):
        listening_address(["a", "no-such-host.invalid"], 29500)


def test_a_public_address_has_to_be_allowed(monkeypatch):
    monkeypatch.setattr(rendezvous, "_source", lambda host, port: "8.8.8.8")
    with pytest.raises(ConfigError, match="--allow_public_address"):
        listening_address(["a", "b"], 29500)
    assert listening_address(["a", "b"], 29500, public=True) == "8.8.8.8"
    monkeypatch.setattr(rendezvous, "_source", lambda host, port: {"b": "10.0.0.1", "c": "192.168.0.1"}[host])
    with pytest.raises(ConfigError, match="one network"):
        listening_address(["a", "b", "c"], 29500)


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.2, 0.3, 0.5])
def test_ctrl_c_during_imports_is_at_most_one_line(delay: float):
    command = [sys.executable, "-m", "agent_gym", "list"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    # Before Python has found the package, the message is Python's own.
    assert errors in ("", "agent-gym: interrupted\n") or "agent_gym/" not in errors, errors


def test_a_closed_terminal_ends_a_command_as_sigterm_does():
    command = [sys.executable, "-m", "agent_gym", "play", "GSM8K"]

    def attached() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=attached, **pipes) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == -signal.SIGTERM
