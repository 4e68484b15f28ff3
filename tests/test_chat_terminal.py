"""A chat in the terminal: what is shown, the commands, Ctrl-C, and the command line with a real model."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from rich.console import Console
from serve_tools import CALL, scripted

from agent_gym.cli.main import main
from agent_gym.rollout import read_trajectories
from agent_gym.serve.terminal import ChatTerminal


def talk(lines: list[Any], turns: list[Any], env_id: str = "AgentR1/GSM8K-v0", **console: Any) -> str:
    """Let a person type lines and a script answer, and return what was shown."""
    typed = iter(lines)

    def ask() -> str | None:
        line = next(typed, None)
        return line() if callable(line) else line

    shown = io.StringIO()
    before = signal.getsignal(signal.SIGINT)
    ChatTerminal(scripted(turns, env_id), "a script", Console(file=shown, **console)).run(ask)
    assert signal.getsignal(signal.SIGINT) is before
    return shown.getvalue()


def test_a_talk_with_a_tool() -> None:
    shown = talk(["What is 48/2?", "/tools", "/quit", "never"], [CALL, "It is 24."])
    assert shown.startswith("AgentR1/GSM8K-v0 (calculator), played by a script\n") and "\x1b[" not in shown
    assert f'{CALL}\n→ calculator(expression="48/2")\n← 24\nIt is 24.\n[' in shown
    assert "calculator(expression)\n    Evaluate an arithmetic" in shown and "never" not in shown
    assert "\x1b[36m→ calculator" in talk(["a"], [CALL, "b"], force_terminal=True, color_system="standard")


def test_a_long_result_is_folded_and_can_be_unfolded() -> None:
    pytest.importorskip("math_verify")
    code = "for i in range(20): print(i * 111)"
    call = f'<tool_call>{{"name": "code_interpreter", "arguments": {{"code": "{code}"}}}}</tool_call>'
    shown = talk(["a", "/more"], [call, "b"], "AgentR1/MathPython-v0")
    folded, _, unfolded = shown.partition("more characters; /more shows them")
    assert "← 0\n111\n222\n" in folded and "777\n" in folded and "888" not in folded
    assert "\n888\n" in unfolded and unfolded.endswith("2109\n")


def test_what_is_written_cannot_steer_the_terminal() -> None:
    shown = talk(["a"], ["\x1b]0;owned\x07\x1b[2Jhello\x9b1m\u202e\n\tthere"])
    assert not set("\x1b\x9b\x07\u202e") & set(shown) and "hello" in shown and "\n        there" in shown


def test_commands_save_and_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat.jsonl"
    save = f"/save {path}"
    shown = talk(["/save", save, "a", save, "/save /proc/x/y.jsonl", "/nope", "/help", "/more"], ["b"])
    assert "/save needs a file" in shown and "there is nothing to save yet" in shown
    assert f"agent-gym view {path}" in shown and "there is no result yet" in shown
    assert "cannot write /proc/x/y.jsonl" in shown and "there is no /nope here; known: /reset, /tools" in shown
    (record,) = read_trajectories(path)
    assert [message["content"] for message in record["messages"][1:]] == ["a", "b"]
    assert main(["view", str(path)]) == 0 and path.with_suffix(".html").is_file()
    talk(["c", save], ["d"])
    assert [record["messages"][-1]["content"] for record in read_trajectories(path)] == ["b", "d"]


def test_a_reset_forgets() -> None:
    ends = [line for line in talk(["a", "/reset", "c"], ["b", "b"]).splitlines() if line.startswith("[")]
    assert len(ends) == 2 and ends[0].split("context")[1] == ends[1].split("context")[1]


def interrupt() -> str:
    signal.raise_signal(signal.SIGINT)
    return "half a turn"


def no_line() -> str:
    raise KeyboardInterrupt


def test_ctrl_c_stops_the_turn_and_a_second_one_leaves() -> None:
    shown = talk(["a", "b"], [interrupt, "whole"])
    assert shown.count("\n[stopped") == 1 and "half a turn" not in shown and "whole\n[" in shown
    assert "never" not in talk(["a", no_line, "b"], [interrupt, "never"])
    shown = talk([no_line, "a", no_line, no_line, "b"], ["once", "never"])
    assert "once" in shown and "never" not in shown and "press Ctrl-C again" in shown
    with pytest.raises(KeyboardInterrupt):
        talk(["a"], [lambda: interrupt() + interrupt()])


def test_the_command_talks_through_a_pipe(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "chat.jsonl"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"What is 48/2?\nAnd 7*6?\n/save {saved}\n"))
    flags = ["--engine", "transformers", "--max_turn_tokens", "6", "--temperature", "1", "--index", "4"]
    kwargs = json.dumps({"system_prompt": ""})
    assert main(["chat", "AgentR1/GSM8K-v0", "--model", tiny_model, "--env_kwargs", kwargs, *flags]) == 0
    shown = capsys.readouterr().out
    assert "> What is 48/2?\n" in shown and shown.count("context") == 2
    (record,) = read_trajectories(saved)
    assert record["task_id"] == "train/4" and len(record["steps"]) == 2
    (row,) = record["rows"]
    sampled = [i for start, stop, source, _ in row["spans"] if source == "agent" for i in range(start, stop)]
    assert len(sampled) == 12 and all(row["logprobs"][i] < 0 for i in sampled)


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "who answers? give --model" in complaint(capsys, "chat", "AgentR1/GSM8K-v0")
    assert "did you mean" in complaint(capsys, "chat", "AgentR1/GSM8K-v1", "--model", "x")
    assert "no model folder" in complaint(capsys, "chat", "AgentR1/GSM8K-v0", "--model", "./nope")
    kwargs = ["--env_kwargs", '{"data": "x.jsonl"}']
    assert "no such file" in complaint(capsys, "chat", "AgentR1/GSM8K-v0", "--model", str(tmp_path), *kwargs)


def test_a_server_of_texts_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from openai_tools import Server, delta, says, serving, streams

    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 48/2?\nThanks.\n"))
    call = streams(*map(delta, CALL), delta(None, "stop"))
    server = Server(call, streams(delta("It is"), delta(" 24."), delta("", "stop")), says("Bye."))
    with serving(server) as url:
        assert main(["chat", "AgentR1/GSM8K-v0", "--endpoint", url]) == 0
    shown = capsys.readouterr().out
    assert '→ calculator(expression="48/2")\n← 24\nIt is 24.\n[' in shown and "\nBye.\n[" in shown
    asked = [content["messages"] for path, content, _ in server.asked if path.endswith("/chat/completions")]
    assert [message["role"] for message in asked[-1]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in asked[-1][1:]] == ["What is 48/2?", CALL, "24", "It is 24.", "Thanks."]
