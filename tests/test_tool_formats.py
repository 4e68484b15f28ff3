"""What the policy reads about its tools: one format only, in whatever context it is shown its situation."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_tools import counting, play
from toy_envs import SlowWriter

import agent_gym  # noqa: F401
from agent_gym.chat import ChatRenderer
from agent_gym.policies import Request
from agent_gym.rollout import Budget

pytest.importorskip("bm25s")
pytest.importorskip("transformers")
from tiny import make_tiny_tokenizer  # noqa: E402 - needs transformers

TEMPLATE = (
    "{%- if tools %}{{- 'ASK IN JSON FOR: ' + tools[0].function.name }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls %}{{- '<tool_call>' + call.function | tojson + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tiny_tokenizer(chat_template=TEMPLATE)


def prompts(env_id: str, tokenizer: Any, context: str) -> list[str]:
    """Let the expert play and return what it was shown before each of its turns."""
    renderer = ChatRenderer.of(tokenizer)

    def act(episode: Any) -> str:
        env = episode.env.unwrapped
        return env.expert_action() if episode.asked == "act" else env.history()

    policy = SlowWriter(act, renderer.encode_action)
    budget = Budget(max_turn_tokens=400, max_tokens=20_000)
    (episode,) = play(policy, tokenizer, counting(1, env_id), budget, context=context)
    assert episode.success and not episode.failure, episode
    requests: list[Request] = policy.seen
    return [tokenizer.decode(request.prompt_ids, skip_special_tokens=False) for request in requests]


@pytest.mark.parametrize("context", ["append", "rebuild", "template", "summarize:2300"])
def test_a_format_is_described_once_by_the_template_or_where_none_knows_it_by_the_system_prompt(
    tokenizer: Any, context: str
) -> None:
    shown = prompts("AgentR1/HotpotQA-ReAct-v0", tokenizer, context)
    assert len(shown) >= 3 and all("ASK IN JSON" not in prompt and "Search[" in prompt for prompt in shown)
    for prompt in prompts("AgentR1/HotpotQA-v0", tokenizer, context):
        assert "ASK IN JSON FOR: search" in prompt and "parameters" not in prompt
