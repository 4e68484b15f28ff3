"""Agents of other projects behind the gateway, unchanged: smolagents, mini-swe-agent, and three programs of npm.

They are no dependencies: what is not installed is skipped. Codex, Qwen Code and opencode are looked for on the PATH.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import Recorded, check_trained, play_agent
from process_tools import until
from rollout_tools import scripted
from tiny import make_tiny_model, make_tiny_tokenizer

pytest.importorskip("openai")
pytestmark = pytest.mark.slow
os.environ |= {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

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
OPENCODE_CONFIG = {
    "provider": {
        "gym": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{base_url}", "apiKey": "{api_key}"},
            "models": {"policy": {}},
        }
    }
}
OPENCODE = ["env", "HOME={folder}", f"OPENCODE_CONFIG_CONTENT={json.dumps(OPENCODE_CONFIG)}"]
OPENCODE += ["OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1"]
OPENCODE += ["opencode", "run", "--pure", "-m", "gym/policy", "{question}"]

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
    "opencode": (OPENCODE, [CALL.format('{"name": "glob", "arguments": {"pattern": "*"}}'), "It is 4."]),
}
EACH = [
    pytest.param("smolagents", marks=needs("smolagents")),
    pytest.param("mini", marks=needs("minisweagent")),
    pytest.param("codex", marks=needs_program("codex")),
    pytest.param("qwen", marks=needs_program("qwen")),
    pytest.param("opencode", marks=needs_program("opencode")),
]


def is_four(task: Any, result: Any, transcript: Any) -> float:
    return float("4" in getattr(result, "text", result))


@pytest.mark.parametrize("name", EACH)
def test_an_agent_of_another_project_plays(name: str) -> None:
    agent, texts = AGENTS[name]
    tokenizer = make_tiny_tokenizer()

    def write(episode: Any) -> str:
        if name == "opencode" and not episode.env.unwrapped.tool_schemas:  # it asks for a title at the same time
            return "Sum"
        return texts[min(sum(step.action != "Sum" for step in episode.steps), 1)]

    policy = scripted(tokenizer, write)
    budget = Budget(max_turn_tokens=200, max_tokens=60_000)
    log = Recorded(policy)
    (episode,) = play_agent(agent, tokenizer, [QUESTION], is_four, policy, budget)
    assert episode.failure is None, episode.failure.traceback
    assert episode.reward == 1.0 and len(episode.steps) >= 2
    check_trained(episode, log)
    print(name, [[(span.source, span.stop - span.start) for span in row.spans] for row in episode.rows])
    sources = sorted([span.source for span in row.spans] for row in episode.rows)
    whole = ["user", "agent", "env", "agent"]
    # smolagents writes the policy's calls anew, in words of its own.
    apart = {"smolagents": [["user", "agent"], ["user", "agent"]], "opencode": [["user", "agent"], whole]}
    assert sources == apart.get(name, [whole])


def small_model(folder: Path) -> str:
    """A tiny model whose tokenizer knows English words: the prompts of programs are long."""
    from transformers import AutoModelForCausalLM

    texts = [path.read_text() for path in Path(__file__).parents[1].glob("docs/*.md")]
    tokenizer = make_tiny_tokenizer().train_new_from_iterator(texts, vocab_size=4096)
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(folder, context=16_000))
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("name", EACH)
def test_an_agent_of_another_project_is_trained(name: str, engine: str, tmp_path: Path) -> None:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    def brevity(task: Any, result: Any, transcript: Any) -> float:
        return -len(json.dumps([one for one in transcript if one["role"] == "assistant"])) / 1000

    settings: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 2, "num_generations": 2}
    settings |= {"micro_batch_size": 1, "learning_rate": 1e-3, "max_turn_tokens": 8, "max_episode_tokens": 16_000}
    settings |= {"save_strategy": "no", "report_to": "none", "use_vllm": engine == "vllm", "logging_steps": 1}
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
    assert all(entry.get("sampling/logp_difference_max", 0.0) < 1e-3 for entry in steps), "vLLM read other prompts"


def team(client: Any, task: Any) -> str:
    """A manager with two sub-agents, which smolagents runs in threads of their own when one turn calls both."""
    import smolagents

    def agent(**settings: Any) -> Any:
        model = smolagents.OpenAIModel("policy", api_base=str(client.base_url), api_key=client.api_key)
        return smolagents.ToolCallingAgent(model=model, max_steps=3, verbosity_level=0, **settings)

    helpers = [agent(tools=[], name=name, description="adds numbers") for name in ("left", "right")]
    return str(agent(tools=[], managed_agents=helpers).run(task["question"]))


@needs("smolagents")
def test_sub_agents_ask_at_the_same_time_and_have_rows_of_their_own() -> None:
    both = "".join(CALL.format(json.dumps({"name": name, "arguments": {"task": name}})) for name in ("left", "right"))
    final = CALL.format('{"name": "final_answer", "arguments": {"answer": "%s"}}')

    def write(episode: Any) -> str:
        env = episode.env.unwrapped
        if len(episode.steps) == 1:
            until(lambda: env._session._inbox.qsize())  # the other asks before the first has its answer
        return [both, final % "2", final % "2", final % "4"][len(episode.steps)]

    policy = scripted(make_tiny_tokenizer(), write)
    log, budget = Recorded(policy), Budget(max_turn_tokens=400, max_tokens=60_000)
    (episode,) = play_agent(team, make_tiny_tokenizer(), [QUESTION], is_four, policy, budget)
    assert episode.failure is None, episode.failure.traceback
    check_trained(episode, log)
    assert episode.reward == 1.0 and [step.row for step in episode.steps] == [0, 1, 2, 3]
    for name in ("left", "right"):
        asked = [make_tiny_tokenizer().decode(row.token_ids[: row.prompt_length]) for row in episode.rows[1:3]]
        assert sum(f"agent named '{name}'" in text for text in asked) == 1
