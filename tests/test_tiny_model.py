"""The tiny model: a real model folder, a tokenizer with short frames, and one seed for one set of weights."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.trainers.tiny import SIZES, demonstration_texts, make_tiny_model, make_tiny_tokenizer

ENV = "AgentR1/GSM8K-v0"
BARE = {"system_prompt": ""}


@pytest.fixture(scope="module")
def texts():
    return demonstration_texts(ENV, BARE, episodes=300)


@pytest.fixture(scope="module")
def tokenizer(texts):
    return make_tiny_tokenizer(texts, 800)


def test_any_text_survives_the_tokenizer(tokenizer):
    for text in ("café ✓ 世界 \U0001f600", "3.14 + 1,200", "\t\n  x", "<tool_call>{broken"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_stand_alone_and_frames_are_single_tokens(tokenizer):
    digits = tokenizer("1234567890")["input_ids"]
    assert len(digits) == 10
    for frame in ('<tool_call>\n{"name": "calculator", "arguments": {"expression": "', '"}}\n</tool_call>', "#### "):
        assert len(tokenizer(frame)["input_ids"]) == 1, frame


def test_the_template_names_tools_and_carries_several_answers(tokenizer):
    renderer = ChatRenderer.of(tokenizer)
    assert renderer.observation_role == "tool"
    tool = {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}
    prompt = tokenizer.decode(renderer.prompt([{"role": "user", "content": "hi"}], [tool]))
    assert prompt == "<|im_start|>system\ncalculator<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    answers = [{"role": "tool", "content": "24"}, {"role": "tool", "content": "7"}]
    reply = tokenizer.decode(renderer.reply([tokenizer.eos_token_id], answers))
    assert reply == (
        "\n<|im_start|>user\n<tool_response>\n24\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_demonstrations_have_no_tokenizer_and_show_calls_and_answers(texts):
    assert len(texts) == 300
    assert all("#### " in text for text in texts)
    assert sum("<tool_call>" in text and "<tool_response>" in text for text in texts) == 300


def test_the_folder_is_a_plain_model_and_the_seed_decides_its_weights(tmp_path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        state = torch.get_rng_state()
        folder = make_tiny_model(tmp_path / name, ENV, BARE, seed=seed)
        assert torch.equal(state, torch.get_rng_state()), "the caller's random generator was disturbed"
        weights.append(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert any(not torch.equal(weights[0][key], weights[2][key]) for key in weights[0])
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["hidden_size"] == SIZES["xt"]["hidden_size"] and config["head_dim"] == 32
    assert config["vocab_size"] % 64 == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "a").chat_template


def test_an_unknown_size_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'xxl'.*xt, s"):
        make_tiny_model(tmp_path, ENV, BARE, size="xxl")
