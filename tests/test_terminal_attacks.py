"""What a policy might try for a reward that it has not earned: none of it pays, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym.sandbox import Limits
from agent_gym.sandbox.terminal import LIMITS, Terminal, TerminalSandbox, pack, shared_terminals

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")

# A command, and what must be in its answer ("" for anything).
REACHING = {
    "the tests' folder": ("ls -A /tests /logs; touch /tests/test.sh", "Read-only file system"),
    "the reward": ("mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt", "Read-only file system"),
    "sessions": ("ls -A /sessions | wc -l", "0"),
    "the caller's folder": (f"cat {Path(__file__)}", "No such file"),
    "the package": ("python3 -c 'import agent_gym'", "No module named"),
    "the source of the tasks": (f"ls {Path(agent_gym.__file__).resolve().parent}", "No such file"),
    "the system": ("echo x > /usr/bin/python3 || touch /usr/local/bin/git", "Read-only file system"),
    "the prelude": ("echo x >> /etc/terminal.bash", "Read-only|denied"),
    "the first process": ("kill -9 1; kill -STOP 1; cat /proc/1/environ; echo alive", "alive"),
    "its memory": ("cat /proc/1/mem", "Permission denied"),
    "processes of others": (f"ls /proc/{os.getpid()}", "No such file"),
    "the network": ("exec 3<>/dev/tcp/127.0.0.1/80", "Permission denied"),
    "a name server": ("python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'", "name resolution"),
    "namespaces": ("unshare -Ur id", "Operation not permitted"),
    "mounts": ("mount --bind /tmp /tests; mount -t tmpfs x /usr", "must be superuser"),
    "a debugger": ("python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'", "-1"),
    "devices": ("mknod /tmp/disk b 254 0 || echo refused", "refused"),
    "rights": ("grep -c '^Cap...:.0000000000000000$' /proc/self/status", "5"),
    "keys": ('python3 -c \'import ctypes; print(ctypes.CDLL(None).syscall(248, b"user", b"a", b"b", 1, -3))\'', "-1"),
}


@pytest.fixture(scope="module")
def terminal() -> Any:
    with shared_terminals().open(pack({"/app/notes.txt": "one\ntwo\n"})) as opened:
        yield opened


@pytest.mark.parametrize("what", REACHING)
def test_a_command_reaches_nothing_of(what: str, terminal: Terminal) -> None:
    command, answer = REACHING[what]
    assert re.search(answer, terminal.run(command).stdout)


def test_files_are_edited_in_place_without_a_word(terminal: Terminal) -> None:
    assert terminal.run("echo a > x; sed -i s/a/b/ x; cp -a x y; cat y").stdout == "b\n"


def test_a_session_keeps_files_folder_and_exported_variables(terminal: Terminal) -> None:
    terminal.run("mkdir -p deep && cd deep && export WHO='a b' && lost=1 && echo three > 3.txt")
    assert terminal.run('pwd; echo "$WHO$lost"; cat 3.txt; id -un').stdout == "/app/deep\na b\nthree\nagent\n"
    failed = terminal.run("cd /app; exit 3")
    assert (failed.status, failed.exit_code, terminal.run("pwd").stdout) == ("error", 3, "/app\n")
    with shared_terminals().open(pack({})) as other:
        assert other.run("ls -A /app /tmp $HOME; echo $WHO").stdout == "/app:\n\n/home/agent:\n\n/tmp:\n\n"
        # Nor does what was unset come back, and `cd -` knows the folder before.
        other.run("unset USER LANG; cd /tmp")
        assert other.run('echo "${USER-none} ${LANG-none} $HOME"; cd -').stdout == "none none /home/agent\n/app\n"


LASTING = (
    "sleep 60 &",
    "(setsid sleep 60 &) &",
    "nohup python3 -c 'import time; time.sleep(60)' >/dev/null & disown",
    "python3 -c 'import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(60)'",
    "sleep 60 & kill -STOP $!",
    "python3 -c 'import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(60)' &",
)


@pytest.mark.parametrize("command", LASTING)
def test_no_process_outlives_its_command(command: str, terminal: Terminal) -> None:
    assert terminal.run(f"{command}\necho begun").stdout.endswith("begun\n")
    assert terminal.run("ps -e -o comm= | grep -c -E 'sleep|python3'").stdout == "0\n"
    # Seen from outside: the fork server has no child, but it is asked a moment after the last one ended.
    children = Path(f"/proc/{terminal._server.pid}/task/{terminal._server.pid}/children")
    assert children.read_text() == ""


def test_what_takes_too_much_is_ended(terminal: Terminal) -> None:
    few = Limits(cpu_seconds=0.5, wall_seconds=20, memory_mb=64, output_bytes=1000)
    spinning = "for i in 1 2 3; do (while :; do :; done) & done; wait"
    assert terminal.run(spinning, few).status == "cpu_limit"
    assert terminal.run("sleep 60", Limits(wall_seconds=0.2)).status == "wall_limit"
    eating = 'for i in 1 2 3; do python3 -c "x = bytearray(40 << 20); import time; time.sleep(9)" & done; wait'
    assert terminal.run(eating, few).status == "memory_limit"
    assert "No space left" in terminal.run("head -c 99M /dev/zero > /app/large").stdout
    assert "No space left" in terminal.run("cd /tmp; seq 9000 | xargs touch 2>&1 | tail -1").stdout
    loud = terminal.run("head -c 3M /dev/zero | tr '\\0' x; rm -rf /tmp/* /app/large", few)
    assert loud.truncated and len(loud.stdout) < 2000
    forks = "import os, time\ntry:\n    while True: os.fork() or time.sleep(9)\nexcept OSError as error: print(error)"
    assert "temporarily unavailable" in terminal.run(f'python3 -c "{forks}"').stdout
    assert terminal.run("echo well").stdout == "well\n"


ELSEWHERE = """
import errno
from sandbox_machines import NAMESPACES, kernel, refuse
from agent_gym.sandbox.terminal import TerminalSandbox
kernel.no_new_privileges()
refuse({"mount": NAMESPACES["mount"]} if %r else NAMESPACES, errno.EPERM)
TerminalSandbox()
"""


@pytest.mark.parametrize("only_mounts", [True, False])
def test_a_machine_that_cannot_hold_a_shell_is_refused_with_the_cure(only_mounts: bool) -> None:
    command = [sys.executable, "-c", ELSEWHERE % only_mounts]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert "TerminalUnavailable: no terminal here: no namespaces can be made" in done.stderr
    assert "in Docker: --privileged" in done.stderr


# Attacks on the tests: each is done in an embedded task whose answer is the file `out`, instead of the work.
FORGING = {
    "nothing": "true",
    "the reward file": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > reward.txt",
    "tests of its own": "mkdir -p tests; echo 'echo 1 > /logs/verifier/reward.txt' | tee test.sh tests/test.sh "
    "/tests/test.sh",
    "a link to what is expected": "ln -sf /tests/expected.py {out}",
    "a link as a folder": "cd /; rm -rf /app/*; ln -s /tests /app/tests; ln -s /tests/expected.py /app/{out}",
    "programs of its own": "mkdir -p ~/bin /tmp/bin; for p in python3 bash git cat; do for d in . ~/bin /tmp/bin; do "
    "printf '#!/bin/bash\\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt' > $d/$p; chmod +x $d/$p; "
    "done; done; export PATH=/app:$HOME/bin:/tmp/bin:$PATH",
    "modules of Python": "for n in os stat sys expected sitecustomize usercustomize conftest json sqlite3; do "
    "echo 'open(\"/logs/verifier/reward.txt\", \"w\").write(\"1\")' > $n.py; cp $n.py /tmp $HOME; done; "
    "export PYTHONPATH=/app:/tmp PYTHONSTARTUP=/app/os.py PYTHONHOME=/app",
    "site packages of its own": "d=$(python3 -m site --user-site); mkdir -p $d; echo 'import os; os.system(\"echo 1 > "
    "/logs/verifier/reward.txt\")' | tee $d/evil.pth $d/sitecustomize.py $d/usercustomize.py",
    "files that shells read": "for f in .bashrc .bash_profile .profile .bash_login .inputrc env; do "
    "echo 'echo 1 > /logs/verifier/reward.txt; exit' > ~/$f; done; export BASH_ENV=~/env ENV=~/env; "
    "echo 'echo 1 > /logs/verifier/reward.txt' > /run/state",
    "exported functions": "python3() {{ echo 1 > /logs/verifier/reward.txt; }}; export -f python3; "
    "export LD_PRELOAD=/app/x.so BASH_FUNC_python3%%='() {{ echo 1 > /logs/verifier/reward.txt; }}'",
    "settings of git": "git init -q . ; git config --global core.fsmonitor '/app/x.sh'; git config core.pager ./x.sh; "
    "mkdir -p .git/hooks; for h in pre-commit post-checkout post-index-change reference-transaction; do "
    "printf '#!/bin/bash\\necho 1 > /logs/verifier/reward.txt' | tee .git/hooks/$h x.sh; chmod +x .git/hooks/$h "
    "x.sh; done",
    "a pipe": "rm -f {out}; mkfifo {out}",
    "a folder": "rm -f {out}; mkdir {out}",
    "standard input": "ln -sf /dev/stdin {out}",
    "zeros without end": "ln -sf /dev/zero {out}",
    "a large file": "head -c 30M /dev/zero > {out}",
    "a full disk": "head -c 99M /dev/zero > /app/zeros; cd /tmp; seq 9000 | xargs touch",
    "a process that goes on": "(setsid bash -c 'sleep 0.1; for i in $(seq 400); do for n in 1 2 3 4 5 6 7 8 9; do "
    "echo $n > /app/{out}; echo 1 > /logs/verifier/reward.txt; done; done' &)",
    "a fork bomb": "python3 -c 'import os\nfor _ in range(300):\n    try: os.fork()\n    except OSError: pass'",
    "rights taken away": "chmod -R 000 /app ~ /tmp; umask 777",
    "everything removed": "rm -rf /app /tmp /home /run / 2>/dev/null",
    "the shell ended": "kill -9 $$",
}  # fmt: skip


@pytest.mark.parametrize("attack", FORGING)
def test_an_attack_earns_nothing(attack: str) -> None:
    env: Any = agent_gym.make("AgentR1/Terminal-v0", reward_weights={"share": 1.0})
    task = next(one for one in env.tasks["test"] if one["kind"] == "count-lines")
    index = list(env.tasks["test"]).index(task)
    out = task["checks"]["goals"][0][1].removeprefix("/app/")
    env.reset(seed=0, options={"split": "test", "index": index})
    begun = time.monotonic()
    env.step(env.parser.render("bash", {"command": FORGING[attack].format(out=out)}))
    _, reward, terminated, _, info = env.step("The task is done.")
    assert (reward, terminated) == (0.0, True)
    assert time.monotonic() - begun < 3 * (LIMITS.wall_seconds + 60)
    env.reset(seed=0, options={"split": "test", "index": index})  # and the next episode is as good as new
    while not terminated or reward == 0:
        _, reward, terminated, truncated, info = env.step(env.expert_action())
        assert not (terminated or truncated) or info["is_success"]


def test_a_command_that_is_killed_from_outside_is_no_verdict_on_it(terminal: Terminal) -> None:
    server = terminal._server.pid
    children = Path(f"/proc/{server}/task/{server}/children")

    def kill() -> None:
        while not (found := children.read_text().split()):
            time.sleep(0.02)
        os.kill(int(found[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(agent_gym.EnvFailure, match="killed from outside|could not be confined"):
        terminal.run("sleep 20")
    killer.join()
    assert terminal.run("echo well").stdout == "well\n"


def test_a_fork_server_that_dies_fails_the_episode_and_not_the_next_one() -> None:
    env: Any = agent_gym.make("AgentR1/Terminal-v0")
    env.reset(seed=0)
    env.step(env.parser.render("bash", {"command": "pwd"}))
    os.kill(env._shell._terminal._server.pid, signal.SIGKILL)
    with pytest.raises(agent_gym.EnvFailure, match="fork server of the sandbox"):
        for _ in range(9):  # until the news has arrived
            env.step(env.parser.render("bash", {"command": "pwd"}))
    env.reset(seed=0)
    assert env.step(env.parser.render("bash", {"command": "pwd"}))[0] == "/app"


def test_processes_of_another_program_s_terminal_do_not_count() -> None:
    def start_many(sandbox: TerminalSandbox) -> str:
        with sandbox.open(pack({"/app/notes.txt": ""})) as opened:
            return opened.run("for i in $(seq 40); do sleep 2 & done; jobs -p | wc -l").stdout

    # Two fork servers, as two trainers have; 64 processes are allowed to each terminal.
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(start_many, [TerminalSandbox(), TerminalSandbox()])) == ["40\n", "40\n"]
