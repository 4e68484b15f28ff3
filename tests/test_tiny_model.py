"""The model made on the spot: a documented recipe, the same for the same seed, small enough for two cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from trainer_tools import distance, weights  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.examples.tiny import demonstration_texts, make_tiny_model, make_tiny_tokenizer  # noqa: E402
from agent_gym.trainers.sft import expert_episodes  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"
KWARGS = {"system_prompt": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), GSM8K, KWARGS)


@pytest.fixture(scope="module")
def tiny_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def test_the_recipe(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("qwen3", 96, 2)
    assert config.head_dim % 32 == 0  # what vLLM's kernels for the CPU take
    assert config.vocab_size % 64 == 0
    assert config.tie_word_embeddings
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert sum(parameter.numel() for parameter in model.parameters()) < 400_000


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    seeds = {"one": 0, "again": 0, "other": 1}
    folders = {
        name: make_tiny_model(tmp_path / name, GSM8K, KWARGS, demonstrations=200, seed=seed)
        for name, seed in seeds.items()
    }
    assert torch.equal(torch.random.get_rng_state(), state)
    one, again, other = (weights(AutoModelForCausalLM.from_pretrained(folder)) for folder in folders.values())
    assert distance(one, again) == 0.0 and distance(one, other) > 0.01
    assert (folders["one"] / "tokenizer.json").read_bytes() == (folders["again"] / "tokenizer.json").read_bytes()


def test_digits_and_the_frame_of_a_call_are_single_tokens(tiny_tokenizer: Any) -> None:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
    pieces = {
        "<answer>4807</answer>": ["<answer>", "4", "8", "0", "7", "</answer>"],
        call: [call[: call.index("48")], "4", "8", "/", "2", '"}}\n</tool_call>'],
    }
    for text, expected in pieces.items():
        assert [tiny_tokenizer.decode([i]) for i in tiny_tokenizer(text)["input_ids"]] == expected
    for text in ("", "naïve café 😀\n\t", "<tool_response>\n12\n</tool_response>", "a" * 300, "\u0000\x7f"):
        assert tiny_tokenizer.decode(tiny_tokenizer(text)["input_ids"]) == text


def test_episodes_are_short(tiny_tokenizer: Any) -> None:
    episodes = expert_episodes(GSM8K, KWARGS, tiny_tokenizer, split="test", episodes=50)
    assert len(episodes) == 50
    lengths = [len(episode.rows[0].token_ids) for episode in episodes]
    assert sum(lengths) / 50 < 130
    assert max(lengths) < 400


def test_the_template_speaks_of_tools_and_carries_their_answers(tiny_tokenizer: Any) -> None:
    renderer = ChatRenderer.of(tiny_tokenizer)
    assert renderer.renders_tools and renderer.observation_role == "tool"
    assert renderer.end_of_turn == tiny_tokenizer.eos_token_id
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {}}}
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]
    talk += [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = tiny_tokenizer.apply_chat_template(talk, tools=[tool, tool], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\ncalculator, calculator<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
        "<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_tokenizer_is_trained_on_what_is_played(tmp_path: Path) -> None:
    texts = demonstration_texts("AgentR1/GSM8K-NoTool-v0", KWARGS, episodes=20)
    assert len(texts) == 20 and not any("<tool_call>" in text for text in texts)
    assert make_tiny_tokenizer(texts, 300).vocab_size == 300
    few = tmp_path / "few.jsonl"  # a data set with fewer tasks than episodes are wanted
    rows = [{"question": f"What is {i} + 1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(4)]
    few.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(demonstration_texts(GSM8K, {"data": str(few)})) == 4


def test_a_name_is_the_same_tokens_wherever_it_stands() -> None:
    texts = [f'{{"query": "{name}"}} Where was {name} born?' for name in ("Bade Fopu", "Lemi Pivo", "Sinafa")] * 20
    sentence = 'Lemi Pivo works for Sinafa. {"query": "Lemi Pivo"}'
    for names_apart in (True, False):
        tokenizer = make_tiny_tokenizer(texts, 400, names_apart=names_apart)
        tokens = tokenizer.tokenize(sentence)
        assert tokenizer.decode(tokenizer(sentence)["input_ids"]) == sentence
        first, copied = tokenizer.tokenize("Lemi Pivo"), tokenizer.tokenize(" Lemi Pivo")
        assert (copied[1:] == first) == names_apart
        assert any(tokens[i : i + len(first)] == first for i in range(1, len(tokens)))


def test_frames_are_single_tokens_and_cost_the_vocabulary_nothing() -> None:
    texts = [f"Page 1 [SEP] Next > [SEP] red shoe {n} [SEP] Buy Now" for n in range(200)]
    tokenizer = make_tiny_tokenizer(texts, 300, frames=(" [SEP] ", "Page 1 [SEP] Next > [SEP] "))
    assert tokenizer.tokenize(texts[7])[0] == "Page 1 [SEP] Next > [SEP] "
    assert tokenizer.tokenize(texts[7]).count(" [SEP] ") == 1
    assert tokenizer.decode(tokenizer(texts[7])["input_ids"]) == texts[7]
    assert not any("SEP" in token or "Pa" in token for token in tokenizer.get_vocab() if token.isalpha())
    assert make_tiny_tokenizer(texts, 300).tokenize("Page 1") != ["Page 1"]
