"""The bridge to TRL's `environment_factory`: TRL's own trainer plays an environment of ours, and ours one of TRL's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

trl = pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from transformers.utils import get_json_schema  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from agent_gym import ConfigError  # noqa: E402
from agent_gym.contrib.trl import FromTRL, to_trl  # noqa: E402
from agent_gym.testing import check_text_env, expert_episode, policy_texts  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


def test_tools_answers_and_rewards_are_the_environments() -> None:
    factory, rows, reward = to_trl(GSM8K, tasks=5)
    assert len(rows) == 5 and rows[0]["prompt"][0]["role"] == "system"
    env = factory()
    question = env.reset(**rows[4])
    ours = gymnasium.make(GSM8K)
    observation, info = ours.reset(seed=4, options={"split": "train", "index": 4})
    # The system prompt stands in the row, so that only the question is added to it.
    assert question == info["messages"][-1]["content"] and observation.endswith(question)
    (schema,) = [get_json_schema(factory.calculator)["function"]]
    (own,) = [tool["function"] for tool in info["tools"]]
    assert schema["name"] == own["name"] == "calculator"
    assert list(schema["parameters"]["properties"]) == list(own["parameters"]["properties"])
    log = expert_episode(ours, seed=4, options={"split": "train", "index": 4})
    *calls, last = policy_texts(log)
    for text, (seen, *_) in zip(calls, log[1:], strict=False):
        (call,) = ours.unwrapped.parser.parse(text)
        assert env.calculator(**call.arguments) == seen
    completion = [{"role": "assistant", "content": last}]
    (paid,) = reward([completion], [env])
    assert paid == pytest.approx(sum(step[1] for step in log[1:])) and paid >= 1.0
    with pytest.raises(ValueError, match="over"):
        env.calculator(expression="1+1")


def test_trl_trains_on_it(tiny_model: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # TRL wants a template that renders and recognises calls, which the tiny model's does not.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_model),
        processing_class=tokenizer,
        args=GRPOConfig(
            str(tmp_path / "out"),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=24,
            max_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
        **to_trl(GSM8K, tasks=8)._asdict(),
    )
    trainer.train()
    assert "reward" in trainer.state.log_history[0]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("AgentR1/GSM8K-NoTool-v0", {}, "has no tools"),
        (GSM8K, {"split": "dev"}, "split 'dev'"),
        (GSM8K, {"split": "test", "tasks": 10**7}, "10000000 tasks"),
    ],
)
def test_what_cannot_be_lent_is_named(env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        to_trl(env_id, **kwargs)


class Doubling:
    """As TRL's documentation writes environments."""

    def reset(self, number: int, **row: Any) -> str:
        self.number, self.asked = number, 0
        return f" The number is {number}."

    def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: the number.
        """
        self.asked += 1
        if self.asked > 1:
            raise ValueError("only once")
        return 2 * number

    def get_reward(self) -> float:
        return float(self.asked == 1)


ROWS = [
    {"prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Double it."}], "number": n}
    for n in range(20)
]


def call(number: int) -> str:
    return f"<tool_call>{json.dumps({'name': 'double', 'arguments': {'number': number}})}</tool_call>"


def test_an_environment_of_trls_is_one_of_ours() -> None:
    env = FromTRL(Doubling, ROWS)
    _, info = env.reset(options={"index": 7})
    assert [message["content"] for message in info["messages"]] == ["Be short.", "Double it. The number is 7."]
    assert env.step(call(7))[0] == "14"
    observation, _, _, _, info = env.step(call(14))
    assert observation == "Error: only once" and info["error"]
    _, reward, terminated, _, info = env.step("28")
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)
    env.reset(options={"index": 7})
    env.step(call(7))
    assert env.step("14")[1:3] == (1.0, True)
    check_text_env(lambda: FromTRL(Doubling, ROWS), expert=False)


def test_examples_in_a_prompt_keep_their_roles() -> None:
    talk = [("system", "Be short."), ("user", "Double 2."), ("assistant", "4"), ("user", "Double it.")]
    prompt = [{"role": role, "content": content} for role, content in talk]
    env = FromTRL(Doubling, [{"prompt": prompt, "number": 5}], max_turns=2)
    for _ in range(2):
        observation, info = env.reset(seed=0)
        shown = [(message["role"], message["content"]) for message in info["messages"]]
        assert shown == [*talk[:3], ("user", "Double it. The number is 5.")]
    env.step(call(5))
    assert [one["role"] for one in env.state_prompt()] == [role for role, _ in talk]


def test_a_reward_function_of_trls_sees_the_completion_and_the_row() -> None:
    def right(completions: Any, number: Any, **_: Any) -> list[float]:
        return [float(one[-1]["content"] == str(2 * n)) for one, n in zip(completions, number, strict=True)]

    env = FromTRL(Doubling, {"test": ROWS}, reward_func=right)
    env.reset(options={"index": 3})
    env.step(call(3))
    assert env.step("6")[1] == 2.0  # get_reward and the function
    env = FromTRL(Doubling, {"test": ROWS}, reward_func=right, max_turns=1)
    env.reset(options={"index": 3})
    *_, info = env.step(call(3))  # the tool's answer is the last message
    assert info["reward_terms"] == {"reward": 2.0} and info["is_success"], "the turns are over, and TRL pays"
    with pytest.raises(ConfigError, match="give reward_func="):
        FromTRL(type("NoReward", (), {"reset": lambda self: None}), ROWS)
