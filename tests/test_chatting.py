"""A chat: what the policy sees of it, token for token, and what the person does."""

from __future__ import annotations

from typing import Any

import pytest
from serve_tools import CALL, scripted
from tiny import CHATML, make_tiny_tokenizer

from agent_gym.chat import ChatRenderer
from agent_gym.errors import RolloutError
from agent_gym.serve.conversation import ChatLimits
from agent_gym.transcript import Span, check_tiling


class Chat:
    """A conversation with a script; `events` is what happened since the last message."""

    def __init__(self, tokenizer: Any, turns: Any, *settings: Any, **env_kwargs: Any) -> None:
        self.tokenizer, self.conversation = tokenizer, scripted(turns, *settings, tokenizer=tokenizer, **env_kwargs)
        self.events: list[dict[str, Any]] = []
        self.stop_at = -1  # pieces of text, after which the person stops the policy

    def say(self, text: str) -> str:
        self.events = []

        def hear(event: dict[str, Any]) -> None:
            self.events.append(event)
            if sum(one["kind"] == "text" for one in self.events) == self.stop_at:
                self.conversation.stop()

        self.conversation.say(text, hear)
        return self.events[-1]["reason"]

    def results(self) -> list[str]:
        return [r["text"] for event in self.events if event["kind"] == "results" for r in event["results"]]

    def written(self) -> str:
        return "".join(event["text"] for event in self.events if event["kind"] == "text")

    def record(self) -> dict[str, Any]:
        record = self.conversation.record()
        for row in record["rows"]:
            check_tiling([Span(*span) for span in row["spans"]], len(row["token_ids"]))
        return record

    def context(self) -> str:
        (row,) = self.record()["rows"]
        return self.tokenizer.decode(row["token_ids"])


def test_several_messages_make_the_context_that_the_template_makes(tokenizer: Any) -> None:
    chat = Chat(tokenizer, [CALL, "It is 24.", "You are welcome."])
    assert chat.say("What is 48/2?") == "answer"
    kinds = [event["kind"] for event in chat.events if event["kind"] != "text"]
    assert kinds == ["person", "turn", "results", "turn", "end"]
    assert chat.results() == ["24"] and chat.written() == CALL + "It is 24."
    assert chat.say("Thank you!") == "answer"
    record = chat.record()
    messages = record["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "What is 48/2?", "the task's own question is nowhere"
    assert record["steps"][1]["observation"] == "Thank you!"
    # The last turn ends with the end of turn that the policy sampled; the template breaks the line behind it.
    assert chat.context() + "\n" == tokenizer.apply_chat_template(messages, tools=record["tools"], tokenize=False)
    sources = [span[2] for span in record["rows"][0]["spans"]]
    assert sources == ["user", "agent", "env", "agent", "user", "agent"]
    mask = [i for a, b, s, _ in record["rows"][0]["spans"] if s == "agent" for i in record["rows"][0]["token_ids"][a:b]]
    encode = ChatRenderer.of(tokenizer).encode_action
    assert mask == encode(CALL) + encode("It is 24.") + encode("You are welcome.")


def test_templates_without_a_tool_role_work_too() -> None:
    without = CHATML.replace("message.role == 'tool'", "false").replace(
        "{%- elif message.role != 'system' or not loop.first %}",
        "{%- elif message.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{%- elif message.role != 'system' or not loop.first %}",
    )
    tokenizer = make_tiny_tokenizer(chat_template=without)
    chat = Chat(tokenizer, [CALL, "24", "yes"], limits=ChatLimits(turns=1))
    assert ChatRenderer.of(tokenizer).observation_role == "user"
    assert chat.say("What is 48/2?") == "turns"
    assert chat.say("And now?") == "answer"
    # The tool's answer and the person's words share one message, since turns have to alternate.
    assert "<|im_start|>user\n24\nAnd now?<|im_end|>\n<|im_start|>assistant\n24<|im_end|>" in chat.context()


def test_a_policy_that_only_calls_is_interrupted_and_may_go_on(tokenizer: Any) -> None:
    chat = Chat(tokenizer, lambda: CALL, limits=ChatLimits(turns=2))
    assert chat.say("Compute.") == "turns" and chat.results() == ["24", "24"]
    assert chat.say("Go on.") == "turns"
    # The generation prompt behind the last result gave way to the person's words.
    assert (
        "</tool_response><|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n<tool" in chat.context()
    )


def test_stopping_keeps_what_was_shown_and_the_conversation(tokenizer: Any) -> None:
    chat = Chat(tokenizer, ["one two three four", "five"])
    chat.stop_at = 3
    assert chat.say("Count.") == "stopped" and chat.conversation._policy.pending == 0
    spoken = chat.written()
    assert "one two three four".startswith(spoken) and 0 < len(spoken) < 18
    chat.stop_at = -1
    assert chat.say("And?") == "answer"
    # Its turn was cut off, so that the world closes it.
    closed = f"assistant\n{spoken}<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\nfive"
    assert closed in chat.context()


def test_words_that_were_not_answered_leave_no_trace(tokenizer: Any) -> None:
    chat = Chat(tokenizer, ["24", "26"])
    for _ in range(2):  # before the first turn, and later
        before = chat.conversation.about()["opening"]
        chat.stop_at = 0
        assert chat.say("never mind") == "stopped" and chat.conversation.about()["opening"] == before
        chat.stop_at = -1
        assert chat.say("What is it?") == "answer"
    assert "never mind" not in chat.context() and len(chat.record()["messages"]) == 5


def test_an_engine_that_fails_ends_the_turn_alone(tokenizer: Any) -> None:
    def fail() -> str:
        raise RolloutError("400: the context is too long")

    chat = Chat(tokenizer, ["24", fail, "26"])
    assert chat.say("What is it?") == "answer"
    assert chat.say("never mind") == "failed"
    assert chat.events[-1]["text"] == "the engine failed: 400: the context is too long"
    assert chat.say("bad \ud800") == "answer"  # half of a surrogate pair, as JSON may hold
    assert "never mind" not in chat.context() and "bad ?" in chat.context()


def test_tools_see_no_reward_and_mistakes_are_answered(tokenizer: Any) -> None:
    broken = '<tool_call>{"name": "calculator"</tool_call>'
    unknown = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    chat = Chat(tokenizer, [broken + unknown, CALL * 2, "done"])
    chat.say("Try.")
    turns = [event for event in chat.events if event["kind"] == "turn"]
    assert turns[0]["calls"][0]["error"] and turns[0]["calls"][1]["name"] == "search"
    results = [event["results"] for event in chat.events if event["kind"] == "results"]
    assert [result["error"] for result in results[0]] == [True, True]
    assert [result["text"] for result in results[1]] == ["24", "24"]
    assert chat.record()["reward"] == 0.0 and chat.record()["source"] == "chat"


def test_a_full_context_is_an_end_and_a_reset_empties_it(tokenizer: Any) -> None:
    chat = Chat(tokenizer, lambda: "a" * 30, limits=ChatLimits(turn_tokens=500, tokens=420))
    while (reason := chat.say("More.")) in ("answer", "length"):
        assert chat.events[-1]["tokens"] <= 420
    assert reason == "full" and chat.events[-1]["sampled"] == 0
    chat.conversation.reset()
    assert chat.say("More.") == "answer" and len(chat.record()["steps"]) == 1


def test_programs_run_inside_the_turn_and_the_person_speaks_outside_of_it(tokenizer: Any) -> None:
    pytest.importorskip("math_verify")
    program = "Let me see. <code>print(6*7)</code>"
    chat = Chat(tokenizer, [program, "So it is 42.", program, "Yes."], "AgentR1/ReTool-v0", ChatLimits(turns=2))
    assert chat.say("6*7?") == "answer"
    assert "</code>\n<interpreter>\n42</interpreter>\n\nSo it is 42.<|im_end|>\n" in chat.context() + "\n"
    chat.conversation._limits = ChatLimits(turns=1)
    assert chat.say("Sure?") == "turns"
    assert chat.say("Well?") == "answer"
    assert (
        "</interpreter>\n\n<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\nYes." in chat.context()
    )


def test_a_world_with_a_state_is_shown_and_can_end(tokenizer: Any) -> None:
    chat = Chat(tokenizer, lambda: act(), "AgentR1/ALFWorld-v0", ChatLimits(turns=60), receptacles=4)
    act = chat.conversation._tools.expert_action
    about = chat.conversation.about()
    assert about["has_state"] and "Your task is to" in about["opening"]
    assert chat.say("Please do the task.") == "over"
    first = chat.record()["messages"][1]["content"]
    assert first == about["opening"] + "\n\nPlease do the task."
    assert chat.say("Again!") == "over" and chat.events[-1]["sampled"] == 0
    chat.conversation.reset()
    assert chat.say("Once more.") == "over" and chat.events[-1]["sampled"] > 0


@pytest.mark.parametrize("text", ["plain words", "思考 🙂 naïve", "a\ufffdb", "tail 🙂"])
def test_a_stream_shows_whole_characters_and_all_of_them(tokenizer: Any, text: str) -> None:
    chat = Chat(tokenizer, [text])
    chat.say("Speak.")
    assert chat.written() == text and sum(event["kind"] == "text" for event in chat.events) > 1
    pieces = [event["text"] for event in chat.events if event["kind"] == "text"]
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_person_writes_the_world_of_an_environment_without_tools_or_lets_it_speak(tokenizer: Any) -> None:
    """Bisect: what the policy reads is what it reads in training, whoever wrote it."""
    chat = Chat(tokenizer, ["3", "2", "1"], "AgentR1/Bisect-v0", system_prompt="")
    about = chat.conversation.about()
    assert about["answers"] and not about["tools"] and not about["has_state"]
    assert chat.say("") == "answer"
    assert [event["kind"] for event in chat.events if event["kind"] != "text"] == ["world", "turn", "end"]
    assert chat.events[0]["text"] == about["opening"]
    assert chat.say(" ") == "answer", "the environment answers the test of commit 3"
    world = chat.events[0]["text"]
    assert chat.say("9 left") == "answer", "and then the person does"
    assert chat.events[0] == {"kind": "person", "text": "9 left"}
    messages = chat.record()["messages"]
    assert [message["content"] for message in messages] == [about["opening"], "3", world, "2", "9 left", "1"]
    assert chat.context() == tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")
    (row,) = chat.record()["rows"]
    sources = [source for _, _, source, _ in row["spans"]]
    assert sources == ["user", "agent", "env", "agent", "user", "agent"]


def test_an_episode_that_the_world_ends_is_over(tokenizer: Any) -> None:
    chat = Chat(tokenizer, ["1"] * 20, "AgentR1/Bisect-v0", system_prompt="")
    reasons = [chat.say("") for _ in range(12)]
    assert reasons[0] == "answer" and reasons[-1] == "over"
    first = reasons.index("over")
    chat.conversation.reset()
    for _ in range(first + 1):
        chat.say("")
    assert chat.events[-1]["text"] == "the episode is over, out of turns: not solved"
    assert chat.say("more") == "over"
