"""What is read off a chat template: the form of calls, what answers need, where a turn ends and a thought begins.

The templates here are small and have one trait each; tests/test_template_corpus.py runs the real ones.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest
from toy_envs import TwoToolEnv

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer
from agent_gym.images import parts
from agent_gym.tools import HermesParser

pytest.importorskip("transformers")
from tiny import CHATML, make_tiny_tokenizer  # noqa: E402 - needs transformers

EOT = "<|EOT|>"
TURN = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
HERMES = "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}"
ODD = "{{ '@@' + c.function.name + '@@' + (c.function.arguments | tojson) }}"


def with_calls(form: str, answer: str, *, first: str = "") -> str:
    """A template that writes calls in a form, and answers of tools."""
    return (
        first + TOOLS + "{% for m in messages %}{% if m['role'] == 'tool' %}" + answer + "{% elif m['tool_calls'] %}"
        "{{ '<|im_start|>assistant\n' }}{% for c in m['tool_calls'] %}" + form + "{% endfor %}{{ '<|im_end|>\n' }}"
        "{% else %}" + TURN + "{% endif %}{% endfor %}" + PROMPT
    )


def renderer_of(template: str, *special: str, eos: str | None = None) -> ChatRenderer:
    tokenizer = make_tiny_tokenizer(chat_template=template, special_tokens=special)
    if eos:
        tokenizer.eos_token = eos
    return ChatRenderer(tokenizer)


def decode(renderer: ChatRenderer, ids: Any) -> str:
    return str(renderer.tokenizer.decode(ids, skip_special_tokens=False))


# The end of a turn, behind white space.


@pytest.mark.parametrize("space", ["", " ", "\n", " \n\n"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_turn_has_one_end_whatever_white_space_the_template_writes_before_it(space: str, role: str) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] + '" + space + EOT + "\n' }}"
        "{% else %}{{ '### ' + m['role'] + '\n' + m['content'] + '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:' }}{% endif %}{# tool #}"
    )
    renderer = renderer_of(template, EOT, eos=EOT)
    assert renderer.end_of_turn == renderer.tokenizer.eos_token_id
    answer = [{"role": role, "name": "add", "content": "Obs"}]
    for final in (False, True):
        closed, cut = renderer.encode_action("Turn"), renderer.encode_action("Turn", closed=False)
        ended = decode(renderer, [*closed, *renderer.reply(closed, answer, final=final)])
        forced = decode(renderer, [*cut, *renderer.reply(cut, answer, final=final)])
        assert ended.startswith(f"Turn{EOT}\n### {role}\nObs") and ended.count(EOT) == 1
        assert forced == ended.replace(f"Turn{EOT}", f"Turn{space}{EOT}"), "the same words behind the end"


def test_white_space_before_a_header_ends_no_turn() -> None:
    template = "{% for m in messages %}{{ '\n<|im_start|>' + m['role'] + '\n' + m['content'] }}{% endfor %}"
    renderer = renderer_of(template + "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}")
    assert renderer.end_of_turn is None
    turn = renderer.encode_action("Turn")
    text = decode(renderer, [*turn, *renderer.reply(turn, [{"role": "user", "content": "Obs"}])])
    assert text == "Turn<|im_end|>\n<|im_start|>user\nObs\n<|im_start|>assistant\n"


# Openings.

DROPS = "{% for m in messages %}{% if m['role'] != 'system' %}" + TURN + "{% endif %}{% endfor %}" + PROMPT


def test_a_system_message_that_the_template_drops_stands_before_the_words_of_the_user() -> None:
    renderer = renderer_of(DROPS)
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Ask."}]
    with pytest.warns(RuntimeWarning, match="prints no system message"):
        text = decode(renderer, renderer.prompt(messages))
    assert text == "<|im_start|>user\nRules.\n\nAsk.<|im_end|>\n<|im_start|>assistant\n"
    assert text == decode(renderer, renderer.conversation(messages))
    said = [("user", "One?"), ("assistant", "1"), ("user", "?")]
    past = [{"role": role, "content": words} for role, words in said]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = decode(renderer, renderer.prompt([messages[0], *past]))
    assert text.startswith("<|im_start|>user\nRules.\n\nOne?<|im_end|>\n<|im_start|>assistant\n1<|im_end|>")
    env = TwoToolEnv(tokenizer=renderer)
    _, info = env.reset(seed=0)
    assert "Add two numbers." in decode(renderer, info["token_ids"])
    with pytest.raises(ConfigError, match="drops the system message"):
        renderer.prompt(messages[:1])


@pytest.mark.parametrize(
    ("template", "messages", "lost"),
    [
        ("{% for m in messages[-3:] %}" + TURN + "{% endfor %}", ["user", "assistant", "user", "user"], "user"),
        ("{{ tools[0].function.name if tools }}{% for m in messages %}" + TURN + "{% endfor %}", ["user"], "another"),
    ],
)
def test_an_opening_that_loses_anything_else_is_refused(template: str, messages: list[str], lost: str) -> None:
    renderer = renderer_of(template + PROMPT)
    talk = [{"role": role, "content": f"words {k}"} for k, role in enumerate(messages)]
    schemas = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("one", "another")]
    with pytest.raises(ConfigError, match=f"drops a part of the opening without an error: .*{lost}"):
        renderer.prompt(talk, schemas)


def test_contents_as_parts_for_templates_that_take_nothing_else() -> None:
    said = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'][0]['text'] + '<|im_end|>\n' }}"
    renderer = renderer_of("{% for m in messages %}" + said + "{% endfor %}" + PROMPT)
    asked = [{"role": "system", "content": "Rules."}, {"role": "user", "content": parts("Ask.")}]
    ids = renderer.prompt(asked)
    assert decode(renderer, ids) == (
        "<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nAsk.<|im_end|>\n<|im_start|>assistant\n"
    )
    turn = renderer.encode_action("Turn")
    assert decode(renderer, renderer.reply(turn, [{"role": "user", "content": "Obs"}])) == (
        "\n<|im_start|>user\nObs<|im_end|>\n<|im_start|>assistant\n"
    )


# The form of calls.


def play_call(renderer: ChatRenderer, **kwargs: Any) -> tuple[str, str]:
    """Ask for a call by the environment's own parser; return the prompt and what the environment answers."""
    env = gymnasium.make("AgentR1/GSM8K-v0", tokenizer=renderer, **kwargs)
    _, info = env.reset(seed=0)
    call = env.unwrapped.parser.render("calculator", {"expression": "48/2"})  # type: ignore[attr-defined]
    observation, *_ = env.step(call)
    return decode(renderer, info["token_ids"]), observation


def test_a_template_that_writes_hermes_describes_the_tools() -> None:
    renderer = renderer_of(with_calls(HERMES, TURN))
    assert isinstance(renderer.call_format.parser, HermesParser) and renderer.call_format.in_template
    assert "hermes, which the chat template writes" in renderer.call_format.told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt, observation = play_call(renderer)
    assert observation == "24" and prompt.count('"calculator"') == 1 and "<tool_call>" not in prompt


def test_a_form_that_no_parser_reads_is_not_asked_for() -> None:
    renderer = renderer_of(with_calls(ODD, TURN))
    assert renderer.renders_tools and not renderer.call_format.in_template
    with pytest.warns(RuntimeWarning, match="no known form of calls"):
        prompt, observation = play_call(renderer)
    assert observation == "24" and "<tool_call>" in prompt, "told of the form that is read"
    assert '"type": "function"' not in prompt, "and of no other"


def test_a_parser_that_was_named_stays_and_is_described_where_the_template_has_another() -> None:
    renderer = renderer_of(with_calls(ODD, TURN))
    prompt, observation = play_call(renderer, parser=HermesParser())
    assert observation == "24" and "<tool_call>" in prompt


def test_the_environment_follows_a_renderer_that_it_gets_later() -> None:
    env = TwoToolEnv()
    assert env.parser.render("add", {}) == HermesParser().render("add", {})
    env.renderer = renderer_of(with_calls(ODD, TURN))
    assert env.parser.family == env.renderer.call_format.parser.family and env.template_tools == []
    assert "add" in env.parser.tools, "it knows the types of arguments"
    env.renderer = renderer_of(with_calls(HERMES, TURN))
    assert env.template_tools == env.tool_schemas


# What answers of tools need.

ANSWERS = {
    "name": "{% if not m['name'] %}{{ raise_exception('no name') }}{% endif %}{{ '[' + m['name'] + ']' }}",
    "id": "{{ '## Return of ' + (m['tool_call_id'] or '') + '\n' }}",
    "tools": "{{ 'functions ' + (tools or []) | map(attribute='function.name') | join(' ') }}",
    "calls": "{% if not messages[loop.index0 - 1]['tool_calls'] and messages[loop.index0 - 1]['role'] != 'tool' %}"
    "{{ raise_exception('answer without a call') }}{% endif %}",
}


@pytest.mark.parametrize("need", ANSWERS)
@pytest.mark.parametrize("count", [1, 2])
def test_answers_are_written_as_behind_real_calls(need: str, count: int) -> None:
    renderer = renderer_of(with_calls(HERMES, ANSWERS[need] + TURN))
    tools = [one.schema for one in TwoToolEnv().tools.values()]
    calls = [
        {"id": f"call0000{k}", "type": "function", "function": {"name": "add", "arguments": {"a": k}}}
        for k in range(count)
    ]
    answers = [
        {"role": "tool", "name": "add", "tool_call_id": f"call0000{k}", "content": f"Obs {k}"} for k in range(count)
    ]
    talk = [{"role": "user", "content": "Ask."}, {"role": "assistant", "content": "", "tool_calls": calls}]
    whole = renderer.tokenizer.apply_chat_template(
        [*talk, *answers], tools=tools, tokenize=False, add_generation_prompt=True
    )
    written = renderer.call_format.parser.render_calls(HermesParser().parse(whole))
    turn = renderer.encode_action(written)
    text = decode(renderer, [*renderer.prompt(talk[:1], tools), *turn, *renderer.reply(turn, answers, tools=tools)])
    assert HermesParser().parse(text) == HermesParser().parse(whole)
    assert text.rpartition("</tool_call>")[2] == whole.rpartition("</tool_call>")[2]
    said = renderer.conversation([*talk[:1], {"role": "assistant", "content": "", "token_ids": turn}, *answers], tools)
    assert decode(renderer, said) == text


def test_a_turn_that_calls_nothing_is_answered_by_the_user_where_tools_answer_calls_only() -> None:
    renderer = renderer_of(with_calls(HERMES, ANSWERS["calls"] + TURN))
    assert (renderer.observation_role, renderer.call_format.answer_role) == ("user", "tool")
    turn = renderer.encode_action("Turn")
    for role in ("user", renderer.observation_role):
        assert "<|im_start|>user\nObs" in decode(renderer, renderer.reply(turn, [{"role": role, "content": "Obs"}]))


def test_an_answer_that_quotes_the_marks_of_the_machinery() -> None:
    renderer = renderer_of(with_calls(HERMES, ANSWERS["calls"] + TURN))
    said = 'QxSentinelxQ"}}\n</tool_call><|im_end|>'
    text = decode(renderer, renderer.reply([], [{"role": "tool", "name": "add", "content": said}]))
    assert text == f"<|im_end|>\n<|im_start|>tool\n{said}<|im_end|>\n<|im_start|>assistant\n"


# Thoughts that the generation prompt begins.

OPENS = (
    "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if messages[-1]['role'] == 'user' and '/no_think' not in messages[0]['content'] %}{{ '<think>\n' }}{% endif %}"
    "{% endif %}{# tool #}"
)


@pytest.mark.parametrize("switch", ["", " /no_think"])
def test_a_thought_is_begun_only_where_the_generation_prompt_began_it(switch: str) -> None:
    renderer = renderer_of(OPENS)
    assert renderer.observation_role == "tool"
    asked = {"role": "user", "content": "?"}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Rules." + switch}, asked]
    context = renderer.prompt(messages)
    answers = [[{"role": "tool", "content": "Obs"}], [{"role": "user", "content": "And?"}]]
    for number, answer in enumerate([*answers, answers[0]]):
        turn = renderer.encode_action(f"Turn {number}")
        context = [*context, *turn, *renderer.reply(turn, answer)]
        messages += [{"role": "assistant", "content": f"Turn {number}", "token_ids": turn}, *answer]
    whole = renderer.conversation(messages)
    if switch:  # a delta knows no system message
        assert "<think>" not in decode(renderer, whole)
    else:
        assert whole == context and decode(renderer, whole).count("<think>") == 2


def test_no_generation_prompt_stood_before_the_words_of_others() -> None:
    renderer = renderer_of(OPENS)
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "1", "foreign": True}]
    text = decode(renderer, renderer.conversation([*talk, {"role": "user", "content": "And?"}]))
    assert text.count("<think>") == 1 and text.endswith("<think>\n")


def test_the_ids_of_what_was_known_before_are_as_they_were() -> None:
    """Openings and turns of ChatML, to the token, against the template itself."""
    tokenizer = make_tiny_tokenizer(chat_template=CHATML)
    renderer, tools = ChatRenderer(tokenizer), [one.schema for one in TwoToolEnv().tools.values()]
    assert renderer.call_format.in_template and not renderer.call_format.structured
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Ask."}]
    whole = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert renderer.prompt(messages, tools) == tokenizer(whole, add_special_tokens=False)["input_ids"]
