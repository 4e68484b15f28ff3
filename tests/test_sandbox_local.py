"""The pool: verdicts, outputs, seeds, many at once, and what happens when processes die or fork."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from process_tools import alive, held, holds_in_a_fork, until
from sandbox_net import opened

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.sandbox import (
    Limits,
    LocalSandbox,
    Sandbox,
    SandboxError,
    SandboxUnavailable,
    make_sandbox,
    shared_sandbox,
)
from agent_gym.sandbox.base import CUT

QUICK = ("numpy",)
"""Packages that a fork server imports in no time: of sympy it takes longer than all of these tests."""
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=4, memory_mb=128, output_bytes=1000, written_bytes=100_000)


@pytest.fixture(scope="module")
def sandbox():
    with opened(LIMITS, servers=2, slots=4, packages=QUICK) as sandbox:
        yield sandbox


def test_no_free_descriptor_is_our_failure_and_passes(sandbox):
    sandbox.run("1")  # its fork servers are there
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for use in (lambda: sandbox.run("print(1)"), sandbox.session):
            with pytest.raises(SandboxError, match="Too many open files"):
                use()
        for _ in range(3):
            os.close(taken.pop())
        with pytest.raises(SandboxError, match="Too many open files"):
            sandbox.session()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sandbox.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("print(1)", "ok", 0),
        ("import sys; sys.exit(3)", "error", 3),
        ("while True: pass", "cpu_limit", None),
        ("import time; print('so far'); time.sleep(60)", "wall_limit", None),
        ("x = bytearray(1 << 30)", "memory_limit", 1),
        ("import numpy; numpy.ones(1 << 30)", "memory_limit", 1),
        ("while True: print('x' * 100)", "output_limit", 1),
        ("import os; os.abort()", "killed", -6),
    ],
)
def test_how_a_program_ended(sandbox, code, status, exit_code):
    done = sandbox.run(code)
    assert (done.status, done.exit_code) == (status, exit_code), done
    assert done.succeeded == (status == "ok")
    if status == "cpu_limit":
        assert done.cpu_seconds >= LIMITS.cpu_seconds
    if status == "wall_limit":
        assert done.stdout == "so far\n", "what was printed before a kill is not lost"


def test_outputs_are_clean_text_and_long_ones_keep_their_ends(sandbox):
    done = sandbox.run("print('a' * 600 + 'é' * 2000 + 'z' * 600); import sys; print('e' * 10, file=sys.stderr)")
    head, tail = done.stdout.split(CUT)
    assert done.truncated and done.status == "ok"
    assert (head, tail.strip()) == ("a" * 500, "z" * 499)
    assert done.stderr == "e" * 10 + "\n"
    halves = sandbox.run("print('é' * 2000, end='')").stdout
    assert set(halves.replace(CUT, "")) == {"é"}, "no half characters at the cut"

    done = sandbox.run("import os; os.write(1, bytes(range(256)))")
    assert "\x00" not in done.stdout and "\x1b" not in done.stdout and "\t\n" in done.stdout
    done.stdout.encode()


def test_equal_seeds_give_equal_programs_and_input_is_read(sandbox):
    code = "import random, numpy; print(random.random(), numpy.random.rand(), list({'a', 'b', 'c'}), hash('x'))"
    with ThreadPoolExecutor(6) as pool:
        first, *others = pool.map(lambda _: sandbox.run(code, seed=7).stdout, range(6))
    assert others == [first] * 5, "whichever fork server it was"
    assert sandbox.run(code, seed=8).stdout != first
    assert sandbox.run("print(1)", seed=2**63 - 1).stdout == sandbox.run("print(1)", seed=-1).stdout == "1\n"
    assert sandbox.run("print(input(), input())", stdin="a\nb\n").stdout == "a b\n"
    assert "EOFError" in sandbox.run("input()").stderr


def test_many_at_once_and_the_caller_stays_as_it_was(sandbox):
    def one(i):
        return sandbox.run(f"import os; print({i} ** 2)" if i % 16 else "while True: pass").stdout

    one(1)
    before = held()
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(one, range(1, 65)))
    assert found == [f"{i * i}\n" if i % 16 else "" for i in range(1, 65)]
    assert not held() - before


def test_waiting_for_a_slot_is_not_counted(sandbox):
    """Programs that sleep for most of the wall limit, four times as many as slots: all end well."""
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: sandbox.run("import time; time.sleep(0.8)").status, range(16)))
    assert found == ["ok"] * 16


def test_a_killed_fork_server_costs_no_verdict(sandbox):
    with ThreadPoolExecutor(4) as pool:
        program = "import time; print('begun', flush=True); time.sleep(1); print('done')"
        futures = [pool.submit(sandbox.run, program) for _ in range(4)]
        time.sleep(0.4)
        victim = sandbox.server()
        os.kill(victim.pid, signal.SIGKILL)
        assert [future.result().stdout for future in futures] == ["begun\ndone\n"] * 4, "nothing of a lost attempt"
    assert not victim.alive
    assert sandbox.run("print(1)").stdout == "1\n"


def test_fork_servers_that_keep_dying_are_a_failure_of_ours(sandbox, monkeypatch):
    start = sandbox.server

    def doomed():
        server = start()
        os.kill(server.pid, signal.SIGKILL)
        return server

    monkeypatch.setattr(sandbox, "server", doomed)
    with pytest.raises(SandboxError, match="fork server"):
        sandbox.run("import time; time.sleep(1)")
    assert issubclass(SandboxError, EnvFailure)


def test_nothing_survives_a_caller_that_was_killed():
    script = """
        import threading, time
        from agent_gym.sandbox import Limits, LocalSandbox
        sandbox = LocalSandbox(Limits(cpu_seconds=60, wall_seconds=60), servers=1, slots=2, packages=())
        session = sandbox.session()
        for code in ("while True: pass", "import time; time.sleep(60)"):
            threading.Thread(target=sandbox.run, args=(code,), daemon=True).start()
        time.sleep(0.3)
        server = sandbox.server().pid
        children = open(f"/proc/{server}/task/{server}/children").read()
        print(server, children, flush=True)
        time.sleep(60)
    """
    caller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    try:
        pids = caller.stdout.readline().split()
    finally:
        caller.kill()
        caller.wait()
    assert len(pids) == 4, "a fork server, two programs and a session"
    until(lambda: not any(map(alive, pids)))


def test_a_forked_process_has_fork_servers_of_its_own(sandbox):
    """As the workers of a vector environment do; also while threads of the parent are in the middle of something."""
    mine = {server.pid for server in sandbox._pool}
    with ThreadPoolExecutor(4) as busy:
        futures = [busy.submit(sandbox.run, "import time; time.sleep(0.3); print('parent')") for _ in range(8)]

        def good() -> bool:
            printed = sandbox.run("print('child')").stdout
            others = {server.pid for server in sandbox._pool}
            sandbox.close()
            return printed == "child\n" and not others & mine

        assert holds_in_a_fork(good)
        assert [future.result().stdout for future in futures] == ["parent\n"] * 8


def test_copies_and_pickles_are_the_sandbox_itself(sandbox):
    assert copy.deepcopy(sandbox) is sandbox and copy.copy(sandbox) is sandbox
    assert pickle.loads(pickle.dumps(sandbox)) is sandbox
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_gym.sandbox.local._made", set())  # as in a process without such a sandbox
        made = pickle.loads(pickle.dumps(sandbox))
    assert made is not sandbox and made.limits == sandbox.limits and made.slots == 4
    made.close()


def test_a_sandbox_that_nothing_refers_to_ends_its_fork_servers():
    sandbox = LocalSandbox(LIMITS, servers=2, packages=QUICK)
    session = sandbox.session()
    assert session.run("1 + 1").stdout == "2\n"
    pids = [str(server.pid) for server in sandbox._pool]
    del sandbox
    gc.collect()
    assert all(map(alive, pids)), "its session still needs it"
    del session
    gc.collect()
    assert len(pids) == 2 and not any(map(alive, pids))


def test_packages_are_those_that_were_named():
    sandbox = LocalSandbox(LIMITS, servers=1, packages=("numpy", "no_such_package"))
    try:
        assert list(sandbox.report["missing_packages"]) == ["no_such_package"]
        assert sandbox.run("import numpy").succeeded
        for name in ("sympy", "no_such_package", "agent_gym"):
            assert f"No module named '{name}'" in sandbox.run(f"import {name}").stderr
        pid = sandbox.server().pid
        sandbox.close()
        assert not alive(str(pid)), "close ends everything, and the next program begins anew"
        assert sandbox.run("print(1)").stdout == "1\n"
    finally:
        sandbox.close()


def test_settings_that_cannot_be_are_refused():
    for settings, message in (
        ({"waive": {"walls"}}, "fs_read"),
        ({"waive": "cpu"}, "must be a set"),
        ({"servers": -1}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            LocalSandbox(**settings)
    for name, value in (("cpu_seconds", 0), ("memory_mb", True), ("wall_seconds", float("inf")), ("output_bytes", "1")):
        with pytest.raises(ConfigError, match=name):
            Limits(**{name: value})


def test_on_other_systems_the_error_names_the_ways_out(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="agent-gym serve sandbox") as refused:
        LocalSandbox()
    assert refused.value.property == "everything" and isinstance(refused.value, ConfigError)


def test_sandboxes_by_name(sandbox):
    shared = make_sandbox()
    assert make_sandbox("local") is shared is shared_sandbox()
    assert make_sandbox(sandbox) is sandbox and isinstance(sandbox, Sandbox)
    assert make_sandbox("http://127.0.0.1:1").url == "http://127.0.0.1:1"
    for spec in ("docker", 5, "ftp://x", object()):
        with pytest.raises(ConfigError, match="'local'"):
            make_sandbox(spec)
    shared.close()
