"""Sessions: names that stay, processes that stand still in between, and programs that pretend to be done."""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest
from process_tools import held, holds_in_a_fork, until
from sandbox_net import opened

from agent_gym.sandbox import Limits, SandboxError

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=4, memory_mb=128)


@pytest.fixture(scope="module")
def sandbox():
    with opened(LIMITS, servers=1, packages=()) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox):
    with sandbox.session() as session:
        yield session


def test_names_stay_and_last_expressions_are_shown(session):
    assert session.run("x = 5\ndef double(n):\n    return 2 * n").stdout == ""
    for code, printed in (
        ("double(x)", "10\n"),
        ("_ + 1", "11\n"),
        ("None", ""),
        ("'text'", "'text'\n"),
        ("for i in range(2):\n    print(i)", "0\n1\n"),
        ("max(\n1,\n2\n)", "2\n"),
        ("1 + 1  # two", "2\n"),
        ("x = 1; x", "1\n"),
        ("# nothing", ""),
        ("", ""),
        ("print('a'), 1", "a\n(None, 1)\n"),
        ("if True:\n    7", ""),
    ):
        done = session.run(code)
        assert (done.status, done.stdout, done.stderr) == ("ok", printed, ""), code


def test_hooks_and_exits_that_fail_show_no_frames_of_ours_and_lose_no_names(session):
    session.run("import sys\nx = 1\ndef hook(*about):\n    raise KeyError('hook')\nsys.excepthook = hook")
    done = session.run("1 / 0")
    assert done.status == "error" and "KeyError: 'hook'" in done.stderr and "ZeroDivisionError" in done.stderr
    assert "agent_gym" not in done.stderr and "program.py" not in done.stderr
    leave = "class Leave(SystemExit):\n    @property\n    def code(self):\n        raise ValueError\nraise Leave('bye')"
    done = session.run(leave)
    assert (done.stderr, done.exit_code) == ("bye\n", 1)
    assert session.run("x").stdout == "1\n"


def test_errors_name_the_call_and_its_lines(session):
    session.run("def divide(n):\n    return 1 / n")
    done = session.run("y = 3\ndivide(0)")
    assert done.status == "error" and done.exit_code == 1
    # Without the lines of marks: versions of Python set them differently.
    lines = [line for line in done.stderr.splitlines() if line.strip(" ~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "cell_2.py", line 2, in <module>',
        "    divide(0)",
        '  File "cell_1.py", line 2, in divide',
        "    return 1 / n",
        "ZeroDivisionError: division by zero",
    ]
    assert session.run("x = (").stderr.endswith("SyntaxError: '(' was never closed\n")
    assert session.run("import sys; sys.exit(4)").exit_code == 4
    assert session.run("z = bytearray(1 << 30)").status == "memory_limit"
    assert session.run("y").stdout == "3\n", "neither an error nor an exit nor full memory loses names"


def test_every_call_has_the_whole_limit(session):
    """0.3 s of CPU time each are more than the limit together, and less one by one."""
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    for _ in range(3):
        done = session.run(spin)
        assert done.status == "ok" and 0.25 < done.cpu_seconds < 0.5


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "cpu_limit"),
        ("import time; time.sleep(60)", "wall_limit"),
        ("import os; os.abort()", "killed"),
        ("import os; os.close(3); os.abort()", "killed"),
        # Half an answer is none.
        ("import os, time; os.write(3, b'1234'); time.sleep(60)", "wall_limit"),
    ],
)
def test_a_limit_or_a_crash_ends_the_session(session, code, status):
    assert session.run("x = 1").succeeded
    assert session.run(f"print('before')\n{code}").status == status
    over = session.run("x")
    assert over.status == "killed" and "over" in over.stderr


def test_sessions_know_nothing_of_each_other(sandbox):
    with sandbox.session(seed=1) as one, sandbox.session(seed=1) as other:
        one.run("x = 1; import builtins; builtins.y = 2")
        assert "NameError" in other.run("x").stderr and "NameError" in other.run("y").stderr
        draw = "import random; random.random()"
        one.run("1")
        assert one.run(draw).stdout == other.run(draw).stdout


def test_threads_stand_still_between_calls(session):
    session.run(
        "import threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n"
        "        time.sleep(0.001)\nthreading.Thread(target=count, daemon=True).start()"
    )
    before = int(session.run("n").stdout)
    time.sleep(0.5)
    after = int(session.run("n").stdout)
    assert after - before < 100, "500 would be a thread that went on"
    session.run("time.sleep(0.2)")
    assert int(session.run("n").stdout) > after + 20, "and in a call it goes on"


# Finds the token of the running call in the frames below, and answers for the machinery.
FORGE = """
import os, sys
frame = sys._getframe()
while "token" not in frame.f_locals:
    frame = frame.f_back
os.write(3, frame.f_locals["token"] + bytes([0]))
"""


def test_an_answer_without_the_token_is_found_at_once(sandbox):
    for forged in ("b'\\0'", "bytes(9)", "bytes(100)"):
        with sandbox.session() as session:
            done = session.run(f"import os; os.write(3, {forged})")
            assert done.status == "killed" and "control socket" in done.stderr
            assert session.run("1").status == "killed"


def test_a_forged_answer_is_found_when_the_real_one_comes(sandbox):
    with sandbox.session() as session:
        assert session.run(FORGE).succeeded
        done = session.run("print('next')")
        assert done.status == "killed" and "control socket" in done.stderr and done.stdout == ""
    with sandbox.session() as session:
        assert session.run(FORGE + "while True: pass").succeeded
        assert session.run("print('next')").status == "cpu_limit", "a program that goes on gains nothing"


# A thread that a call leaves behind reads the next one before the machinery does, and makes up its result.
HIJACK = """
import os, threading, time, builtins, sys
def answer():
    while True:
        head = os.read(3, 12)
        os.read(3, int.from_bytes(head[8:], "little"))
        os.write(1, b"made up\\n")
        os.write(3, head[:8] + bytes([0]))
threading.Thread(target=answer, daemon=True).start()
builtins.print = builtins.exec = sys.displayhook = lambda *a, **k: os.write(1, b"made up\\n")
time.sleep(0.2)
"""


def test_what_a_session_runs_makes_up_nothing_of_others(sandbox):
    """Within a session it can (see docs/sandbox.md): so tests of a policy's work run outside of it."""
    with sandbox.session() as before, sandbox.session() as session:
        before.run("x = 20")
        for _ in range(3):
            session.run(HIJACK)
            session.run("print('real')")
            assert sandbox.run("print(6 * 7)").stdout == "42\n"
            assert before.run("x += 1; x").succeeded
        assert before.run("x").stdout == "23\n"
        with sandbox.session() as after:
            assert after.run("print('real')").stdout == "real\n"
    assert sandbox.server().alive


def test_a_dead_fork_server_is_our_failure(sandbox):
    session = sandbox.session()
    os.kill(session._server.pid, signal.SIGKILL)
    until(lambda: not session._server.alive)
    with pytest.raises(SandboxError):
        session.run("1")
    session.close()
    with sandbox.session() as another:
        assert another.run("1 + 1").stdout == "2\n"


def test_nothing_is_left_of_sessions(sandbox):
    sandbox.session().close()
    before = held()
    for _ in range(5):
        session = sandbox.session()
        session.run("x = 1")
    del session
    gc.collect()
    until(lambda: not sandbox.server().load)  # sessions that were not closed are ended when they are forgotten
    assert not held() - before


def test_a_forked_process_cannot_use_a_session(session):
    def refused() -> bool:
        with pytest.raises(SandboxError, match="forked process"):
            session.run("1")
        return True

    assert holds_in_a_fork(refused)
    assert session.run("1 + 1").stdout == "2\n"
