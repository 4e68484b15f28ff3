"""What the policy is told about its program: the same every time, of bounded length, and nothing of this machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym import ConfigError
from agent_gym.envs.retool.env import LOST, NO_OUTPUT, STYLES, CodeInterpreter, shown
from agent_gym.sandbox import Execution, Limits, LocalSandbox, shared_sandbox

TRACEBACK = (
    'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\nZeroDivisionError: division by zero\n'
)


def ended(stdout: str = "", stderr: str = "", status: Any = "ok", code: int | None = 0) -> Execution:
    return Execution(status, stdout, stderr, code, 0.25, False)


@pytest.mark.parametrize(
    ("execution", "in_full", "in_retool"),
    [
        (ended("42\n"), "42", "42"),
        (ended(), NO_OUTPUT, NO_OUTPUT),
        (ended("42\n", "a warning\n"), "42\na warning", "42"),
        (ended("1\n", TRACEBACK, "error", 1), "1\n" + TRACEBACK.rstrip(), "ZeroDivisionError: division by zero"),
        (ended("1\n", "", "error", 3), "1\nSystemExit: 3", "SystemExit: 3"),
        (
            ended("1\n", "", "cpu_limit", None),
            "1\nTimeoutError: the program took too much CPU time",
            "TimeoutError: the program took too much CPU time",
        ),
        (ended("", "MemoryError\n", "memory_limit", 1), "MemoryError", "MemoryError"),
        (ended("", "", "killed", -11), "SystemError: the program crashed", "SystemError: the program crashed"),
    ],
)
def test_styles(execution: Execution, in_full: str, in_retool: str) -> None:
    assert shown(execution, "full", 2000) == in_full
    assert shown(execution, "retool", 2000) == in_retool


@given(st.text("ab \n", max_size=300).map(str.rstrip).filter(bool), st.integers(100, 250))
def test_beginning_and_end_stay(text: str, limit: int) -> None:
    short = shown(ended(text), "full", limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        assert text.startswith(short[:40]) and text.endswith(short[-40:])


def interpreter(stateful: bool = False, style: str = "full", limits: Limits | None = None) -> CodeInterpreter:
    sandbox = shared_sandbox() if limits is None else LocalSandbox(limits, servers=1)
    return CodeInterpreter(sandbox, stateful, style, 500)


def said(tool: CodeInterpreter, *programs: str) -> list[str]:
    return [result.text for result in tool.answer(programs)]


def test_programs_do_not_share_names_unless_they_are_to() -> None:
    apart, together = interpreter(), interpreter(stateful=True)
    assert said(apart, "x = 6 * 7", "print(x)")[1].endswith("NameError: name 'x' is not defined")
    assert said(together, "x = 6 * 7", "x", "print(x)") == [NO_OUTPUT, "42", "42"]
    together.begin(0)
    assert said(together, "x")[0].endswith("NameError: name 'x' is not defined"), "another episode"
    together.close()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("stateful", [False, True])
def test_the_same_program_has_the_same_answer(style: str, stateful: bool) -> None:
    """Random numbers are those of the seed, and nothing tells of the process or the time."""
    program = "import random\nprint(random.random(), {'a', 'b', 'c'}, sum(range(10**6)))\nundefined"
    tool = interpreter(stateful, style)
    answers = []
    for seed in (1, 1, 2):
        tool.begin(seed)
        answers += said(tool, program)
    assert answers[0] == answers[1] and (answers[0] != answers[2] or style == "retool")
    tool.close()


def test_whatever_is_printed_is_bounded_and_can_be_stored() -> None:
    tool = interpreter()
    flood, strange = said(
        tool, "print('x' * 300_000)", "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\ud800')"
    )
    assert len(flood) <= 500 and "cut" in flood
    strange.encode("utf-8")
    assert "\0" not in strange and "\x1b" not in strange


def test_a_session_that_ran_into_a_limit_starts_anew() -> None:
    tool = interpreter(stateful=True, limits=Limits(cpu_seconds=0.3))
    first, second, third, fourth = said(tool, "x = 1", "while True: pass", "x = 2", "x")
    assert second == f"TimeoutError: the program took too much CPU time\n{LOST}"
    assert (first, third, fourth) == (NO_OUTPUT, NO_OUTPUT, "2")
    assert (tool.programs, tool.failed) == (4, 1)
    tool.close()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="'loud'.*full, retool"):
        CodeInterpreter("local", False, "loud", 500)
    with pytest.raises(ConfigError, match="max_output_chars is 5"):
        CodeInterpreter("local", False, "full", 5)
    with pytest.raises(ConfigError, match="sandbox is 'nowhere'"):
        CodeInterpreter("nowhere", False, "full", 500)
    with pytest.raises(ConfigError, match="no sessions"):
        CodeInterpreter("http://127.0.0.1:1", True, "full", 500)
