"""Agents of other projects behind the gateway, unchanged: smolagents, mini-swe-agent, and two programs of npm.

They are no dependencies: what is not installed is skipped. Codex and Qwen Code are looked for on the PATH.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import play_agent
from rollout_tools import scripted
from tiny import make_tiny_model, make_tiny_tokenizer

pytest.importorskip("openai")
pytestmark = pytest.mark.slow
os.environ |= {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

from agent_gym.data import model_source  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.rollout import Budget  # noqa: E402

QUESTION = {"question": "What is 2+2?"}
CALL = "I call it.\n<tool_call>\n{}\n</tool_call>"


def needs(package: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def needs_program(name: str) -> Any:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not on the PATH")


def smolagent(client: Any, task: Any) -> str:
    import smolagents

    @smolagents.tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    model = smolagents.OpenAIModel("policy", api_base=str(client.base_url), api_key=client.api_key)
    agent = smolagents.ToolCallingAgent(tools=[add], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(task["question"]))


class Echo:
    """What mini-swe-agent runs commands in: here nothing is run."""

    config: dict[str, Any] = {}

    def execute(self, action: dict[str, Any]) -> dict[str, Any]:
        from minisweagent.exceptions import Submitted

        if action["command"].startswith("submit"):
            text = action["command"].removeprefix("submit ")
            raise Submitted(
                {"role": "exit", "content": text, "extra": {"exit_status": "Submitted", "submission": text}}
            )
        return {"output": f"you wrote {action['command']}", "returncode": 0, "exception_info": ""}

    def get_template_vars(self) -> dict[str, Any]:
        return {}

    def serialize(self) -> dict[str, Any]:
        return {}


def mini(client: Any, task: Any) -> str:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    access = {"api_base": str(client.base_url), "api_key": client.api_key}
    model = LitellmTextbasedModel(model_name="openai/policy", model_kwargs=access, cost_tracking="ignore_errors")
    texts = {"system_template": "Write one command.", "instance_template": "{{task}}"}
    return str(DefaultAgent(model, Echo(), **texts).run(task["question"])["submission"])


CODEX = ["env", "CODEX_HOME={folder}", "codex", "exec", "--skip-git-repo-check", "-s", "read-only", "-m", "policy"]
CODEX += ["-c", "model_provider=gym", "-c"]
CODEX += ['model_providers.gym={name="gym", base_url="{base_url}", env_key="OPENAI_API_KEY", wire_api="responses"}']
CODEX += ["{question}"]
QWEN = ["env", "HOME={folder}", "qwen", "--auth-type", "openai", "-m", "policy", "--bare", "-p", "{question}"]

AGENTS = {
    "smolagents": (
        smolagent,
        [
            CALL.format('{"name": "add", "arguments": {"a": 2, "b": 2}}'),
            '{"name": "final_answer", "arguments": {"answer": "4"}}',
        ],
    ),
    "mini": (mini, ["```mswea_bash_command\nls\n```", "```mswea_bash_command\nsubmit 4\n```"]),
    "codex": (CODEX, [CALL.format('{"name": "exec_command", "arguments": {"cmd": "echo hi"}}'), "It is 4."]),
    "qwen": (QWEN, [CALL.format('{"name": "read_file", "arguments": {"file_path": "/etc/hostname"}}'), "It is 4."]),
}
EACH = [
    pytest.param("smolagents", marks=needs("smolagents")),
    pytest.param("mini", marks=needs("minisweagent")),
    pytest.param("codex", marks=needs_program("codex")),
    pytest.param("qwen", marks=needs_program("qwen")),
]


def is_four(task: Any, result: Any, transcript: Any) -> float:
    return float("4" in getattr(result, "text", result))


@pytest.mark.parametrize("name", EACH)
def test_an_agent_of_another_project_plays(name: str) -> None:
    agent, texts = AGENTS[name]
    tokenizer = make_tiny_tokenizer()
    policy = scripted(tokenizer, lambda episode: texts[min(len(episode.steps), 1)])
    budget = Budget(max_turn_tokens=200, max_tokens=60_000)
    (episode,) = play_agent(agent, tokenizer, [QUESTION], is_four, policy, budget)
    assert episode.failure is None, episode.failure.traceback
    assert episode.reward == 1.0 and len(episode.steps) >= 2
    print(name, [[(span.source, span.stop - span.start) for span in row.spans] for row in episode.rows])
    if name != "smolagents":  # which writes the policy's calls anew, in words of its own
        (row,) = episode.rows
        assert [span.source for span in row.spans] == ["user", "agent", "env", "agent"]


def small_model(folder: Path) -> str:
    """A tiny model, with SmolLM2's tokenizer where that is prepared: the prompts of programs are long."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    make_tiny_model(folder, context=40_000)
    with suppress(ConfigError):
        tokenizer = AutoTokenizer.from_pretrained(model_source("smollm2"))
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.resize_token_embeddings(len(tokenizer))  # both end turns with token 2
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", EACH)
def test_an_agent_of_another_project_is_trained(name: str, tmp_path: Path) -> None:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    def brevity(task: Any, result: Any, transcript: Any) -> float:
        return -len(json.dumps([one for one in transcript if one["role"] == "assistant"])) / 1000

    settings: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 2, "num_generations": 2}
    settings |= {"micro_batch_size": 1, "learning_rate": 1e-3, "max_turn_tokens": 8, "max_episode_tokens": 40_000}
    settings |= {"save_strategy": "no", "report_to": "none", "use_vllm": False, "logging_steps": 1}
    settings |= {"bf16": False, "use_cpu": True, "gradient_checkpointing": False}
    trainer = AgentGRPOTrainer(
        small_model(tmp_path / "model"),
        args=AgentGRPOConfig(str(tmp_path / "run"), **settings),
        agent=AGENTS[name][0],
        tasks=[QUESTION],
        reward=brevity,
    )
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    assert any(not value.equal(before[key]) for key, value in trainer.model.state_dict().items())
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(name, [(entry["reward"], entry["rollout/failed"]) for entry in steps])
    assert len(steps) == 2 and all(entry["rollout/failed"] == 0 for entry in steps)
