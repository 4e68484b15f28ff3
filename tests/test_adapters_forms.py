"""In TRL and in verl a model is told of its own form of calls only, and its calls arrive."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

trl = pytest.importorskip("trl")
from template_tools import decode, model_folder, read_templates, tokenizer_of  # noqa: E402 - needs transformers

from agent_gym import ConfigError, Sampled  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.contrib.lending import task_rows  # noqa: E402
from agent_gym.contrib.trl import to_trl  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
GSM8K, SUPPORT = "AgentR1/GSM8K-v0", "AgentR1/Support-v0"
OTHERS = {  # text of a form that a model of the family must not be asked for
    "llama3_1": ["<tool_call>", "<function="],
    "qwen3_5_nothink": ['<tool_call>\n{"name"', '{"name": <function-name>'],
    "gptoss": ["<tool_call>", "<function="],
}


def template(name: str) -> str:
    return {key.partition("#")[0]: text for key, text in read_templates().items()}[name]


class Played:
    """The expert's turns of task 1 in the form of a model, and what our environment makes of them."""

    def __init__(self, env_id: str, renderer: ChatRenderer) -> None:
        env: Any = gymnasium.make(env_id, tokenizer=renderer)
        row = task_rows(env_id, tasks=2)[1]
        _, info = env.reset(seed=row["seed"], options={"split": row["split"], "index": row["index"]})
        self.prompt, self.ids, self.turns, self.reward, over = list(info["token_ids"]), list[int](), [], 0.0, False
        while not over:
            turn = renderer.encode_action(env.unwrapped.expert_action())
            _, reward, terminated, truncated, info = env.step(Sampled(renderer.decode_action(turn), turn))
            over, self.reward = terminated or truncated, self.reward + float(reward)
            self.turns.append(turn)
            self.ids += info["token_ids"]
        assert info["is_success"] and len(self.turns) > 1


@pytest.mark.parametrize("name", OTHERS)
def test_trl_reads_the_calls_of_the_model_and_asks_for_no_others(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(tmp_path / "model", template(name))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = ChatRenderer(tokenizer)
    ours, lent = Played(GSM8K, renderer), to_trl(GSM8K, tasks=2)
    left, prompts = [[list(turn) for turn in ours.turns] for _ in range(2)], list[str]()

    class Trainer(trl.GRPOTrainer):  # its own loop, with turns that are not sampled
        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            prompts.append(decode(renderer, prompt_ids[0]))
            return [one.pop(0) for one in left], None

    settings = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 2048}
    arguments = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)
    model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = Trainer(model, processing_class=tokenizer, args=arguments, **lent._asdict())
    trainer._generate_and_score_completions([dict(lent.train_dataset[1])] * 2)
    assert left == [[], []]
    assert [*trainer._logs["rewards"]["_reward"]] == pytest.approx([ours.reward] * 2)
    assert "calculator" in prompts[0] and not [text for text in OTHERS[name] if text in prompts[0]], prompts[0]


@pytest.mark.parametrize("env_id", [GSM8K, SUPPORT])
@pytest.mark.parametrize("name", OTHERS)
def test_verl_plays_in_the_form_of_the_model(name: str, env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stand-ins for verl, so that this runs without it; the loop is ours.
    parts = {"AgentLoopBase": object, "AgentLoopOutput": SimpleNamespace, "AgentLoopMetrics": SimpleNamespace}
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.agent_loop", SimpleNamespace(**parts))
    adapter = runpy.run_module("agent_gym.contrib.verl")
    renderer = ChatRenderer.of(tokenizer_of(template(name)))
    ours, (_, row) = Played(env_id, renderer), adapter["to_verl"](env_id, tasks=2)
    left = [list(turn) for turn in ours.turns]

    class Server:
        async def generate(self, **_: Any) -> Any:
            return SimpleNamespace(token_ids=left.pop(0), log_probs=None)

    loop = adapter["AgentGymLoop"]()
    loop.tokenizer, loop.server_manager = renderer.tokenizer, Server()
    loop.rollout_config = SimpleNamespace(response_length=1 << 20)
    made = asyncio.run(loop.run({}, extra_info=row["extra_info"]))
    assert (made.prompt_ids, made.response_ids) == (ours.prompt, ours.ids)
    assert not left and made.reward_score == pytest.approx(ours.reward)
    shown = decode(renderer, made.prompt_ids)
    assert not [text for text in OTHERS[name] if text in shown], shown


@pytest.mark.parametrize(
    ("env_id", "kwargs", "form"),
    [
        ("AgentR1/HotpotQA-ReAct-v0", {}, "ReActParser"),
        ("AgentR1/HotpotQA-v0", {"protocol": "search-r1"}, "SearchR1Parser"),
        ("AgentR1/HotpotQA-v0", {"protocol": "react"}, "NumberedReActParser"),
        ("AgentR1/WebShop-v0", {"protocol": "verl-agent"}, "ProtocolActionParser"),
        ("AgentR1/ALFWorld-v0", {"protocol": "verl-agent"}, "VerlAgentParser"),
        ("AgentR1/ReTool-v0", {"protocol": "retool"}, "BlockParser"),
    ],
)
def test_trl_is_lent_no_prompt_that_asks_for_another_form(env_id: str, kwargs: dict[str, Any], form: str) -> None:
    with pytest.raises(ConfigError, match=rf"{env_id} asks for calls in its own form \({form}\)"):
        to_trl(env_id, tasks=1, **kwargs)


@pytest.mark.parametrize("env_id", [GSM8K, SUPPORT, "AgentR1/HotpotQA-v0", "AgentR1/ReTool-v0", "AgentR1/WebShop-v0"])
def test_what_trl_is_lent_describes_no_call(env_id: str) -> None:
    lent = to_trl(env_id, tasks=1)
    env = gymnasium.make(env_id)
    opening = lent.environment_factory().reset(**lent.train_dataset[0])
    texts = "\n".join([*(message["content"] for message in lent.train_dataset[0]["prompt"]), opening])
    assert "tool_call" not in texts and "```" not in texts
    assert not env.unwrapped.parser.parse(texts)  # type: ignore[attr-defined]
