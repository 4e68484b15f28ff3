"""Agents behind the gateway play a task of software to its end, with a scripted model: the golden change is paid."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from swe_tools import ENV_ID, made_env, shared_task

from agent_gym.envs.swe.tasks import read_task

pytest.importorskip("openai")
pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")


@pytest.fixture(scope="module")
def task() -> Path:
    return shared_task()


def agents_turns(task: Path) -> dict[str, list[str]]:
    """The turns of a scripted model: the golden change, another one, and none."""
    env = made_env(task)
    env.reset(seed=0)
    golden = [env.expert_action()]
    env.step(golden[0])
    other = env.parser.render("bash", {"command": "echo >> src/wordlets/__init__.py; cat src/wordlets/__init__.py"})
    return {"golden": [*golden, env.expert_action()], "other": [other, "Done."], "none": ["I am done."]}


def test_an_agent_behind_the_gateway_plays_to_the_end(task: Path, tokenizer: Any) -> None:
    from tool_loop import agent

    found = {name: behind_the_gateway(agent, task, tokenizer, turns) for name, turns in agents_turns(task).items()}
    assert found == {"golden": (1.0, True), "other": (0.0, False), "none": (0.0, False)}


def behind_the_gateway(agent: Any, task: Path, tokenizer: Any, turns: list[str]) -> tuple[float, bool]:
    """Let an agent play with a model that writes these turns; return the reward and the success."""
    from rollout_tools import scripted

    from agent_gym.evaluate import make_specs
    from agent_gym.gateway import agent_env
    from agent_gym.rollout import Budget, Runner

    policy = scripted(tokenizer, lambda episode: turns[len(episode.steps)])
    with closing(Runner(policy, tokenizer, Budget(max_turn_tokens=4000, max_tokens=20_000))) as runner:
        env = agent_env(agent, world=ENV_ID, world_kwargs={"data": str(task)})
        (episode,) = runner.run(make_specs(*env, split="train", episodes=1))
    assert episode.failure is None and episode.terminated and [one.action for one in episode.steps] == turns
    assert len(episode.rows) == 1, "the conversation grows, so that each token is trained once"
    return episode.reward, bool(episode.success)


@pytest.mark.slow
def test_mini_swe_agent_plays_unchanged(task: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("minisweagent", reason="pip install mini-swe-agent")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.exceptions import Submitted
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    class Session:
        """Where it runs commands: in the session of the environment."""

        config: dict[str, Any] = {}

        def __init__(self, step: Any) -> None:
            self.step = step

        def execute(self, action: dict[str, Any]) -> dict[str, Any]:
            if action["command"] == "submit":
                raise Submitted(
                    {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}}
                )
            text = json.dumps({"name": "bash", "arguments": {"command": action["command"]}})
            output = self.step(f"<tool_call>\n{text}\n</tool_call>")
            return {"output": output, "returncode": int("[exit code" in output), "exception_info": ""}

        def get_template_vars(self) -> dict[str, Any]:
            return {}

        def serialize(self) -> dict[str, Any]:
            return {}

    def mini(client: Any, task: Any) -> str:
        access = {"api_base": str(client.base_url), "api_key": client.api_key}
        model = LitellmTextbasedModel(model_name="openai/policy", model_kwargs=access, cost_tracking="ignore_errors")
        texts = {"system_template": "Write one command.", "instance_template": "{{task}}"}
        DefaultAgent(model, Session(task["step"]), **texts).run(task["question"])
        return "I am done."

    commands = {"golden": f"git apply - <<'END'\n{read_task(task).patch}END", "other": "ls"}
    for name, command in commands.items():
        turns = [f"```mswea_bash_command\n{text}\n```" for text in (command, "submit")]
        assert behind_the_gateway(mini, task, tokenizer, turns) == (float(name == "golden"), name == "golden")


@pytest.mark.slow
def test_a_program_plays_with_the_model_of_the_command_gateway(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model_server import free_port
    from openai_tools import Server, says, serving
    from process_tools import until

    for name, turns in agents_turns(task).items():
        port, record = free_port(), tmp_path / f"{name}.jsonl"
        with serving(Server(*map(says, turns))) as endpoint:
            words = ["gateway", "--port", str(port), "--endpoint", endpoint, "--record", str(record)]
            gateway = subprocess.Popen([sys.executable, "-m", "agent_gym", *words, "--max_tokens", "30000"])
            try:
                until(lambda port=port: not socket.socket().connect_ex(("127.0.0.1", port)), 120)
                program = Path(__file__).parents[1] / "examples" / "tool_loop.py"
                access = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": name}
                words = [sys.executable, str(program), ENV_ID, json.dumps({"data": str(task)})]
                said = subprocess.run(words, env={**os.environ, **access}, capture_output=True, text=True, check=True)
            finally:
                gateway.terminate()
                gateway.wait(60)
        assert float(said.stdout) == float(name == "golden")
        assert [one["action"] for one in json.loads(record.read_text())["steps"]] == turns
