"""Tasks as other people write them: their Dockerfiles, their test scripts, their folders."""

from __future__ import annotations

import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym import ConfigError
from agent_gym.certify.record import outcome
from agent_gym.envs.terminal import needs
from agent_gym.envs.terminal.harbor import Unfit, find_tasks, read_task
from agent_gym.envs.terminal.shell import Unreadable, commands, functions
from agent_gym.testing import expert_episode

ID = "AgentR1/Terminal-v0"
FOLDERS = os.environ.get("AGENT_GYM_HARBOR_FOLDERS")

REWARD = "if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
PYTEST = "from pathlib import Path\n\n\ndef test_it():\n    assert Path('/app/out.txt').read_text().strip() == '5'\n"
TASK = {
    "instruction.md": "Write 5 into /app/out.txt.",
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n',
    "environment/Dockerfile": "FROM python:3.13-slim-bookworm\nWORKDIR /app\n",
    "tests/test.sh": "#!/bin/bash\npytest /tests/test_outputs.py -rA\n" + REWARD,
    "tests/test_outputs.py": PYTEST,
    "solution/solve.sh": "#!/bin/bash\necho 5 > /app/out.txt\n",
}


def write(folder: Path, changed: dict[str, str] | None = None, whole: dict[str, str] = TASK) -> Path:
    for name, text in {**whole, **(changed or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def play(folder: Path, command: str | None = None) -> tuple[float, str]:
    """Play the solution, or a command; return the reward of the tests and what the command answered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env: Any = agent_gym.make(ID, data=str(folder))
    if command is None:
        return float(outcome(expert_episode(env, seed=0))[1]), ""
    env.reset(seed=0)
    shown = env.step(env.parser.render("bash", {"command": command}))[0]
    return env.step("Done.")[1], shown


# The scripts of tests.

SCRIPTS = {
    "pytest of the image": "pytest /tests/test_outputs.py -rA\n",
    "pip": "set -e\npip3 install --break-system-packages -q 'pytest==8.4.1' \\\n"
    "  pytest-json-ctrf==0.3.5 > /dev/null 2>&1\nset +e\n"
    "python3 -m pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n",
    "python -m pip": "python3 -m pip install pytest && python -m pytest /tests/test_outputs.py\n",
    "uvx": "apt-get update\napt-get install -y curl\n\ncurl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh\n"
    'source $HOME/.local/bin/env\nif [ "$PWD" = "/" ]; then\n    echo "no WORKDIR"\n    exit 1\nfi\n'
    "uvx \\\n  -p 3.13 \\\n  -w pytest==8.4.1 \\\n  -w pytest-json-ctrf==0.3.5 \\\n"
    "  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n",
    "uvx --with": "apt update && apt install -y --no-install-recommends curl ca-certificates\n"
    'curl -LsSf "https://astral.sh/uv/install.sh" | env UV_UNMANAGED_INSTALL=/uv sh -s -- -q\n'
    '. "$HOME/.local/bin/env"\n'
    "uvx --python 3.13 --with pytest==8.4.1,pytest-json-ctrf pytest /tests/test_outputs.py\n",
    "uv add": "curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh\nsource ~/.local/bin/env\n"
    "uv init\nuv add pytest==8.4.1\n"
    "uv run pytest $TEST_DIR/test_outputs.py -rA\n",
    "uv venv": "if ! command -v uv > /dev/null; then\n  wget -qO- https://astral.sh/uv/install.sh | bash\nfi\n"
    "uv venv .tbench\n"
    "source .tbench/bin/activate\nuv pip install pytest==8.4.1\n"
    "uv run --no-project python -m pytest /tests/test_outputs.py\n",
    "an environment": "python3 -m venv /tmp/venv\n/tmp/venv/bin/pip install -q pytest\n"
    "/tmp/venv/bin/pytest /tests/test_outputs.py\n",
    "a function": 'run() { # its own\n  uv tool run --from pytest pytest "$@"\n}\nrun "/tests/test_outputs.py"\n',
}


@pytest.mark.parametrize("idiom", SCRIPTS)
def test_tests_bring_pytest_in_many_ways_and_get_the_one_that_is_here(idiom: str, tmp_path: Path) -> None:
    changed = {"tests/test.sh": f"#!/bin/bash\n{SCRIPTS[idiom]}{REWARD}"}
    changed["task.toml"] = TASK["task.toml"] + 'env = { TEST_DIR = "/tests" }\n'
    folder = write(tmp_path / "one", changed)
    assert play(folder) == (1.0, "")
    assert play(folder, "echo 6 > out.txt")[0] == 0.0


REFUSED = {
    "tests/test.sh calls curl, which is not here": {"tests/test.sh": "curl -sf http://localhost:8080/health\n"},
    "its tests import pandas, which is not here": {"tests/test_outputs.py": "import pandas as pd\n" + PYTEST},
    "its tests call no-such-program, which is not here": {
        "tests/test_outputs.py": "import subprocess\nsubprocess.run(['no-such-program'])\n"
    },
    "its tests call npm, which is not here": {"tests/test.sh": "npm test\n"},
    "its tests call pytest with --timeout, of a plugin": {"tests/test.sh": "pytest --timeout=60 /tests\n"},
    "tests/test.sh calls missing.py, which is not there": {"tests/test.sh": "pytest /tests/missing.py\n"},
    "its test script cannot be read": {"tests/test.sh": "echo 'never closed\n"},
    "its Dockerfile runs make": {"environment/Dockerfile": "FROM ubuntu\nRUN make all\nWORKDIR /app\n"},
    "installs flask": {"environment/Dockerfile": "FROM ubuntu\nRUN pip install flask\nWORKDIR /app\n",
                       "instruction.md": "Repair the Flask application."},
    "its solution calls pip, and there is no network": {"solution/solve.sh": "pip install -q numpy\n"},
    "its solution calls git clone, and there is no network": {"solution/solve.sh": "git clone https://example.com/x\n"},
    "its solution calls no-such-program": {"solution/solve.sh": "cd /app\nno-such-program | tee out.txt\n"},
    "runs git clone": {"environment/Dockerfile": "FROM ubuntu\nRUN git clone https://example.com/x\nWORKDIR /app\n"},
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_here_is_a_reason(reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=reason):
        read_task(write(tmp_path / "one", REFUSED[reason]))


def test_all_reasons_are_told_at_once_in_few_words(tmp_path: Path) -> None:
    lines = "FROM nvidia/cuda\nRUN make\nRUN cargo build\nWORKDIR /usr/lib/x\n"
    with pytest.raises(Unfit) as error:
        read_task(write(tmp_path / "x", {"environment/Dockerfile": lines, "tests/test.sh": "npm test\n"}))
    assert all(word in str(error.value) for word in ("nvidia/cuda", "runs make", "runs cargo", "/usr/lib/x", "npm"))
    for number in range(60):
        module = f"module_with_a_name_of_some_length_{number}"
        write(tmp_path / f"task-{number}", {"tests/test_outputs.py": f"import yaml\nimport {module}\n"})
    with pytest.raises(ConfigError) as listing:
        agent_gym.make(ID, data=str(tmp_path))
    text = str(listing.value)
    assert len(text) < 2000 and text.startswith("61 of 61 tasks") and "60: its tests import yaml" in text
    assert "reasons more" in text


def test_tests_without_pytest_say_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "pytest_is_here", lambda: False)
    with pytest.raises(Unfit, match="need pytest, which is not installed: pip install pytest"):
        read_task(write(tmp_path / "one", {"tests/test_outputs.py": "import pytest\n" + PYTEST}))
    with pytest.raises(Unfit, match="need pytest, which is not installed: pip install pytest"):
        read_task(write(tmp_path / "two"))


# What a policy might do to pytest.

CHEATS = {
    "settings": "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini > tox.ini; cp pytest.ini /tmp; "
    "cp pytest.ini ~",
    "hooks": "echo 'import os, pytest\n@pytest.hookimpl\n"
    "def pytest_sessionfinish(session): session.exitstatus = 0' | "
    "tee conftest.py | tee /tmp/conftest.py > ~/conftest.py",
    "modules": "for m in pytest _pytest pluggy pathlib pytest_report iniconfig; do "
    "echo 'import os; os._exit(0)' | tee $m.py > /tmp/$m.py; "
    "done; export PYTHONPATH=/app",
    "variables": "export PYTEST_ADDOPTS=--collect-only PYTEST_PLUGINS=evil PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; "
    "echo 'export PYTEST_ADDOPTS=--co' > ~/.bashrc",
    "the program": "echo 'exit 0' > /usr/local/lib/pytest/bin/pytest; rm -rf /usr/local/lib/pytest; mkdir -p ~/bin; "
    "printf '#!/bin/sh\\nexit 0\\n' | tee pytest > ~/bin/pytest; "
    "chmod +x pytest ~/bin/pytest; export PATH=/app:~/bin:$PATH",
}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize(
    "script", ["pytest /tests/test_outputs.py", "cd /app; python3 -m pytest ../tests/test_outputs.py"]
)
def test_a_policy_cannot_change_what_pytest_says(cheat: str, script: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"tests/test.sh": f"{script}\n{REWARD}"})
    assert play(folder, CHEATS[cheat])[0] == 0.0


# Dockerfiles.


def test_a_dockerfile_of_the_usual_kind_is_made_without_an_image(tmp_path: Path) -> None:
    lines = r"""# syntax=docker/dockerfile:1
FROM --platform=linux/amd64 ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624
ARG PLACE=/srv/data
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && \
    # a comment in between
    apt-get install -y python3-pip git && \
    ln -s /usr/bin/python3 /usr/bin/python && \
    rm -rf /var/lib/apt/lists/*
RUN pip3 install --no-cache-dir --break-system-packages pytest==8.4.1 pandas==2.3.2 scipy==1.16.1
RUN mkdir -p /workspace/src /workspace/empty ${PLACE} /var/tool /etc/user
COPY --chown=root:root run.sh ${PLACE}/
COPY <<EOF /workspace/here.txt
two
lines
EOF
RUN chown -R root:root /workspace && chmod 750 /srv/data/run.sh && printf 'a\tb\n' > /workspace/src/table.tsv
RUN cat > /workspace/src/config.ini <<'END'
[one]
key = $HOME
END
RUN touch /var/tool/state && git init -q /workspace/src && git -C /workspace/src config user.name x
USER root
WORKDIR /workspace
ENV TEST_DIR=/tests
ENTRYPOINT ["/bin/bash"]
"""
    folder = write(tmp_path / "one", {"environment/Dockerfile": lines, "environment/run.sh": "echo run\n"})
    task = read_task(folder)
    assert task.folder == "/workspace" and task.absent == ("pandas==2.3.2", "scipy==1.16.1")
    looked = (
        "pwd; cat here.txt src/table.tsv src/config.ini; ls -A src empty /var/tool /etc/user; "
        "stat -c %a /srv/data/run.sh; "
        "pytest --version; python3 -c 'import pytest'; touch /var/tool/new /etc/user/new; git -C src config user.name"
    )
    shown = play(folder, looked)[1]
    assert shown.startswith(
        "/workspace\ntwo\nlines\na\tb\n[one]\nkey = $HOME\n/etc/user:\n\n/var/tool:\nstate\n\nempty:\n\nsrc:\n.git\n"
    )
    assert shown.split("table.tsv\n")[1].startswith("750\npytest ") and shown.endswith("\nx")
    with pytest.warns(UserWarning, match=r"commands do not have the packages .*: pandas \(1\), scipy \(1\)"):
        agent_gym.make(ID, data=str(tmp_path))


def test_a_build_that_fails_here_is_found_before_the_first_episode(tmp_path: Path) -> None:
    lines = "FROM ubuntu\nWORKDIR /app\nRUN echo broken && cat /app/missing.txt > /app/x\n"
    write(tmp_path / "one", {"environment/Dockerfile": lines})
    with pytest.raises(ConfigError, match="what its Dockerfile runs fails here: error, .*broken"):
        agent_gym.make(ID, data=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("ubuntu:24.04", True),
        ("docker.io/library/debian:12-slim", True),
        ("public.ecr.aws/docker/library/python:3.11", True),
    ]
    + [
        ("ghcr.io/laude-institute/t-bench/python-3-13:20250620", True),
        ("ghcr.io/laude-institute/t-bench/deveval:1", False),
    ]
    + [("python@sha256:abc", True), ("someone/python:3.11", False), ("golang:1.22", False)],
)
def test_plain_images_are_known_wherever_they_come_from(name: str, plain: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"environment/Dockerfile": f"FROM {name}\nWORKDIR /app\n"})
    if plain:
        assert read_task(folder).folder == "/app"
    else:
        with pytest.raises(Unfit, match="it needs the image"):
            read_task(folder)


def test_a_solution_finds_its_files_and_answers_in_tmp_are_seen_by_the_tests(tmp_path: Path) -> None:
    changed = {
        "instruction.md": "Write 5 into /tmp/answers/out.txt.",
        "solution/solve.sh": 'mkdir -p /tmp/answers\ncp "$(dirname "$0")/data/five.txt" /tmp/answers/out.txt\n',
        "solution/data/five.txt": "5\n" + "#" * 70_000,
        "tests/test_outputs.py": PYTEST.replace("/app/out.txt", "/tmp/answers/out.txt").replace(".strip()", "[:1]"),
    }
    assert play(write(tmp_path / "one", changed))[0] == 1.0


# Folders.


def test_tasks_are_found_however_deep_and_in_the_format_of_terminal_bench_1(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "area" / "one", {"environment/task.toml": "[not]\n"})
    first = {
        "task.yaml": "instruction: |-\n  Write 5 into /app/out.txt.\nparser_name: pytest\n"
        "max_agent_timeout_sec: 70.0\n",
        "Dockerfile": "FROM ghcr.io/laude-institute/t-bench/python-3-13:20250620\nWORKDIR /app\n",
        "docker-compose.yaml": "services:\n  client:\n    build: .\n",
        "run-tests.sh": "#!/bin/bash\n" + SCRIPTS["uv add"].replace("~", "$HOME"),
        "solution.sh": TASK["solution/solve.sh"],
        "tests/test_outputs.py": PYTEST,
    }
    write(tmp_path / "more" / "two", first, {})
    assert [path.name for path in find_tasks(tmp_path)] == ["two", "one"] and find_tasks(tmp_path / "none") == []
    assert play(tmp_path / "more") == (1.0, "") and play(tmp_path / "more", "echo 6 > out.txt")[0] == 0.0
    assert read_task(tmp_path / "more" / "two").seconds == 70.0
    assert play(tmp_path / "more", "echo 5 > out.txt; echo 0 > /logs/verifier/ends")[0] == 1.0
    for reason, changed in {
        "task.yaml has no 'instruction'": {"task.yaml": "parser_name: pytest\n"},
        "read by 'swebench', and not by pytest": {"task.yaml": first["task.yaml"].replace("pytest", "swebench")},
        "several containers": {"docker-compose.yaml": "services:\n  client: {}\n  db: {}\n"},
        "is not a mapping": {"task.yaml": "- x\n"},
        "task.yaml: ": {"task.yaml": "a: [\n"},
    }.items():
        with pytest.raises(Unfit, match=reason):
            read_task(write(tmp_path / "bad", {**first, **changed}, {}))


# The reader of shells.


def test_a_script_s_commands_are_read_with_their_places() -> None:
    script = """a 'b c' "d $(inner x | y)" \\
  e > out 2>&1 # f
if ! g; then h && (i || j); fi
cat <<'END' | k
not l
END
for m in 1 2; do n "$m"; done; x=1 o <<< p; q() { r; }
case $s in t) u;; esac
echo "$((1 + 2))" ${v:-w} `z`
"""
    found = commands(script)
    assert [one.program for one in found if one.words] == [
        *("a", "inner", "y", "g", "h", "i", "j", "cat", "k", "n", "o", "q", "r", "u", "echo", "z")
    ]
    assert found[0].texts == ["a", "b c", "d $(inner x | y)", "e"] and found[0].targets[0].text == "out"
    assert all(script[one.words[0].begin :].startswith(one.program) for one in found if one.words)
    assert functions(script) == {"q"}
    for wrong in ("'", '"', "$(", "a >", "${b"):
        with pytest.raises(Unreadable):
            commands(wrong)


# Folders that others have made, where they have been fetched.


class Late(BaseException):
    """A folder takes too long. The sandbox handles no such exception."""


def within(seconds: int, folder: Path) -> float | None:
    """Play a folder's solution; None if it takes longer, since a few have hours of their own."""

    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        return play(folder)[0]
    except Late:
        return None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="AGENT_GYM_HARBOR_FOLDERS names no folder with tasks")
def test_of_the_folders_that_load_nearly_all_are_solved_by_their_own_solutions() -> None:
    tasks = find_tasks(Path(str(FOLDERS)))
    loaded, solvable = [], []
    for path in tasks:
        try:
            task = read_task(path)
        except Unfit:
            continue
        loaded.append(path)
        solvable += [path] if task.solution else []
    sample = random.Random(0).sample(solvable, min(len(solvable), int(os.environ.get("AGENT_GYM_HARBOR_SAMPLE", "50"))))
    rewards = {path: within(60, path) for path in sample}
    failed = [path for path, reward in rewards.items() if reward is not None and reward != 1.0]
    late = [path.name for path, reward in rewards.items() if reward is None]
    print(
        f"{len(tasks)} folders, {len(loaded)} load, {len(solvable)} have a solution, "
        f"{len(failed)} of {len(sample)} failed, {len(late)} took more than a minute: {late}"
    )
    assert len(late) <= 0.1 * len(sample), late
    assert len(failed) <= 0.05 * (len(sample) - len(late)), failed
