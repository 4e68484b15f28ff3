"""Ordinary programs in the sandbox print exactly what they print elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from ordinary_programs import PROGRAMS

from agent_gym.sandbox import LocalSandbox, SandboxUnavailable


@pytest.fixture(scope="module")
def sandbox():
    try:
        made = LocalSandbox(servers=1)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What `python main.py` prints, by program; asked once for all sandboxes."""
    folder, known = tmp_path_factory.mktemp("plain"), {}

    def run(name):
        if name not in known:
            file = folder / "main.py"
            file.write_bytes(PROGRAMS[name].encode())
            # -u: standard output arrives as it is written, which is what a sandbox promises; the rest is untouched.
            done = subprocess.run(
                [sys.executable, "-u", "main.py"],
                cwd=folder,
                env={
                    "PATH": "/usr/bin:/bin",
                    "LANG": "C.UTF-8",
                    "PYTHONHASHSEED": "0",
                    "PYTHONIOENCODING": "utf-8:strict",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
            )
            out, err = (comparable(text.decode().replace(f"{folder}/", "")) for text in (done.stdout, done.stderr))
            known[name] = out, err, done.returncode
        return known[name]

    return run


def comparable(text: str) -> str:
    """Addresses are not the same twice."""
    return re.sub(r"0x[0-9a-f]{8,}", "0x...", text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_elsewhere(name, sandbox, plain):
    done = sandbox.run(PROGRAMS[name])
    assert (comparable(done.stdout), comparable(done.stderr), done.exit_code) == plain(name)
    assert done.succeeded == (done.exit_code == 0)
    assert not done.truncated
