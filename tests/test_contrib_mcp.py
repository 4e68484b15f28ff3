"""Tools of a real MCP server, over stdio and over HTTP: whose fault is what, lost servers, forks, an environment."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from model_server import free_port
from process_tools import holds_in_a_fork, until

from agent_gym import ConfigError, EnvFailure, QuestionEnv
from agent_gym.contrib.mcp import MCPTool, _close_all, mcp_tools
from agent_gym.testing import check_text_env

pytest.importorskip("mcp")

SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = [sys.executable, str(SERVER)]


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([*STDIO, str(port)], stderr=subprocess.DEVNULL)
    until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), 60)
    yield f"http://127.0.0.1:{port}/mcp"
    _close_all()
    process.kill()
    process.wait()


@pytest.fixture(scope="module", params=["stdio", "http"])
def tools(request: Any) -> dict[str, MCPTool]:
    return by_name(mcp_tools(STDIO if request.param == "stdio" else request.getfixturevalue("http")))


def by_name(tools: list[MCPTool]) -> dict[str, MCPTool]:
    return {tool.name: tool for tool in tools}


def test_schemas_are_the_servers_and_answers_text(tools: dict[str, MCPTool]) -> None:
    assert list(tools) == ["room_of", "about", "numbers", "picture", "wait", "die"]
    schema = tools["room_of"].schema["function"]
    assert schema["name"] == "room_of" and schema["description"] == "Tell in which room a person sits."
    assert schema["parameters"]["properties"]["name"]["type"] == "string"
    assert schema["parameters"]["required"] == ["name"]
    answer = tools["room_of"].run({"name": "Ada", "loud": True})
    assert (answer.text, answer.error) == ("ROOM 101", False)
    assert '"numbers"' in tools["numbers"].run({"up_to": 3}).text
    assert tools["picture"].run({}).text == "look:\n[image: image/png]"


@pytest.mark.parametrize("arguments", [{"name": "Zed"}, {}, {"name": "\ud800"}, {"name": float("inf")}])
def test_the_policys_mistakes_are_observations(tools: dict[str, MCPTool], arguments: dict[str, Any]) -> None:
    answer = tools["room_of"].run(arguments)
    assert answer.error and answer.text
    assert tools["room_of"].run({"name": "Bo"}).text == "202", "the connection has not suffered"


def test_many_threads_share_a_connection(tools: dict[str, MCPTool]) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: tools["room_of"].run({"name": ("Ada", "Bo")[i % 2]}).text, range(64)))
        pids = set(pool.map(lambda _: tools["about"].run({"name": "pid"}).text, range(16)))
    assert answers == ["101", "202"] * 32 and len(pids) == 1


def test_a_late_answer_is_our_failure_and_the_next_is_none(http: str) -> None:
    for server in (STDIO, http):
        tools = by_name(mcp_tools(server, timeout_s=1.5))
        with pytest.raises(EnvFailure, match=r"took over 1\.5 s for wait"):
            tools["wait"].run({"seconds": 2.0})
        assert tools["wait"].run({"seconds": 0.0}).text == "done"


def test_a_lost_server_is_started_again_once(tmp_path: Path) -> None:
    tools = by_name(mcp_tools(STDIO))
    pid = int(tools["about"].run({"name": "pid"}).text)
    os.kill(pid, signal.SIGKILL)
    again = int(tools["about"].run({"name": "pid"}).text)
    assert again != pid, "killed between two calls"
    assert tools["die"].run({"once": str(tmp_path / "died")}).text == "alive", "during a call"
    with pytest.raises(EnvFailure, match=r"(?s)broke over die.*these are my last words"):
        tools["die"].run({})
    assert tools["room_of"].run({"name": "Ada"}).text == "101"


def test_connections_are_shared_by_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def pid(**settings: Any) -> str:
        return by_name(mcp_tools(STDIO, **settings))["about"].run({"name": "pid"}).text

    first = by_name(mcp_tools(STDIO))["about"]
    assert pid() == pid() == copy.deepcopy(first).run({"name": "pid"}).text
    assert pickle.loads(pickle.dumps(first)).run({"name": "pid"}).text == pid()
    assert pid(timeout_s=20) != pid()
    monkeypatch.setenv("SECRET_OF_THE_TRAINER", "1")
    about = by_name(mcp_tools(STDIO, env={"GIVEN": "yes"}))["about"]
    assert about.run({"name": "GIVEN"}).text == "yes"
    assert about.run({"name": "SECRET_OF_THE_TRAINER"}).text == "unset"


def test_a_forked_process_connects_anew() -> None:
    about = by_name(mcp_tools(STDIO))["about"]
    mine = about.run({"name": "pid"}).text

    def child() -> bool:
        theirs = about.run({"name": "pid"}).text
        _close_all()
        return theirs.isdigit() and theirs != mine

    assert holds_in_a_fork(child)
    assert about.run({"name": "pid"}).text == mine, "the parent's connection lives on"


def test_servers_end_with_this_process() -> None:
    script = f"""
from agent_gym.contrib.mcp import mcp_tools
tools = {{tool.name: tool for tool in mcp_tools({STDIO!r})}}
print(tools["about"].run({{"name": "pid"}}).text, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert not Path(f"/proc/{int(done.stdout)}").exists()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("/nowhere/at-all --fast", "/nowhere/at-all --fast.*No such file"),
        ([sys.executable, "-c", "raise SystemExit('no licence')"], "no licence"),
        ("http://127.0.0.1:1/mcp", "http://127.0.0.1:1/mcp cannot be used.*onnect"),
        ("python 'server.py", 'server is "python \'server.py"'),
        ([], r"server is \[\]"),
        (Path("/nowhere"), r"server is PosixPath"),
    ],
)
def test_servers_that_cannot_be_used_are_named(server: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        mcp_tools(server)
    for settings, named in (({"timeout_s": "30"}, "timeout_s '30'"), ({"env": {"PORT": 8000}}, "env holds something")):
        with pytest.raises(ConfigError, match=named):
            mcp_tools([sys.executable, "server.py"], **settings)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"'mcp'.*agentic-gym\[mcp\]"):
        mcp_tools(server)


def test_an_environment_with_tools_of_a_server() -> None:
    rows = [
        {"question": f"In which room does {name} sit?", "answer": room} for name, room in (("Ada", 101), ("Bo", 202))
    ]
    tools = [tool for tool in mcp_tools(STDIO) if tool.name == "room_of"]
    env = QuestionEnv(rows, tools)
    check_text_env(lambda: QuestionEnv(rows, tools), expert=False)
    env.reset(options={"index": 1})
    answer, _, _, _, info = env.step(env.parser.render("room_of", {"name": "Zed"}))
    assert "nobody is called 'Zed'" in answer and info["error"] == answer
    assert env.step(env.parser.render("room_of", {"name": "Bo"}))[0] == "202"
    assert env.step("<answer>202</answer>")[1] == 1.0


BAD = [sys.executable, str(Path(__file__).with_name("mcp_bad_schemas.py"))]


def test_a_bad_schema_costs_its_tool_and_not_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    _close_all()  # another test may have connected already
    found = by_name(mcp_tools(BAD))
    assert list(found) == ["good", "recursive", "output"]
    assert found["good"].run({"text": "é"}).text == json.dumps({"text": "é"})
    env = QuestionEnv([{"question": "a", "answer": "b"}], tools=[*found.values()])
    env.reset(seed=0)
    assert env.step(env.parser.render("recursive", {"tree": {}}))[0] == '{"tree": {}}'
    lines = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
    for name, words in {
        "no_type": 'its inputSchema has no type; it must have "type": "object"',
        "empty": "has no type",
        "string": "has the type 'string'",
        "none": "is None (NoneType); it must be a JSON schema",
        "text": "is 'object' (str)",
        "nowhere": "refers to '#/$defs/Gone', which is not in it",
        "elsewhere": "refers to 'https://example.com/s.json'",
        "kind": "is no JSON schema: properties/a/type: 'strng'",
        "list": "is no JSON schema: properties",
        "wanted": "is no JSON schema: required",
        "about": "description",
        "7": "its name is 7 (int)",
        "good": "another tool of the server has this name",
        "nonsense": "no object",
    }.items():
        (line,) = (one for one in lines if f"tool {name!r} is left out" in one)
        assert words in line and line.startswith(f"agent-gym: the MCP server {BAD[0]}")
    assert len(lines) == 14


def test_a_server_of_bad_schemas_alone_has_no_tools_for_these_reasons() -> None:
    with pytest.raises(ConfigError, match="has no tools that can be used; left out are no_type: its inputSc"):
        mcp_tools([*BAD, "all"])


def test_results_of_a_server_are_cut_with_a_mark(tools: dict[str, MCPTool]) -> None:
    text = by_name(mcp_tools(BAD))["output"].run({}).text
    assert len(text) == 16_384 and "[cut: the result has 5,000,000 characters" in text
    text = by_name(mcp_tools(BAD, max_chars=100))["output"].run({}).text
    assert len(text) == 100 and "[cut: " in text
    with pytest.raises(ConfigError, match="max_chars is 3"):
        mcp_tools(BAD, max_chars=3)
    assert tools["room_of"].run({"name": "Ada"}).text == "101"
