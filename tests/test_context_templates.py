"""The context `template` with templates of thinking models: thoughts vanish from history and never from training."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rollout_tools import counting, roll
from rollout_tools import play as play_with
from toy_envs import SlowWriter

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer
from agent_gym.policies import Request
from agent_gym.rollout import Budget, Episode, make_context, replay, to_record

pytest.importorskip("transformers")
from tiny import make_tiny_tokenizer  # noqa: E402 - needs transformers

RESPONSE = (
    "{%- if message.role == 'tool' %}{%- set content = '<tool_response>' + content + '</tool_response>' %}{%- endif %}"
)


def template(*, tools: bool = False, strips: bool = True, prefill: str = "") -> str:
    """A chat template in the manner of Qwen3's, which `strips` thoughts of turns before the user's last one.

    Messages of `tools` are no user's turn, so that thoughts before them are kept.
    """
    stripped = "content.split('</think>')[-1].lstrip('\\n')" if strips else "content"
    return (
        "{%- set ns = namespace(last=-1) %}"
        "{%- for message in messages %}"
        "{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
        "{%- endfor %}"
        "{%- for message in messages %}"
        "{%- set content = message.content %}"
        "{%- if message.role == 'assistant' and loop.index0 < ns.last %}"
        "{%- set content = " + stripped + " %}"
        "{%- endif %}"
        + (RESPONSE if tools else "{%- if message.role != 'tool' %}")
        + "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
        + ("" if tools else "{%- endif %}")
        + "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n" + prefill + "' }}{%- endif %}"
    )


# What the model writes, turn by turn.
THOUGHTS = ["<think>\nOne.\n</think>\n\nfirst", "second", "<think>\nThree?\n</think>\n\nthird", "fourth", "fifth"]


def play(tokenizer: Any, texts: list[str], context: str = "template") -> tuple[Episode, list[Request]]:
    renderer = ChatRenderer.of(tokenizer)
    policy = SlowWriter(lambda episode: texts[len(episode.steps)], renderer.encode_action)
    specs = counting(1, "Toy/Wordy-v0", max_turns=len(texts))
    (episode,) = play_with(policy, tokenizer, specs, Budget(max_turn_tokens=60), context=context)
    assert replay(to_record(episode)) == []
    for step, request, text in zip(episode.steps, policy.seen, texts, strict=True):
        row = episode.rows[step.row]
        assert row.token_ids[: step.start] == request.prompt_ids
        assert row.token_ids[step.start : step.stop] == renderer.encode_action(text), "trained as it was sampled"
        assert all(row.action_mask[step.start : step.stop])
    assert sum(sum(row.action_mask) for row in episode.rows) == episode.sampled_tokens
    return episode, policy.seen


def without_thoughts(text: str) -> str:
    """A prompt as the template should write it, from one with everything in it."""
    head, opened, tail = text.rpartition("<|im_start|>assistant\n")
    return re.sub(r"<think>.*?</think>\n*", "", head, flags=re.DOTALL) + opened + tail


def test_thoughts_vanish_and_the_row_splits_where_they_do() -> None:
    tokenizer = make_tiny_tokenizer(chat_template=template())
    assert ChatRenderer.of(tokenizer).observation_role == "user"
    episode, seen = play(tokenizer, THOUGHTS)
    # A thought ends its row; a turn without one changes nothing, and its row goes on.
    assert [step.row for step in episode.steps] == [0, 1, 1, 2, 2]
    appended, _ = play(tokenizer, THOUGHTS, "append")
    for step, request in zip(appended.steps, seen, strict=True):
        everything = tokenizer.decode(appended.rows[0].token_ids[: step.start])
        assert tokenizer.decode(request.prompt_ids) == without_thoughts(everything)
    assert not any("<think>" in tokenizer.decode(request.prompt_ids) for request in seen)


def test_thoughts_that_the_template_keeps_cost_no_row() -> None:
    """Qwen3 keeps thoughts while tools are called: a tool's answer is no user's turn."""
    for source in (template(tools=True), template(strips=False)):
        tokenizer = make_tiny_tokenizer(chat_template=source)
        episode, seen = play(tokenizer, THOUGHTS)
        assert len(episode.rows) == 1 and "<think>\nOne." in tokenizer.decode(seen[-1].prompt_ids)
        assert episode.rows == play(tokenizer, THOUGHTS, "append")[0].rows


def test_a_thought_that_the_generation_prompt_begins() -> None:
    """The model goes on with a thought that it did not open; as a message, the turn has both."""
    texts = [f"Number {k}.\n</think>\n\nturn {k}" for k in range(4)]
    tokenizer = make_tiny_tokenizer(chat_template=template(prefill="<think>\\n"))
    assert ChatRenderer.of(tokenizer).prefill == "<think>\n"
    episode, seen = play(tokenizer, texts)
    assert [step.row for step in episode.steps] == [0, 1, 2, 3]
    for k, request in enumerate(seen):
        shown = tokenizer.decode(request.prompt_ids)
        assert shown.endswith("<|im_start|>assistant\n<think>\n") and shown.count("<think>") == 1
        assert "Number" not in shown and all(f"assistant\nturn {n}<|im_end|>" in shown for n in range(k))
    # Where history is kept as it is, the opened thought must not be missing from it.
    tokenizer = make_tiny_tokenizer(chat_template=template(prefill="<think>\\n", strips=False))
    episode, seen = play(tokenizer, texts)
    assert len(episode.rows) == 1 and tokenizer.decode(seen[-1].prompt_ids).count("<think>") == 4
    assert ChatRenderer.of(make_tiny_tokenizer()).prefill == ""


def test_turns_without_an_end_of_turn_go_on_in_their_row() -> None:
    """Cut off at the limit: the template closes the turn, the token is the world's, and the row goes on."""
    tokenizer = make_tiny_tokenizer()
    renderer = ChatRenderer.of(tokenizer)
    policy = SlowWriter(lambda episode: "long " * 20, renderer.encode_action)
    specs = counting(1, max_turns=4)
    (episode,) = play_with(policy, tokenizer, specs, Budget(max_turn_tokens=9), context="template")
    (row,) = episode.rows
    assert all(step.finish_reason == "length" for step in episode.steps)
    assert all(row.token_ids[step.stop] == renderer.end_of_turn for step in episode.steps)


def test_inline_answers_have_no_rendering(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="answers inside the policy's own turn; use append"):
        roll(tokenizer, counting(1, "Toy/Inline-v0"), context=make_context("template"))
