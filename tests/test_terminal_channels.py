"""What a session of a terminal could leave for its tests: links, files, processes, locks, kernel objects, settings.

Each command leaves something, and the tests look for it in the way in which it would matter. They write FOUND if it is
there. All of it runs in the net of the hostile programs.
"""

from __future__ import annotations

import os
import re
import time

import pytest
from sandbox_net import in_net

from agent_gym.sandbox.terminal import pack, shared_terminals

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")

REWARD = "/logs/verifier/reward.txt"


def if_so(condition: str) -> str:
    return f"if {condition}; then echo FOUND; else echo nothing; fi > {REWARD}"


def python(code: str) -> str:
    return f"cat > p.py <<'CODE'\n{code}\nCODE\npython3 p.py"


SAME = if_so("cmp /app/out /tests/expected")
LINKS = {
    "to the tests": ("ln -s /tests/expected out", SAME),
    "relative": ("ln -s ../tests/expected out", SAME),
    "as a folder": ("ln -s /tests d", if_so("cmp d/expected /tests/expected")),
    "as the folder of the task": ("cd /; rm -rf /app/*; ln -s / /app/app; ln -s app/tests/expected /app/out", SAME),
    "a chain": ("ln -s b out; ln -s ~/c b; ln -s ../../tests/expected ~/c", SAME),
    "a chain of forty": ("ln -s /tests/expected 40; for i in $(seq 39 -1 2); do ln -s $((i+1)) $i; done; ln -s 2 out", SAME),
    "by its own root": ("ln -s /proc/self/root/tests/expected out", SAME),
    "by its own folder": ("ln -s /proc/self/cwd/expected out", "cd /tests; " + SAME),
    "by another process": ("ln -s /proc/1/root/tests/expected out; ln -s /proc/2/cwd/expected o", SAME),
    "by a descriptor": ("ln -s /dev/fd/3 out", "exec 3</tests/expected; " + SAME),
    "by standard input": ("ln -s /dev/stdin out", if_so("cmp /app/out /tests/expected < /tests/expected")),
    "to what tests make": ("ln -s /tmp/e out", "echo 42 > /tmp/e; " + if_so("cmp out /tmp/e")),
    "to a folder that tests make": ("ln -s /run/new/e out", "mkdir /run/new; echo 42 > /run/new/e; " + if_so("cmp out /run/new/e")),
    "to their notes": ("ln -s /logs/verifier/e out", "echo 42 > /logs/verifier/e; " + if_so("cmp out /logs/verifier/e")),
    "to the reward": (f"ln -s {REWARD} log", f"echo nothing > {REWARD}; echo FOUND > log"),
    "out of a folder that tests make": ("ln -s build/../../tests/expected out", "mkdir build; " + SAME),
    "with many steps": (f"ln -s {'./' * 1000}../tests/expected out", SAME),
    "deep": ("for i in $(seq 1200); do mkdir d; cd d; done; ln -s /tests/expected x; cd /app; "
             + python("import os\nfor i in range(1200): os.chdir('d')\nos.rename('/app/p.py', 'p')")
             + "; ln -s $(printf 'd/%.0s' $(seq 1200))x /app/out", SAME),
    "in a folder without rights": ("mkdir d; ln -s /tests/expected d/out; chmod 0 d", "chmod 700 d; " + if_so("cmp d/out /tests/expected")),
    "with a name of bytes": (r"ln -s /tests/expected $'\xff\n\e[2J'", if_so(r"cmp $'\xff\n\e[2J' /tests/expected")),
    "in another folder": ("ln -s /tests/expected ~/out; ln -s /tests/expected /tmp/out", if_so("cmp ~agent/out /tests/expected || cmp /logs/session/tmp/out /tests/expected")),
    "thousands": (python("import os\nos.mkdir('d')\nfor i in range(4000): os.symlink('/usr/' + 'bin/../' * 550 + 'x', f'd/{i}')\n"
                         "os.symlink('/tests/expected', 'out')"), SAME),
}  # fmt: skip
LEFT = {
    "times of a device": ("touch /dev/null /dev/zero; touch -d 1990-01-01 /dev/urandom", if_so("[ $(($(date +%s) - $(stat -c %Y /dev/null))) -lt 5 ]")),
    "rights of a device": ("chmod 600 /dev/null; rm -f /dev/zero; mv /dev/null /app", if_so("! [ -w /dev/null -a -c /dev/zero ]")),
    "shared memory in files": ("mkdir -p /dev/shm; echo x > /dev/shm/x", if_so("[ -e /dev/shm/x ]")),
    "abstract sockets": (python("import socket, os, time\nif os.fork() == 0:\n os.setsid(); s = socket.socket(socket.AF_UNIX)\n"
                                " s.bind('\\0x'); s.listen(); print('LISTENS', flush=True); time.sleep(60)\ntime.sleep(0.3)"), if_so("grep -q @x /proc/net/unix")),
    "shared memory of System V": (python("import ctypes\nlibc = ctypes.CDLL(None)\nprint([f(77, *rest) for f, rest in ((libc.shmget, (4096, 0o1666)), "
                                         "(libc.msgget, (0o1666,)), (libc.semget, (1, 0o1666)))])"), if_so("ipcs | grep -q 0x0000004d")),
    "message queues": (python("import ctypes\nprint(ctypes.CDLL(None).syscall(240, b'x', 0o102, 0o666, 0))"), if_so(
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(240, b\"x\", 2, 0, 0) < 0)'")),
    "keyrings": (python("import ctypes\nprint([ctypes.CDLL(None).syscall(248, b'user', b'a', b'b', 1, k) for k in range(-8, 0)])"), if_so(
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(249, b\"user\", b\"a\", None, -3) < 0)'")),
    "processes": (f"(setsid nohup sh -c 'while :; do echo FOUND > {REWARD}; echo x > /tmp/x; done' > /dev/null 2>&1 &)", "sleep 0.5; " + if_so("[ -e /tmp/x ]")),
    "a stopped process": (f"(setsid sh -c 'kill -STOP $$; echo FOUND > {REWARD}' &); sleep 0.2", f"kill -CONT -1; sleep 0.3; [ -e {REWARD} ] || echo nothing > {REWARD}"),
    "timers": (python("import signal, os, time\nif os.fork() == 0:\n os.setsid(); signal.setitimer(signal.ITIMER_REAL, 0.5); signal.pause()"), if_so("pgrep -f p.py")),
    "locks": (python("import fcntl, os, time\nf = open('/usr/bin/env'); fcntl.flock(f, fcntl.LOCK_EX)\ng = open('/app/l', 'w'); fcntl.lockf(g, fcntl.LOCK_EX)\n"
                     "os.fork() == 0 and (os.setsid(), time.sleep(60))"), if_so("! flock -n /usr/bin/env true || ! flock -n /app/l true")),
    "watches and tracers": (python("import ctypes\nlibc = ctypes.CDLL(None)\nprint([libc.inotify_init(), libc.ptrace(0, 0, 0, 0), libc.syscall(300, 0, 0)])"), if_so("false")),
    "descriptors": (python("import os\nfor n in range(3, 60):\n try: os.dup2(1, n)\n except OSError: pass"), if_so("[ $(ls /proc/self/fd | wc -l) -gt 4 ]")),
    "what is read first": ("for f in /etc/ld.so.preload /etc/ld.so.cache /etc/profile /etc/bash.bashrc /etc/gitconfig /etc/passwd /etc/terminal.bash; do echo 1 > $f; done",
                           if_so("[ -s /etc/ld.so.preload ] || [ -e /etc/gitconfig ] || [ -e /etc/profile ]")),
    "modules of Python": (f"d=$(python3 -m site --user-site); mkdir -p $d; for n in sitecustomize usercustomize json subprocess; do "
                          f"echo 'open(\"{REWARD}\", \"w\").write(\"FOUND\")' | tee $d/$n.py $d/x.pth /app/$n.py ~/$n.py; done; export PYTHONPATH=/app PYTHONUSERBASE=/app",
                          f"python3 -c 'import json, subprocess'; python3 -m json.tool < /dev/null; [ -e {REWARD} ] || echo nothing > {REWARD}"),
    "programs": ("mkdir ~/bin; for p in cat python3 grep true; do printf '#!/bin/sh\\necho FOUND' | tee ~/bin/$p $p; chmod +x ~/bin/$p $p; done; export PATH=/app:$HOME/bin:$PATH; hash -p /app/cat cat",
                 if_so("[ $(cat /dev/null; cat /tests/expected) = FOUND ]")),
    "settings of git": ("git config --global core.pager /app/x; git config --global init.templateDir /app; mkdir hooks; echo x > hooks/post-checkout; export GIT_CONFIG_COUNT=0 GIT_DIR=/app",
                        "cd /tmp; git init -q r; " + if_so("git config --global core.pager || [ -e r/.git/hooks/post-checkout ] || [ -n \"$GIT_DIR\" ]")),
    "settings of programs": ("mkdir -p ~/.config/pip; echo x > ~/.config/pip/pip.conf; echo '.print FOUND' > ~/.sqliterc; echo 'alias cat=x' > ~/.bashrc; cp ~/.bashrc ~/.profile",
                             if_so("[ -e ~/.config ] || [ -e ~/.sqliterc ] || [ -e ~/.bashrc ] || sqlite3 :memory: .tables | grep -q FOUND")),
    "functions and variables": ("cat() { echo FOUND; }; export -f cat; export BASH_ENV=/app/e ENV=/app/e LD_PRELOAD=/app/x.so LOCPATH=/app IFS=4 CDPATH=/ TMPDIR=/app GREP_OPTIONS=-v X=FOUND; echo 'X=FOUND' > /app/e",
                                if_so("[ \"$(cat /tests/expected)$X$LOCPATH$CDPATH$TMPDIR\" != 42 ]")),
    "umask and limits": ("umask 777; ulimit -n 5 -f 0 -v 100; renice -n 19 $$; renice -n 19 -u agent", if_so("[ $(umask) != 0022 -o $(ulimit -n) != 64 -o $(ulimit -f) = 0 ]")),
    "figures of a process": ("for f in oom_score_adj autogroup coredump_filter comm timerslack_ns; do echo 5 > /proc/self/$f && echo WROTE; done; echo 5 > /proc/1/oom_score_adj",
                             if_so("[ $(cat /proc/self/oom_score_adj) != 1000 ]")),
    "hard links": ("ln /usr/bin/env env; ln /dev/null n; echo x > /tmp/q; ln /tmp/q q", if_so("[ -e env -o -e n -o -e q ]")),
    "programs with rights": ("cp /bin/bash b; chmod 6777 b; chmod 1777 /app", if_so("[ -n \"$(./b -p -c 'id -nG' | grep root)\" ]")),
    "a full disk": ("head -c 99M /dev/zero > f; head -c 99M /dev/zero > /tmp/f; cd ~; seq 9000 | xargs touch", if_so("! echo x > /tmp/x || ! echo x > /logs/x || ! [ -s /tmp/x ]")),
    "its folder removed": ("cd /; mv /app /run; rmdir /app; ln -sfn /tests /app; chmod 0 /app", if_so("cmp /app/expected /tests/expected")),
    "numbers of processes": ("for i in $(seq 200); do (:) & done; wait", if_so("[ $$ -gt 50 ]")),
}  # fmt: skip
SAID = {"abstract sockets": "LISTENS", "figures of a process": "WROTE", "keyrings": r"[ \[]\d", "message queues": r"^\d", "shared memory of System V": r"[ \[]\d"}  # fmt: skip
"""What a command says if it gets what it must not."""


@pytest.mark.parametrize("user", [False, True])
def test_tests_find_nothing_of_a_session_but_its_files(user: bool) -> None:
    channels = {f"link: {name}": one for name, one in LINKS.items()} | LEFT
    if user:  # without rights: the cases that depend on whose files they are
        names = ("to the tests", "in a folder without rights", "by its own root")
        channels = {f"link: {name}": LINKS[name] for name in names} | {name: LEFT[name] for name in LEFT if name in SAID or "device" in name}
    first, *lines = in_net("terminal_channel_judge.py", {"channels": channels, "user": user})
    if user and "unavailable" in first:
        pytest.skip(f"another user cannot run this interpreter, or have namespaces: {first['unavailable']}")
    assert {line["name"]: line["reward"] for line in lines} == dict.fromkeys(channels, "nothing"), lines
    assert [line["name"] for line in lines if line["name"] in SAID and re.search(SAID[line["name"]], line["said"])] == []


def test_links_of_a_task_stay_and_a_removed_one_is_told() -> None:
    kept = {
        "python": ("ln -s /usr/bin/env {0}", "{0} true"),
        "inside": ("mkdir -p v2; echo 1 > v2/x; ln -s v2 {0}", "[ -e {0}/x ]"),
        "by its full name": ("echo 1 > a; ln -s /app/a {0}", "[ -s {0} ]"),
        "elsewhere in the session": ("echo 1 > ~/a; ln -s ~/a {0}", "[ -s {0} ]"),
        "to nothing": ("ln -s /app/nowhere {0}", "[ -L {0} ]"),
        "in a circle": ("ln -s {0} {0}", "[ -L {0} ]"),
        "to the system": ("ln -s /usr/lib {0}", "[ -d {0} ]"),
        "to a device": ("ln -s /dev/null {0}", "[ -c {0} ]"),
        "shown": ("echo 1 > /tmp/shown; ln -s /tmp/shown {0}", "[ -s {0} ]"),
        "removed": ("ln -s /tests {0}", "[ ! -L {0} ]"),
    }
    with shared_terminals().open(pack({})) as terminal:
        for number, (command, _) in enumerate(kept.values()):
            terminal.run("cd /app; " + command.format(f"l{number}"))
        looks = "; ".join(f"{look.format(f'/app/l{number}')} && echo {number}" for number, (_, look) in enumerate(kept.values()))
        begun = time.monotonic()
        done = terminal.test(pack({"/test.sh": f"({looks}) | tr '\\n' ' ' > {REWARD}"}, ()), shown=["/tmp/shown"])
    assert done.stderr.split() == [str(number) for number in range(len(kept))]
    assert done.stdout == "removed before the tests: /app/l9, a link to a place of theirs\n"
    assert time.monotonic() - begun < 20
