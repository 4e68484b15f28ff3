"""An exception in a plain function becomes a line that the policy reads, and a count for the author."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agent_gym import EnvFailure, QuestionEnv, ToolResult, tool
from agent_gym.tool_results import raised_so_far

ROWS = [{"question": "a", "answer": "b"}]


class Opaque:
    """An object whose text is an address of memory."""


def breaks(how: str) -> str:
    """Break."""
    if how == "exit":
        raise SystemExit(2)
    if how == "machinery":
        raise EnvFailure("the index is gone")
    if how == "memory":
        raise MemoryError
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "width":
        return " " * 10**18
    if how == "file":
        return open("/var/lib/private/customers.db").read()
    if how == "secret":
        raise RuntimeError("no access for postgres://bob:hunter22@db/x with api_key=abcdef and sk-proj1234567890abcdef")
    if how == "address":
        raise ValueError(f"bad {Opaque()!r}")
    if how == "long":
        raise ValueError("7" * 5000 + "\nsecond line")
    raise TimeoutError if how == "late" else KeyError(how)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("pen", "Error: KeyError: 'pen'"),
        ("exit", "Error: SystemExit: 2"),
        ("late", "Error: TimeoutError"),
        ("cancelled", "Error: CancelledError"),
        ("width", "Error: MemoryError"),  # no machine has this much, and the policy asked for it
        ("file", "Error: FileNotFoundError: [Errno 2] No such file or directory: 'customers.db'"),
        ("secret", "Error: RuntimeError: no access for postgres://db/x with api_key=... and ***"),
        ("long", "Error: ValueError: " + "7" * 278 + "..."),
    ],
)
def test_an_exception_is_a_line_that_the_policy_reads(how: str, text: str) -> None:
    result = tool(breaks).run({"how": how})
    assert result == ToolResult(text, error=True, metrics={"tool/breaks/raised": 1.0})


def test_no_address_of_memory_and_no_variable_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "verysecretvalue")

    home = "/" + "home"

    def leak(path: str) -> str:
        """Leak."""
        raise ValueError(f"verysecretvalue at {path} or {home}/me/project/x.py of {Opaque()!r}")

    text = tool(leak).run({"path": "/etc/its/own"}).text
    assert "verysecret" not in text and "/home" not in text and "x.py" in text and "0x..." in text
    assert "/etc/its/own" in text, "the policy wrote this path itself"
    monkeypatch.setenv("MY_API_KEY", "")


def test_the_line_for_the_author_has_no_secrets_either(capsys: pytest.CaptureFixture[str]) -> None:
    def leak() -> str:
        """Leak."""
        raise RuntimeError("api_key=abcdef for postgres://bob:hunter22@db")

    tool(leak).run({})
    err = capsys.readouterr().err
    assert "tool 'leak' raised RuntimeError" in err and "abcdef" not in err and "hunter22" not in err


@pytest.mark.parametrize(("how", "words"), [("machinery", "^the index is gone$"), ("memory", "'breaks' broke: Memory")])
def test_the_machinerys_failures_stay_failures(how: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_gym.function_tools._ROOM", 10**18)  # bytes: as if there were no memory
    env = QuestionEnv(ROWS, tools=[breaks])
    env.reset(seed=0)
    with pytest.raises(EnvFailure, match=words):
        env.step(env.parser.render("breaks", {"how": how}))


def test_a_connection_of_another_thread_is_no_mistake_of_the_policy() -> None:
    def look() -> str:
        """Look."""
        raise sqlite3.ProgrammingError("SQLite objects created in a thread can only be used in that same thread.")

    env = QuestionEnv(ROWS, tools=[look])
    env.reset(seed=0)
    with pytest.raises(EnvFailure, match="tool 'look' broke: ProgrammingError: SQLite objects created in a thread"):
        env.step(env.parser.render("look", {}))


def test_raised_calls_are_counted_and_told_once_with_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    def divide(by: int) -> float:
        """Divide one."""
        return 1 / by  # line: divide

    env = QuestionEnv(ROWS, tools=[divide])
    env.reset(seed=0)
    call = env.parser.render
    observation, *_, info = env.step("".join(call("divide", {"by": by}) for by in (0, 2, 0)))
    problem = "Error: ZeroDivisionError: division by zero"
    assert observation == f"{problem}\n0.5\n{problem}"
    assert info["metrics"] == {"tool/divide/raised": 2.0}
    assert [made["error"] for made in info["tool_calls"]] == [True, False, True]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# line: divide" in text)
    err = capsys.readouterr().err
    assert err.count("agent-gym: tool 'divide' raised ZeroDivisionError: division by zero") == 1
    assert f"{__file__}:{line}" in err and "EnvFailure" in err
    (found,) = [one for one in raised_so_far() if one.tool == "divide"]
    assert found.count == 2 and found.place == f"{__file__}:{line}"
