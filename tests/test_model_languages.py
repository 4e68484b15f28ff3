"""Models that speak a form of calls of their own play, are demonstrated to, and are served, each in its form."""

from __future__ import annotations

import functools
import json
import re
import warnings
from typing import Any

import gymnasium
import pytest
from gateway_tools import run

from agent_gym import Sampled, action_mask
from agent_gym.chat import ChatRenderer
from agent_gym.tools import ToolCall

pytest.importorskip("trl")
openai = pytest.importorskip("openai")
from template_tools import TOOL, decode, read_templates, tokenizer_of  # noqa: E402 - needs transformers

FORMS = {
    "llama3_1": '{"name": "calculator", "parameters": {"expression": "',
    "qwen3_5_nothink": "<tool_call>\n<function=calculator>\n<parameter=expression>\n",
    "gptoss": ' to=functions.calculator<|channel|>commentary json<|message|>{"expression": "',
    "qwen2_5": '<tool_call>\n{"name": "calculator", "arguments": {"expression": "',
    "deepseekv3": "<｜tool▁sep｜>calculator\n```json\n{",
    "glm4moe": "<tool_call>calculator\n<arg_key>expression</arg_key>\n<arg_value>",
    "lfm2": "<|tool_call_start|>[calculator(expression=",
    "gemma4": "<|tool_call>call:calculator{expression:",
}


@functools.cache
def templates() -> dict[str, str]:
    return {name.partition("#")[0]: text for name, text in read_templates().items()}


def renderer_of(name: str) -> ChatRenderer:
    more = ("<|tool_call_start|>", "<|tool_call_end|>") if name == "lfm2" else ()
    return ChatRenderer.of(tokenizer_of(templates()[name], more))


@pytest.mark.filterwarnings("ignore:calls of tools")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("env_id", ["AgentR1/GSM8K-v0", "AgentR1/Support-v0"])
def test_an_expert_plays_in_the_form_of_the_model(name: str, env_id: str) -> None:
    renderer = renderer_of(name)
    env: Any = gymnasium.make(env_id, tokenizer=renderer)
    called = 0
    for seed in range(2):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            ids = renderer.encode_action(env.unwrapped.expert_action())
            _, _, terminated, truncated, info = env.step(Sampled(renderer.decode_action(ids), ids))
            over = terminated or truncated
            called += len(info["tool_calls"])
            assert info["error"] is None
        assert info["is_success"]
        transcript = env.unwrapped.transcript
        assert action_mask(transcript.token_spans, transcript.n_tokens) == transcript.action_mask
    assert called >= 2
    if "GSM8K" in env_id:
        assert FORMS[name] in decode(renderer, env.unwrapped.transcript.token_ids)


@pytest.mark.filterwarnings("ignore:calls of tools")
@pytest.mark.parametrize("name", ["llama3_1", "qwen3_5_nothink", "gptoss", "gemma4"])
def test_a_call_of_a_model_reaches_the_client_as_a_call(name: str) -> None:
    renderer = renderer_of(name)
    turn = renderer.call_format.parser.render_calls([ToolCall("add", {"text": "one two", "n": 3})])
    answers: list[Any] = []

    def agent(client: Any, task: Any) -> list[Any]:
        talk: list[Any] = [{"role": "user", "content": "Add."}]
        first = client.chat.completions.create(model="m", messages=talk, tools=[TOOL]).choices[0]
        talk += [first.message.model_dump(exclude_none=True)]
        talk += [{"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "Obs"}]
        second = client.chat.completions.create(model="m", messages=talk, tools=[TOOL]).choices[0]
        answers.extend([first, second])
        return [first, second]

    episode, (first, second) = run(agent, renderer, [turn, "Done."])
    assert episode.failure is None, episode.failure
    call = first.message.tool_calls[0].function
    assert (first.finish_reason, call.name, json.loads(call.arguments)) == (
        "tool_calls",
        "add",
        {"text": "one two", "n": 3},
    )
    assert second.message.content == "Done." and second.finish_reason == "stop"
    (row,) = episode.rows
    shown = decode(renderer, row.token_ids)
    # The turn as it was sampled, and the answer as behind that call.
    ids = renderer.encode_action(turn)
    answer = [{"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "Obs"}]
    assert decode(renderer, [*ids, *renderer.reply(ids, answer, tools=[TOOL])]) in shown


@pytest.mark.filterwarnings("ignore:calls of tools")
@pytest.mark.parametrize("name", ["llama3_1", "gptoss", "deepseekv3", "gemma4"])
def test_the_conversation_rendered_at_once_has_the_turns_that_were_sampled(name: str) -> None:
    renderer = renderer_of(name)
    messages: list[Any] = [{"role": "user", "content": "Ask."}]
    tools = [TOOL] if renderer.call_format.in_template else []
    context = renderer.prompt(messages, tools)
    for number in range(2):
        call = ToolCall("add", {"text": "a", "n": number})
        turn = renderer.encode_action(renderer.call_format.parser.render_calls([call]))
        answer = [{"role": "tool", "name": "add", "tool_call_id": f"call0000{number}", "content": f"Obs {number}"}]
        context = [*context, *turn, *renderer.reply(turn, answer, tools=tools, past=messages[1:])]
        messages += [{"role": "assistant", "content": "", "token_ids": turn}, *answer]
    shown = decode(renderer, renderer.conversation(messages, tools))
    if name == "deepseekv3":  # it closes the block of answers where the conversation ends, and not where a turn does
        shown = shown.replace("<｜tool▁output▁end｜>\n", "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>")
    assert shown == decode(renderer, context)


def test_channels_are_no_part_of_an_answer() -> None:
    renderer = renderer_of("gptoss")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env: Any = gymnasium.make("AgentR1/GSM8K-v0", tokenizer=renderer)
        env.reset(seed=0)
        task = env.unwrapped.gold(env.unwrapped.tasks["train"][0])
        _, info = env.reset(options={"index": 0, "split": "train"})
    said = "<|channel|>analysis<|message|>Is it <answer>1</answer>?<|end|><|start|>assistant<|channel|>final<|message|>"
    _, reward, terminated, _, info = env.step(f"{said}<answer>{task}</answer><|return|>")
    assert terminated and info["is_success"] and reward >= 1, info


@pytest.mark.filterwarnings("ignore:calls of tools")
@pytest.mark.parametrize("name", ["llama3_1", "gptoss", "deepseekv3", "gemma4", "qwen2_5"])
def test_the_world_answers_words_in_words(name: str) -> None:
    """The words of a customer are those of a user, whatever role carries the world's answers otherwise."""
    renderer = renderer_of(name)
    env: Any = gymnasium.make("AgentR1/Support-v0", tokenizer=renderer)
    env.reset(seed=0)
    turn = renderer.encode_action("May I have your name and zip code?")
    _, _, _, _, info = env.step(Sampled(renderer.decode_action(turn), turn))
    (answer,) = info["messages"][1:]
    otherwise = "tool" if name in ("qwen2_5", "llama3_1") else "user"
    assert (answer["role"], renderer.observation_role) == ("user", otherwise)
    assert "tool" not in decode(renderer, info["token_ids"][len(turn) :])


def test_the_ids_of_calls_count_over_an_episode_and_answers_repeat_them() -> None:
    mistral = """{%- for m in messages %}{%- if m['role'] == 'user' %}[INST]{{ m['content'] }}[/INST]
        {%- elif m['role'] == 'tool' %}[TOOL_RESULTS]{{ m['content'] }} of {{ m['tool_call_id'] }}[/TOOL_RESULTS]
        {%- elif m['tool_calls'] is defined %}[TOOL_CALLS][{%- for call in m['tool_calls'] %}
        {%- set f = call['function'] %}
        {{- '{"name": "' ~ f['name'] ~ '", "arguments": ' ~ (f['arguments'] | tojson) }}
        {{- ', "id": "' ~ call['id'] ~ '"}' ~ (', ' if not loop.last else '') }}{%- endfor %}]</s>
        {%- else %}{{ m['content'] }}</s>{%- endif %}{%- endfor %}{%- if tools %}{{ tools | tojson }}{% endif %}"""
    renderer = ChatRenderer(tokenizer_of(mistral))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env: Any = gymnasium.make("AgentR1/Support-v0", tokenizer=renderer)
        env.reset(seed=0, options={"split": "train", "index": 3})
    over, words = False, ""
    while not over:
        ids = renderer.encode_action(env.unwrapped.expert_action())
        _, _, terminated, truncated, info = env.step(Sampled(renderer.decode_action(ids), ids))
        over, words = terminated or truncated, words + decode(renderer, info["token_ids"])
    written, answered = re.findall(r'"id": "call(\d+)"', words), re.findall(r"of call(\d+)\[/TOOL", words)
    assert written == answered == [f"{number:05d}" for number in range(len(written))] and len(written) > 2, words
