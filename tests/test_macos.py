"""Everything but the sandbox of this machine runs on macOS. Elsewhere this is simulated: a process that believes it.

In the simulation the names that Linux alone has in `os` and `select` are gone, `sys.platform` is "darwin", and every
module of the package is imported again. Other libraries stay those of this system.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from agent_gym.sandbox import LocalSandbox
from agent_gym.serve.services import SandboxServer, bind

_PROGRAM = """
import importlib, os, pkgutil, platform, select, sys

def load():
    import agent_gym
    failed = {}
    for one in pkgutil.walk_packages(agent_gym.__path__, "agent_gym."):
        if ".inside" in one.name or one.name.endswith("__main__"):
            continue  # what runs in the confined processes themselves
        try:
            importlib.import_module(one.name)
        except Exception as error:  # a package that is not installed here
            if not isinstance(error, ImportError) and "needs the package" not in str(error):
                raise
            failed[one.name] = str(error)
    return failed

if sys.argv[2] == "core":  # without what takes seconds to import
    sys.modules |= dict.fromkeys("datasets faiss matplotlib sklearn torch transformers trl vllm".split())
before = load()
if sys.platform != "darwin":
    for name in [name for name in sys.modules if name.partition(".")[0] == "agent_gym"]:
        del sys.modules[name]
    sys.platform = "darwin"
    platform.machine = lambda: "arm64"
    for module, names in ((os, "memfd_create MFD_CLOEXEC sched_getaffinity pidfd_open"), (select, "epoll")):
        for name in names.split():
            delattr(module, name)
    assert load() == before, (load(), before)

import agent_gym
from agent_gym.testing import expert_episode
for env_id in ("GSM8K-v0", "Bisect-v0", "ALFWorld-v0", "WebShop-v0"):
    log = expert_episode(agent_gym.make("AgentR1/" + env_id), seed=0)
    assert log[-1][-1]["is_success"], env_id
try:
    agent_gym.make("AgentR1/ReTool-v0")
except agent_gym.ConfigError as error:
    assert "darwin" in str(error) and "sandbox='http://" in str(error), error
else:
    raise AssertionError("a sandbox on macOS")
if sys.argv[1]:
    log = expert_episode(agent_gym.make("AgentR1/ReTool-v0", sandbox=sys.argv[1]), seed=0)
    assert log[-1][-1]["is_success"] and any(info["tool_calls"] for *_, info in log[1:]), log
"""


@pytest.mark.parametrize("parts", ["core", pytest.param("all", marks=pytest.mark.slow)])
def test_all_but_the_sandbox_runs_and_a_sandbox_elsewhere_is_reached(parts: str) -> None:
    with served_sandbox() as url:
        words = [sys.executable, "-c", _PROGRAM, url, parts]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@contextmanager
def served_sandbox() -> Iterator[str]:
    """Serve a sandbox at an address; on macOS itself there is none, and the address is empty."""
    if sys.platform == "darwin":
        yield ""
        return
    listener = bind(port=0)
    with listener, closing(LocalSandbox(servers=1, packages=())) as sandbox, SandboxServer(sandbox, listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()
