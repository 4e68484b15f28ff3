"""The chat renderer by itself: turns written by hand, decoding, settings, and templates that cannot work."""

from __future__ import annotations

import pytest
from toy_envs import WorldEnv

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer

pytest.importorskip("trl")
from test_chat_templates import (  # noqa: E402
    CASES,
    GEMMA,
    PHI,
    Case,
    as_the_template_wants,
    play,
    renderer_of,
    tokenizer_of,
    tool_messages,
)
from tiny import make_tiny_tokenizer  # noqa: E402 - needs transformers


def test_decoding_shows_what_was_sampled() -> None:
    renderer = renderer_of(CASES[0])
    start = renderer.tokenizer.convert_tokens_to_ids("<|im_start|>")
    end = renderer.end_of_turn
    words = renderer.encode("a b")
    assert renderer.decode_action([start, *words, end, end]) == "<|im_start|>a b"
    assert renderer.decode_action([*words, end, *words]) == "a b<|im_end|>a b"  # only the end is cut
    assert renderer.decode_action([end]) == renderer.decode_action([]) == ""
    assert renderer.encode_action("a b") == [*words, end] and renderer.encode_action("a b", closed=False) == words


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("name", ["phi3", "qwen2_5"])
def test_tokenizers_that_put_a_space_before_the_first_word(scheme: str, name: str) -> None:
    """SentencePiece's habit, as in Llama 2 and Phi-3: a turn in mid-context must not begin with a space of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<|im_start|>", "<|im_end|>", *PHI, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    model.train_from_iterator(["Turn result where so far"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    case = next(case for case in CASES if case.name == name)
    tokenizer.eos_token, tokenizer.chat_template = case.eos, tokenizer_of(case).chat_template
    env = WorldEnv(system_prompt="", tokenizer=tokenizer)
    turns = [env.renderer.encode_action(f"Turn {k}") for k in range(2)]
    messages = list(play(env, turns, [tool_messages("result")] * 2)[0]["messages"])
    for k in range(2):
        answer = as_the_template_wants(case, tool_messages("result"))
        messages += [{"role": "assistant", "content": f"Turn {k}"}, *answer]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert env.transcript.token_ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(env.renderer.inline_reply(env.renderer.encode("so"), "far")) == "far"


# What cannot work is a ConfigError that says so.


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "has no chat template"),
        ("{{ messages[0].content }}", "drops an assistant message"),
        ("{{ messages[0].content[0].text.text }}", "cannot render"),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", "no"),
    ],
)
def test_unusable_templates_are_refused(template: str | None, words: str) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=words):
        ChatRenderer(tokenizer)


def test_system_prompt_that_the_template_refuses() -> None:
    case = Case("gemma", "<end_of_turn>", GEMMA, "<bos>")
    env = WorldEnv(system_prompt="Be brief.", tokenizer=tokenizer_of(case))
    with pytest.warns(RuntimeWarning, match="refuses a system message: its text stands before"):
        _, info = env.reset(seed=0)
    text = env.renderer.tokenizer.decode(info["token_ids"])
    assert text.startswith("<bos><start_of_turn>user\nBe brief.\n\n"), text
    assert WorldEnv(system_prompt="", tokenizer=tokenizer_of(case)).reset(seed=0)[1]["token_ids"]


def test_a_template_that_prints_any_role_knows_no_tools() -> None:
    prints = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = make_tiny_tokenizer(chat_template=prints)
    assert ChatRenderer(tokenizer).observation_role == "user"
    answers = [{"role": "tool", "content": text} for text in "AB"]
    text = tokenizer.decode(ChatRenderer(tokenizer).reply([], answers))
    assert text == "<|im_end|>\n<|im_start|>user\nA\nB<|im_end|>\n"


def test_template_arguments_reach_the_template() -> None:
    tokenizer = tokenizer_of(next(case for case in CASES if case.name == "qwen3"))
    silent = ChatRenderer(tokenizer, template_kwargs={"enable_thinking": False})
    messages = [{"role": "user", "content": "q"}]
    assert tokenizer.decode(silent.prompt(messages)).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.decode(silent.reply([], messages)).endswith("<think>\n\n</think>\n\n")
    assert not tokenizer.decode(ChatRenderer(tokenizer).prompt(messages)).endswith("</think>\n\n")


def test_renderer_is_probed_once_per_tokenizer_and_template() -> None:
    tokenizer = make_tiny_tokenizer()
    renderer = ChatRenderer.of(tokenizer)
    assert ChatRenderer.of(tokenizer) is renderer and ChatRenderer.of(renderer) is renderer
    # TRL swaps templates on a live tokenizer; what was probed for the old one must not stay.
    tokenizer.chat_template = tokenizer_of(CASES[6]).chat_template
    assert renderer.renders_tools and not ChatRenderer.of(tokenizer).renders_tools
