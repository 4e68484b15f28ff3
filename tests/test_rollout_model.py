"""Rollouts of a real, if tiny, model: what the engine reports is what one forward pass over each row gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_tools import counting, play
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_gym.chat import ChatRenderer
from agent_gym.policies import TransformersPolicy
from agent_gym.rollout import Budget, EpisodeSpec, Row
from agent_gym.transcript import check_tiling


@pytest.fixture(scope="module")
def policy(tiny_model: str) -> TransformersPolicy:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    return TransformersPolicy(model, ChatRenderer.of(tokenizer).eos_token_ids, tokenizer.pad_token_id, tokenizer.decode)


def compared(model: Any, row: Row) -> int:
    """Compare the row's logprobs with those of one pass over it; return how many tokens were sampled."""
    ids, mine = torch.tensor([row.token_ids]), torch.tensor(row.action_mask[1:])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    reported = torch.tensor(row.logprobs[1:])
    assert torch.allclose(logprobs[mine], reported[mine], atol=1e-5) and (reported[~mine] == 0).all()
    return int(mine.sum())


def test_a_model_rolls_out_with_the_logprobs_of_one_forward_pass(policy: Any, tokenizer: Any) -> None:
    """Random weights write bytes that are no text, cut turns off and never call a tool: all of it must be kept."""
    specs = [EpisodeSpec("AgentR1/GSM8K-v0", seed=i, index=i, sampling_seed=i) for i in range(6)]
    specs += counting(6, max_turns=3) + counting(2, "Toy/Inline-v0", max_turns=3)
    drifted = 0
    for episode in play(policy, tokenizer, specs, Budget(max_turn_tokens=12, max_tokens=700)):
        assert episode.failure is None
        (row,) = episode.rows
        check_tiling(row.spans, len(row.token_ids))
        for step in episode.steps:
            assert all(row.action_mask[step.start : step.stop]) and step.stop > step.start
            sampled = row.token_ids[step.start : step.stop]
            drifted += tokenizer(tokenizer.decode(sampled), add_special_tokens=False)["input_ids"] != sampled
        assert compared(policy.model, row) == episode.sampled_tokens
    assert drifted > 5, "these ids would not survive decoding and encoding"


def test_an_episode_ends_where_the_context_of_the_model_does(policy: Any, tokenizer: Any) -> None:
    """And not the rollout, whose other episodes are whole."""
    short = TransformersPolicy(policy.model, policy.eos_token_ids, policy.pad_token_id, tokenizer.decode)
    short.context = 300
    episodes = play(short, tokenizer, counting(4, max_turns=99), Budget(max_turn_tokens=40, max_tokens=4000))
    assert {episode.truncation for episode in episodes} == {"tokens"}
    assert max(len(row.token_ids) for episode in episodes for row in episode.rows) == 300


@pytest.mark.parametrize("context", ["window:2", "summarize:420"])
def test_logprobs_of_rewritten_contexts_are_those_of_their_rows(policy: Any, tokenizer: Any, context: str) -> None:
    """Each row by itself: what stood in an earlier context and was forgotten has no part in it."""
    budget = Budget(max_turn_tokens=12, max_tokens=700)
    episodes = play(policy, tokenizer, counting(4, max_turns=10), budget, context=context)
    assert all(len(episode.rows) > 1 and episode.turns > 3 for episode in episodes)
    assert sum(compared(policy.model, row) for episode in episodes for row in episode.rows) > 300
