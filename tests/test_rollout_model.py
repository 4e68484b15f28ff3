"""Rollouts with a real, if tiny, model and the transformers engine."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_tools import counting, play

from agent_gym.rollout import Budget, EpisodeSpec
from agent_gym.transcript import check_tiling


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    from tiny import make_tiny_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("context", ["append", "window:2", "summarize:420"])
def test_logprobs_are_those_of_one_forward_pass_of_each_row(tiny_model: Any, context: str) -> None:
    """Random weights write bytes that are no text, cut turns off and never call a tool: all of it must be kept."""
    import torch

    from agent_gym.chat import ChatRenderer
    from agent_gym.policies import TransformersPolicy

    model, tokenizer = tiny_model
    policy = TransformersPolicy(
        model, ChatRenderer.of(tokenizer).eos_token_ids, tokenizer.pad_token_id, tokenizer.decode
    )
    specs = counting(6, max_turns=10)
    if context == "append":
        specs += [EpisodeSpec("AgentR1/GSM8K-v0", seed=i, index=i, sampling_seed=i) for i in range(6)]
        specs += counting(2, "Toy/Inline-v0", max_turns=3)
    drifted = compared = 0
    for episode in play(policy, tokenizer, specs, Budget(max_turn_tokens=12, max_tokens=700), context=context):
        assert episode.failure is None and (len(episode.rows) > 1) == (context != "append")
        for step in episode.steps:
            row = episode.rows[step.row]
            assert all(row.action_mask[step.start : step.stop]) and step.stop > step.start
            sampled = row.token_ids[step.start : step.stop]
            drifted += tokenizer(tokenizer.decode(sampled), add_special_tokens=False)["input_ids"] != sampled
        for row in episode.rows:
            check_tiling(row.spans, len(row.token_ids))
            mine, logprobs = torch.tensor(row.action_mask[1:]), torch.tensor(row.logprobs[1:])
            ids = torch.tensor([row.token_ids])
            with torch.no_grad():
                scored = model(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
            assert torch.allclose(scored[mine], logprobs[mine], atol=1e-5)
            assert (logprobs[~mine] == 0).all()
            compared += int(mine.sum())
        assert sum(sum(row.action_mask) for row in episode.rows) == episode.sampled_tokens
    assert compared > 300 and drifted > 5, "these ids would not survive decoding and encoding"
