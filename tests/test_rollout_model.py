"""Rollouts with a real, if tiny, model and the transformers engine."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_tools import counting

from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner
from agent_gym.transcript import check_tiling


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    from tiny import make_tiny_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def forward(model: Any, token_ids: list[int]) -> Any:
    """(T - 1,) logprob of each token but the first, from one pass over the row."""
    import torch

    ids = torch.tensor([token_ids])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(-1, ids[0, 1:, None])[:, 0]


def roll_model(tiny_model: Any, specs: list[EpisodeSpec], temperature: float = 1.0, **kwargs: Any) -> list[Episode]:
    from agent_gym.chat import ChatRenderer
    from agent_gym.policies import TransformersPolicy

    model, tokenizer = tiny_model
    renderer = ChatRenderer.of(tokenizer)
    policy = TransformersPolicy(model, renderer.eos_token_ids, tokenizer.pad_token_id, tokenizer.decode)
    runner = Runner(policy, tokenizer, Budget(max_turn_tokens=12, max_tokens=700), **kwargs)
    try:
        return runner.run(specs, temperature=temperature)
    finally:
        runner.close()
        policy.close()


def test_a_model_rolls_out_with_the_logprobs_of_one_forward_pass(tiny_model: Any) -> None:
    """Random weights write bytes that are no text, cut turns off and never call a tool: all of it must be kept."""
    import torch

    model, tokenizer = tiny_model
    specs = [EpisodeSpec("AgentR1/GSM8K-v0", seed=i, index=i, sampling_seed=i) for i in range(6)]
    specs += counting(6, max_turns=3) + counting(2, "Toy/Inline-v0", max_turns=3)
    drifted = 0
    for episode in roll_model(tiny_model, specs):
        assert episode.failure is None
        (row,) = episode.rows
        check_tiling(row.spans, len(row.token_ids))
        for step in episode.steps:
            assert all(row.action_mask[step.start : step.stop]) and step.stop > step.start
            sampled = row.token_ids[step.start : step.stop]
            drifted += tokenizer(tokenizer.decode(sampled), add_special_tokens=False)["input_ids"] != sampled
        mine = torch.tensor(row.action_mask[1:])
        assert mine.sum() == episode.sampled_tokens
        logprobs = torch.tensor(row.logprobs[1:])
        assert torch.allclose(forward(model, row.token_ids)[mine], logprobs[mine], atol=1e-5)
        assert (logprobs[~mine] == 0).all()
    assert drifted > 5, "these ids would not survive decoding and encoding"


@pytest.mark.parametrize("context", ["window:2", "summarize:420"])
def test_logprobs_of_rewritten_contexts_are_those_of_their_rows(tiny_model: Any, context: str) -> None:
    """Each row by itself: what stood in an earlier context and was forgotten has no part in it."""
    import torch

    model, _ = tiny_model
    compared = 0
    for episode in roll_model(tiny_model, counting(4, max_turns=10), context=context):
        assert len(episode.rows) > 1 and episode.turns > 3
        for row in episode.rows:
            mine = torch.tensor(row.action_mask[1:])
            compared += int(mine.sum())
            assert torch.allclose(forward(model, row.token_ids)[mine], torch.tensor(row.logprobs[1:])[mine], atol=1e-5)
    assert compared > 300
