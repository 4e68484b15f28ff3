"""Context policies: what the model sees next, and that each token it sampled is trained once, whatever it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_tools import check_episode, counting, expert, roll, roll_random, scripted

from agent_gym import ConfigError, Sampled
from agent_gym.chat import ChatRenderer
from agent_gym.rollout import Budget, Episode, Runner, make_context, make_env, replay, tighten, to_record
from agent_gym.rollout.contexts import OBSERVATION_HEADING, REQUEST, SUMMARY_HEADING, WindowContext

ENVS = ("Toy/Counting-v0", "Toy/Inline-v0")
NAMES = ["append", "window:2", "budget:900", "summarize:900", "rebuild", "template"]

few = settings(max_examples=25)
episodes_of = {
    "env_id": st.sampled_from(ENVS),
    "seed": st.integers(0, 10**6),
    "cut": st.sampled_from([0.0, 0.3, 1.0]),
    "turn": st.integers(1, 40),
}


def specs_of(env_id: str, seed: int, n: int = 2, **kwargs: Any) -> list[Any]:
    specs = counting(n, env_id, **{"max_turns": 14, **kwargs})
    return [replace(spec, seed=seed + i, sampling_seed=seed + i) for i, spec in enumerate(specs)]


def turns_of(episode: Episode, tokenizer: Any) -> tuple[list[int], list[list[int]]]:
    """The opening and the turns as ids, from a second run of the environment and not from the rows."""
    spec = episode.spec
    env = make_env(spec.env_id, spec.env_kwargs, tokenizer)
    _, info = env.reset(seed=spec.seed, options=spec.options)
    opening, turns = info["token_ids"], []
    for step in episode.steps:
        ids = episode.rows[step.row].token_ids[step.start : step.stop]
        turns.append(env.step(Sampled(step.action, ids))[-1]["token_ids"])
    return opening, turns


def joined(opening: list[int], turns: list[list[int]]) -> list[int]:
    return opening + [i for turn in turns for i in turn]


@pytest.mark.parametrize("context", NAMES)
def test_an_expert_is_not_disturbed(tokenizer: Any, context: str) -> None:
    def act(episode: Any) -> str:
        return expert(episode) if episode.asked == "act" else "all is well"

    specs = counting(3, "AgentR1/GSM8K-v0", system_prompt="")
    for episode in roll(tokenizer, specs, act, Budget(max_tokens=900), context=context):
        assert episode.success and episode.terminated and episode.turns >= 2
        if len(episode.rows) == 1:
            check_episode(episode, tokenizer)
        assert replay(to_record(episode)) == []


@few
@given(turns_shown=st.integers(1, 6), **episodes_of)
def test_window_shows_the_last_turns(
    tokenizer: Any, env_id: str, seed: int, cut: float, turn: int, turns_shown: int
) -> None:
    episodes, policy = roll_random(tokenizer, specs_of(env_id, seed), f"window:{turns_shown}", Budget(turn, 4000), cut)
    for episode in episodes:
        opening, turns = turns_of(episode, tokenizer)
        for k, (request, _) in enumerate(policy.log_of(episode)):
            assert request.prompt_ids == joined(opening, turns[max(0, k - turns_shown) : k])
        assert len(episode.steps) == 14 and episode.truncation == "turns"
        # Up to `turns_shown` turns are appended to the opening's row, and every later turn is a row.
        assert [step.row for step in episode.steps] == [max(0, k - turns_shown) for k in range(14)]


@few
@given(tokens=st.integers(150, 700), **episodes_of)
def test_budget_forgets_the_oldest_turns(
    tokenizer: Any, env_id: str, seed: int, cut: float, turn: int, tokens: int
) -> None:
    episodes, policy = roll_random(tokenizer, specs_of(env_id, seed), f"budget:{tokens}", Budget(turn, 700), cut)
    for episode in episodes:
        opening, turns = turns_of(episode, tokenizer)
        first = 0
        for k, (request, generation) in enumerate(policy.log_of(episode)):
            assert len(request.prompt_ids) + request.params.max_tokens <= tokens
            assert len(generation.token_ids) <= request.params.max_tokens
            shown = next(n for n in range(k + 1) if request.prompt_ids == joined(opening, turns[n:k]))
            assert shown < k or k == 0  # the last turn is always there
            assert shown >= first, "what was forgotten does not come back"
            if shown > first:
                assert len(request.prompt_ids) <= tokens // 2 or shown == k - 1
                longer = len(request.prompt_ids) + len(turns[shown - 1])
                assert longer > tokens // 2, "no more is forgotten than half a budget asks for"
                # Nothing was forgotten while there was room for another turn.
                before = joined(opening, turns[first:k])
                assert tokens - len(before) < min(turn, tokens // 2)
            assert (episode.steps[k].row > episode.steps[k - 1].row if k else False) == (shown > first)
            first = shown
        if episode.truncation == "tokens":
            last = joined(opening, turns[-1:])
            assert len(last) >= tokens, "it ends only where the opening and the last turn alone are too long"


@few
@given(**episodes_of)
def test_rebuild_is_a_row_per_step(tokenizer: Any, env_id: str, seed: int, cut: float, turn: int) -> None:
    episodes, policy = roll_random(tokenizer, specs_of(env_id, seed, max_turns=6), "rebuild", Budget(turn, 900), cut)
    for episode in episodes:
        assert len(episode.rows) == len(episode.steps) >= 2
        env = make_env(episode.spec.env_id, episode.spec.env_kwargs, tokenizer)
        env.reset(seed=episode.spec.seed, options=episode.spec.options)
        renderer = ChatRenderer.of(tokenizer)
        for step, (request, _) in zip(episode.steps, policy.log_of(episode), strict=True):
            assert request.prompt_ids == renderer.prompt(env.unwrapped.state_prompt())
            env.step(step.action)


# Summaries.


@few
@given(tokens=st.integers(420, 700), **episodes_of)
def test_summaries_are_steps_of_their_own(
    tokenizer: Any, env_id: str, seed: int, cut: float, turn: int, tokens: int
) -> None:
    episodes, policy = roll_random(tokenizer, specs_of(env_id, seed), f"summarize:{tokens}", Budget(turn, 700), cut)
    for episode in episodes:
        kinds = [step.kind for step in episode.steps]
        log = policy.log_of(episode)
        assert kinds[0] == "act" and ("summary" in kinds or len(episode.rows[0].token_ids) < tokens)
        assert all({first, second} != {"summary"} for first, second in zip(kinds, kinds[1:], strict=False))
        assert kinds.count("act") == episode.turns <= 14
        for k, step in enumerate(episode.steps):
            request = log[k][0]
            assert len(request.prompt_ids) + request.params.max_tokens <= tokens
            assert request.params.seed is not None and (step.kind == "act" or request.params.stop == ())
            # A context begins behind each summary and nowhere else.
            assert step.row == kinds[:k].count("summary")
            if step.kind == "summary":
                assert (step.reward, step.process_reward, step.reward_terms, step.tool_calls) == (0.0, 0.0, {}, [])
                asked = tokenizer.decode(request.prompt_ids[episode.steps[k - 1].stop :])
                assert REQUEST in asked
            elif k and kinds[k - 1] == "summary":
                shown = tokenizer.decode(request.prompt_ids)
                summary = episode.steps[k - 1].action.rpartition("</think>")[2].strip()
                assert f"{SUMMARY_HEADING}\n{summary}" in shown if summary else SUMMARY_HEADING not in shown
                assert f"{OBSERVATION_HEADING}\n{episode.steps[k - 2].observation}" in shown
        roles = [message["role"] for message in episode.messages]
        assert roles.count("assistant") == len(kinds)
        assert sum(message["content"] == REQUEST for message in episode.messages) >= kinds.count("summary")
        assert replay(to_record(episode, tokenizer)) == []


def test_the_request_stands_behind_the_worlds_answer_in_one_message(tokenizer: Any) -> None:
    def act(episode: Any) -> str:
        return "on and on" if episode.asked == "act" else "<think>Hm.</think>\nI went on."

    (episode,) = roll(tokenizer, counting(1, max_turns=30), act, Budget(60, 800), context="summarize")
    row = episode.rows[0]
    k = [step.kind for step in episode.steps].index("summary")
    before, summary = episode.steps[k - 1 : k + 1]
    asked = tokenizer.decode(row.token_ids[before.stop : summary.start])
    # A tool message in this template: one answer, with the request at its end, and the header of the next turn.
    assert asked.count("<|im_start|>") == 2 and asked.count("<tool_response>") == 1
    assert f"{before.observation}\n\n{REQUEST}\n</tool_response>" in asked
    fresh = tokenizer.decode(episode.rows[1].token_ids[: episode.rows[1].prompt_length])
    assert fresh.count("<|im_start|>user") == 1 and f"{SUMMARY_HEADING}\nI went on.\n\n" in fresh and "Hm." not in fresh
    assert episode.messages.count({"role": "user", "content": REQUEST}) == len(episode.steps) - episode.turns


def test_an_answer_that_leaves_no_room(tokenizer: Any) -> None:
    """It is shown only behind the summary, and where it does not fit there, either, the episode is truncated."""
    act = lambda episode: "on" if episode.asked == "act" else "so far so good"  # noqa: E731

    def play(*lengths: int) -> Episode:
        specs = counting(1, "Toy/Wordy-v0", lengths=lengths, max_turns=5)
        return roll(tokenizer, specs, act, Budget(40, 600), context="summarize")[0]

    episode = play(10, 10, 300, 10)
    assert episode.truncation == "turns"
    assert [step.kind for step in episode.steps][:5] == ["act", "act", "act", "summary", "act"]
    before, summary = episode.steps[2:4]
    asked = tokenizer.decode(episode.rows[0].token_ids[before.stop : summary.start])
    assert REQUEST in asked and "zz" not in asked
    assert before.observation in tokenizer.decode(episode.rows[1].token_ids)
    episode = play(10, 10, 560)
    assert [step.kind for step in episode.steps] == ["act", "act", "act", "summary"]
    assert episode.truncation == "tokens" and len(episode.rows) == 1 and len(episode.rows[0].token_ids) <= 600
    for tokens in (60, 200):  # no room for any summary
        (episode,) = roll(tokenizer, counting(1), lambda episode: "x", Budget(9, tokens), context="summarize")
        check_episode(episode, tokenizer)
        assert episode.truncation == "tokens" and {step.kind for step in episode.steps} == {"act"}


@pytest.mark.parametrize("summary", ["", "<|im_start|>\ufffd{{ x }}"])
def test_any_summary_will_do(tokenizer: Any, summary: str) -> None:
    act = lambda episode: "on" if episode.asked == "act" else summary  # noqa: E731
    (episode,) = roll(tokenizer, counting(1, max_turns=20), act, Budget(9, 600), context="summarize")
    assert episode.truncation == "turns" and len(episode.rows) > 1 and episode.turns == 20
    shown = tokenizer.decode(episode.rows[1].token_ids[: episode.rows[1].prompt_length])
    assert (SUMMARY_HEADING in shown) == bool(summary)


@pytest.mark.parametrize("bad", ["windw:4", "window", "window:0", "append:3", "budget:", "budget:²"])
def test_other_names_are_refused_with_the_known_ones(bad: str, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="known: append, window:TURNS, budget, budget:TOKENS, summarize"):
        Runner(scripted(tokenizer), tokenizer, context=bad)


def test_policies_as_objects_and_their_limits(tokenizer: Any) -> None:
    assert make_context(WindowContext(2)) == make_context("window:2")
    assert tighten(Budget(max_tokens=900), make_context("budget:300")) == Budget(max_tokens=300)
    assert tighten(Budget(max_tokens=900), make_context("summarize")) == Budget(max_tokens=900)
    with pytest.raises(ConfigError, match="asks for 901 tokens, but max_tokens is 900"):
        Runner(scripted(tokenizer), tokenizer, Budget(max_tokens=900), context="budget:901")
