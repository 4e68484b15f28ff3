"""Turns that a script wrote, and words of a person, under real chat templates.

TRL's templates by default; those of a folder (AGENT_GYM_TEMPLATES) in the slow suite.
"""

from __future__ import annotations

from typing import Any

import pytest
from template_tools import read_templates, template_folder, tokenizer_of

from agent_gym import ConfigError, make
from agent_gym.chat import ChatRenderer
from agent_gym.formats.thoughts import opened_by, split_thought
from agent_gym.policies import SamplingParams, ScriptedPolicy
from agent_gym.policies.base import Request
from agent_gym.transcript import kind_of


def renderers(folder: Any = None) -> Any:
    for name, template in read_templates(folder).items():
        try:
            yield name, ChatRenderer(tokenizer_of(template))
        except ConfigError:  # a template that this project refuses
            continue


def begun(renderer: ChatRenderer) -> Any:
    """An environment at the beginning of a task; None under a template that it refuses."""
    try:
        env = make("AgentR1/Support-v0", tokenizer=renderer)
        env.reset(seed=3, options={"split": "test", "index": 3})
    except ConfigError:
        return None
    return env


def check_script(name: str, renderer: ChatRenderer) -> bool:
    """Check the expert's turns of one episode; return whether the template opens a thought."""
    if (env := begun(renderer)) is None:
        return False
    plain = env.unwrapped
    opened, over = 0, False
    while not over:
        before = renderer.tokenizer.decode(plain.transcript.token_ids)
        turn = plain.expert_action()
        *_, terminated, truncated, info = env.step(turn)
        over = terminated or truncated
        mine = next(one for one in reversed(plain.transcript.segments) if kind_of(one.source) == "agent")
        written = renderer.tokenizer.decode(mine.token_ids)
        if opened_by(before[-40:]) and before.rstrip().endswith(tuple(_OPENINGS)):
            opened += 1
            found = split_thought(written, before[-40:])
            assert found.missing is None and not found.thought, (name, before[-60:], written)
        else:
            assert list(mine.token_ids) == renderer.encode_action(turn), (name, written)
    assert info["is_success"], name
    return bool(opened)


# The marks that open a thought in the templates of the families that think.
_OPENINGS = (
    *("<think>", "<thinking>", "<thought>", "<reasoning>", "[THINK]", "<|START_THINKING|>", "<seed:think>"),
    *("<mm:think>", "<longcat_think>", "<think:opensource>", "<|think:start|>", "<|open|>think<|sep|>"),
    *("<|inner_prefix|>", "<|channel>thought", "Here are my reasoning steps:"),
)


def check_person(name: str, renderer: ChatRenderer) -> None:
    """The words of the customer are those of a user, whatever carries the results of tools."""
    if (env := begun(renderer)) is not None:
        *_, info = env.step("What may I do for you?")
        assert [one["role"] for one in info["messages"]] == ["assistant", "user"], name


def test_a_script_closes_the_thought_that_a_prompt_opens() -> None:
    opened = [name for name, renderer in renderers() if check_script(name, renderer)]
    assert any("qwen3_5" in name for name in opened) and len(opened) >= 3, opened


def test_a_person_speaks_as_a_user() -> None:
    for name, renderer in renderers():
        check_person(name, renderer)


@pytest.mark.slow
def test_scripts_and_persons_under_the_templates_of_a_folder() -> None:
    opened = 0
    for name, renderer in renderers(template_folder()):
        opened += check_script(name, renderer)
        check_person(name, renderer)
    assert opened > 50


def test_a_scripted_policy_closes_it_too_and_only_there() -> None:
    """Demonstrations of SFT and players of `eval` take this way. A turn inside a turn, and a thought, stay."""
    renderer = next(one for name, one in renderers() if "qwen3_5" in name and opened_by(one.prefill))
    prompt = renderer.prompt([{"role": "user", "content": "<think> is a word"}])

    def written(text: str, context: list[int]) -> str:
        policy = ScriptedPolicy(lambda episode: text, renderer.encode_action)
        policy.submit(Request(0, context, SamplingParams(max_tokens=100)))
        return str(renderer.tokenizer.decode(policy.poll()[0].token_ids))

    assert written("Yes.", prompt) == "\n</think>\n\nYes.<|im_end|>"
    assert written("So.\n</think>\n\nYes.", prompt) == "So.\n</think>\n\nYes.<|im_end|>"
    assert written("Yes.", [*prompt, *renderer.encode("So.\n</think>\n\n")]) == "Yes.<|im_end|>"
    assert written("Yes.", renderer.encode("<think> is a word")) == "Yes.<|im_end|>"
    plain = ScriptedPolicy(lambda episode: "Yes.", renderer.encode)  # any function from a text to ids
    plain.submit(Request(0, prompt, SamplingParams(max_tokens=100)))
    assert renderer.tokenizer.decode(plain.poll()[0].token_ids) == "Yes."
