"""`TextEnv` itself: budgets, rewards, options, what each call reports, and errors by whose fault they are."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import CountingEnv, WorldEnv

from agent_gym import ConfigError, Reply, Sampled, Span, TextEnv, Transcript, action_mask
from agent_gym.chat import MAX_OBSERVATION_CHARS, ChatRenderer
from agent_gym.images import parts
from agent_gym.transcript import Segment, check_tiling


def world(*replies: Reply, **kwargs: Any) -> tuple[WorldEnv, dict[str, Any]]:
    env = WorldEnv(system_prompt="", **kwargs)
    _, info = env.reset(options={"task": {"question": "q", "replies": list(replies)}})
    return env, info


def test_reset_reports_the_opening() -> None:
    env = CountingEnv()
    for value in env.reset(seed=1, options={"index": 7})[1].values():
        if isinstance(value, list):
            value.clear()  # what was returned may be changed
    observation, info = env.reset(seed=1, options={"index": 7})
    system, question = info["messages"]
    assert system == {"role": "system", "content": "Count to three, then stop."}
    assert question["role"] == "user" and question["content"].startswith("Task 7: ")
    assert observation == f"{system['content']}\n\n{question['content']}"
    assert info["task_id"] == "train/7" and info["tools"] == [] and info["stop"] == []
    n = len(system["content"])
    assert info["spans"] == [Span(0, n, "system", -1), Span(n, n + len(question["content"]), "user", -1)]
    assert "token_ids" not in info and "token_spans" not in info
    assert CountingEnv(system_prompt="Other.").reset(seed=0)[1]["messages"][0]["content"] == "Other."
    assert [m["role"] for m in CountingEnv(system_prompt="").reset(seed=0)[1]["messages"]] == ["user"]


def test_step_reports_what_this_call_appended() -> None:
    env = CountingEnv()
    env.reset(seed=1)
    start = env.transcript.n_chars
    for turn in range(2):
        observation, reward, terminated, truncated, info = env.step("né")
        assert observation.startswith(f"{turn + 1} ") and observation.endswith(" né")
        assert [(m["role"], m["content"]) for m in info["messages"]] == [("assistant", "né"), ("user", observation)]
        stop = start + 2 + len(observation)
        assert info["spans"] == [Span(start, start + 2, "agent", turn), Span(start + 2, stop, "env", turn)]
        assert info["reward_terms"] == {"turn": 0.25, "unpaid": 0.0} and reward == 0.25
        assert info["metrics"] == {"turns": turn + 1.0}
        assert not terminated and not truncated and "is_success" not in info
        start = stop


def test_terminated_and_truncated_are_different_things() -> None:
    env = CountingEnv(max_turns=2, render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("a")
    env.reset(seed=0)
    assert env.step("a")[2:4] == (False, False)
    *_, terminated, truncated, info = env.step("b")
    assert (terminated, truncated, info["is_success"]) == (False, True, False)
    env.reset(seed=0)
    env.step("a")
    *_, terminated, truncated, info = env.step("stop")  # the task ends in the last turn: that is no truncation
    assert (terminated, truncated, info["is_success"]) == (True, False, False)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("c")
    heads = [block.split("\n")[0] for block in str(env.render()).split("\n\n")]
    assert heads == ["[system]", "[user]", "[agent]", "[env]", "[agent]"]


def test_process_terms_are_the_part_of_the_reward_on_the_way() -> None:
    class Judged(CountingEnv):
        process_terms = frozenset({"turn", "unpaid"})

    env = Judged(reward_weights={"unpaid": 2.0})
    env.reset(seed=0)
    _, reward, *_, info = env.step("a")
    assert reward == info["process_reward"] == 2.25 and info["reward_terms"] == {"turn": 0.25, "unpaid": 2.0}
    for _ in range(2):
        env.step("a")
    _, reward, *_, info = env.step("stop")
    assert (reward, info["process_reward"]) == (1.0, 0.0)
    assert CountingEnv.reward_weights == {"turn": 0.25, "end": 1.0, "unpaid": 0.0}
    with pytest.raises(ConfigError, match="charm.*known: turn, end, unpaid"):
        CountingEnv(reward_weights={"charm": 1.0})
    Judged.process_terms = frozenset({"trun"})
    with pytest.raises(ConfigError, match=r"Judged names \['trun'\].*known: turn, end, unpaid"):
        Judged()


def test_options_split_index_task() -> None:
    env = CountingEnv(n_tasks=5, split="test")
    assert env.reset(seed=0)[1]["task_id"].startswith("test/")
    assert env.reset(seed=0, options={"split": "train", "index": 4})[1]["task_id"] == "train/4"
    observation, info = env.reset(seed=0, options={"task": "X"})
    assert "Task X" in observation and info["task_id"] == "given"
    for options, match in (
        ({"index": 5}, "index 5 .* 5 tasks"),
        ({"split": "dev"}, "'dev'.*train, test"),
        ({"color": 1}, "color.*split, index, task"),
        ({"index": "2"}, "'2'.*integer"),
        ({"index": -1}, "-1"),
        ({"index": True}, "True.*integer"),
        ({"task": "X", "index": 3}, "a task and also index; give either"),
    ):
        with pytest.raises(ConfigError, match=match):
            env.reset(options=options)
    with pytest.raises(ConfigError, match="'dev'"):
        CountingEnv(split="dev")


def test_long_texts_are_cut_and_say_so(tokenizer: Any) -> None:
    long = "é" * (MAX_OBSERVATION_CHARS + 5)
    env = WorldEnv(system_prompt="s" * 100)
    observation, _ = env.reset(options={"task": {"question": long, "replies": [Reply(long), Reply("a" * 10)]}})
    assert observation in env.observation_space and observation.endswith("[cut: too long]")
    observation = env.step("x")[0]
    assert len(observation) == MAX_OBSERVATION_CHARS and observation.endswith("[cut: too long]")
    assert env.step("x")[0] == "a" * 10
    several = Reply(messages=[{"role": "tool", "content": text} for text in (long, "short", long)])
    env, _ = world(several)
    observation, *_, info = env.step("x")
    assert observation in env.observation_space and "\nshort\n" in observation
    assert observation == "\n".join(message["content"] for message in info["messages"][1:])
    exact = "b" * MAX_OBSERVATION_CHARS
    for kwargs in ({}, {"tokenizer": tokenizer}):
        env, _ = world(Reply(exact), Reply("a\ud800b"), **kwargs)
        assert env.step("x")[0] == exact
        observation, *_, info = env.step("c\udfffd")  # half of a pair, which no tokenizer and no file can encode
        assert observation == "a?b" and [message["content"] for message in info["messages"]] == ["c?d", "a?b"]


def test_what_a_subclass_has_to_define() -> None:
    with pytest.raises(ConfigError, match=r"TextEnv does not define respond\(action\)"):
        TextEnv({"train": [1]})

    class Bare(TextEnv):
        def respond(self, action: str) -> Reply:
            return Reply()

    bare = Bare({"train": [1]})
    with pytest.raises(ConfigError, match=r"Bare does not define begin\(task\)"):
        bare.reset(seed=0)
    with pytest.raises(ConfigError, match="Bare has no expert"):
        bare.expert_action()


class Shots(WorldEnv):
    """Begins with an example, whose answer is the assistant's, and a question of parts."""

    def initial_messages(self, task: Any) -> tuple[list[dict[str, Any]], str]:
        example = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
        return [*example, {"role": "user", "content": parts("2", "+2")}], self.begin({**task, "question": "2+2"})


def test_parts_without_an_image_are_a_text_and_a_situation_has_the_roles_of_the_opening(tokenizer: Any) -> None:
    env = Shots(tokenizer=tokenizer)
    _, info = env.reset(options={"task": {"replies": [Reply(parts("no", "!")), Reply()]}})
    opening = [("user", "1+1"), ("assistant", "2"), ("user", "2+2")]
    assert [(one["role"], one["content"]) for one in info["messages"]] == opening
    assert env.step("5")[-1]["messages"][1]["content"] == "no!"
    *before, (role, content) = [(one["role"], one["content"]) for one in env.state_prompt()]
    assert before == opening[:2] and role == "user"
    assert content == "2+2\n\nWhat happened so far:\n1. You: 5\n   Answer: no!"
    assert [one["content"] for one in info["messages"]][-1] == "2+2", "the opening itself stays"


# With a tokenizer.


def test_sampled_ids_are_kept_as_they_are(tokenizer: Any) -> None:
    """Through Gymnasium's wrappers, and whatever the text of the action says."""
    env = gymnasium.make("Toy/Counting-v0", tokenizer=tokenizer)
    _, info = env.reset(seed=0)
    assert tokenizer.decode(info["token_ids"]).endswith("<|im_start|>assistant\n")
    ids = [7, 300, 7, 511]
    info = env.step(Sampled("something else", ids, [-0.1, -0.2, -0.3, -0.4]))[-1]
    agent, env_span = info["token_spans"]
    assert info["token_ids"][:4] == ids and agent.stop - agent.start == 4
    assert type(info["messages"][0]["content"]) is str
    action = pickle.loads(pickle.dumps(Sampled("hé", [1, 2], [-0.5, -1.0])))
    assert (action, action.token_ids, action.logprobs) == ("hé", [1, 2], [-0.5, -1.0])
    assert env.unwrapped.transcript.segments[-2][:4] == ("agent", 0, "something else", tuple(ids))


def test_an_answer_without_words_still_has_the_ids_of_the_template(tokenizer: Any) -> None:
    env, _ = world(Reply(""), Reply(terminated=True), tokenizer=tokenizer)
    start = env.transcript.n_tokens
    info = env.step("a")[-1]
    agent, answer = info["token_spans"]
    assert (agent.start, answer.stop, answer.source) == (start, start + len(info["token_ids"]), "env")
    assert tokenizer.decode(info["token_ids"]).endswith("<|im_start|>assistant\n")
    info = env.step("b")[-1]  # the end, which nothing follows
    assert [span.source for span in info["token_spans"]] == ["agent"]


def test_tokenizer_is_not_copied_by_make(tokenizer: Any) -> None:
    """A renderer is shared even by Gymnasium's deep copies; a vocabulary takes seconds and megabytes to copy."""
    renderer = ChatRenderer.of(tokenizer)
    env = gymnasium.make("Toy/Counting-v0", tokenizer=renderer)
    assert env.unwrapped.renderer is renderer
    assert copy.deepcopy(renderer) is renderer
    assert env.spec is not None and env.spec.kwargs["tokenizer"] is renderer


# Segments, spans and the mask.

words = st.text(max_size=6)
ids = st.lists(st.integers(0, 99), max_size=6).map(tuple)
Turn = tuple[str, str, tuple[int, ...], tuple[int, ...]]


@given(st.tuples(words, words, ids), st.lists(st.tuples(words, words, ids, ids), max_size=6))
def test_spans_tile_and_the_mask_marks_exactly_the_agent(
    opening: tuple[str, str, tuple[int, ...]], turns: list[Turn]
) -> None:
    system, user, prompt_ids = opening
    parts = [Segment("system", -1, system)] if system else []
    parts.append(Segment("user", -1, user, prompt_ids))
    for step, (action, answer, action_ids, answer_ids) in enumerate(turns):
        parts += Segment("agent", step, action, action_ids), Segment("env", step, answer, answer_ids)
    transcript = Transcript()
    reported = [transcript.append(*part[:4]) for part in parts]

    assert [part[:4] for part in transcript.segments] == [part[:4] for part in parts]
    assert transcript.text == "".join(part.text for part in parts)
    assert transcript.token_ids == [i for part in parts for i in part.token_ids]
    check_tiling(transcript.spans, transcript.n_chars)
    check_tiling(transcript.token_spans, transcript.n_tokens)
    assert all(span.stop > span.start for span in transcript.spans + transcript.token_spans)
    # What was reported tiles too, empty spans included, and cuts out each part's own text and ids.
    chars, tokens = [part.span for part in reported], [part.token_span for part in reported]
    check_tiling(chars, transcript.n_chars)
    check_tiling(tokens, transcript.n_tokens)
    assert [(transcript.text[c.start : c.stop], c.source, c.step) for c in chars] == [
        (part.text, part.source, part.step) for part in parts
    ]
    assert [(tuple(transcript.token_ids[t.start : t.stop]), t.source, t.step) for t in tokens] == [
        (part.token_ids, part.source, part.step) for part in parts
    ]
    expected = [part.source == "agent" for part in parts for _ in part.token_ids]
    assert transcript.action_mask == action_mask(tokens, transcript.n_tokens) == expected
    assert transcript.n_tokens == len(expected)


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([Span(0, 2, "user", -1), Span(3, 4, "agent", 0)], 4),  # a gap
        ([Span(0, 3, "user", -1), Span(2, 4, "agent", 0)], 4),  # an overlap
        ([Span(0, 3, "agent", 0)], 4),  # too short
        ([Span(0, 5, "agent", 0)], 4),  # too long
        ([Span(0, 4, "user", -1), Span(4, 2, "agent", 0), Span(2, 4, "env", 0)], 4),  # backwards
        ([], 1),
    ],
)
def test_mask_refuses_spans_that_do_not_tile(spans: list[Span], length: int) -> None:
    with pytest.raises(ValueError, match="spans"):
        action_mask(spans, length)
