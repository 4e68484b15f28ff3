"""Short cuts for tests that roll out the toy environments with scripts."""

from __future__ import annotations

from typing import Any

import pytest

from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner
from agent_gym.transcript import check_tiling


def expert(episode: Any) -> str:
    return str(episode.env.unwrapped.expert_action())


def scripted(runner_or_tokenizer: Any, act: Any = expert) -> ScriptedPolicy:
    from agent_gym.chat import ChatRenderer

    return ScriptedPolicy(act, ChatRenderer.of(runner_or_tokenizer).encode_action)


def counting(n: int, env_id: str = "Toy/Counting-v0", **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(env_id, kwargs, seed=i, split="train", index=i, sampling_seed=100 + i) for i in range(n)]


def roll(
    tokenizer: Any, specs: list[EpisodeSpec], act: Any = expert, budget: Budget | None = None, **kw: Any
) -> list[Episode]:
    runner = Runner(scripted(tokenizer, act), tokenizer, budget, **kw)
    try:
        return runner.run(specs)
    finally:
        runner.close()


def check_episode(episode: Episode, tokenizer: Any) -> None:
    """What holds for every episode that did not fail."""
    assert episode.env is None
    (row,) = episode.rows
    check_tiling(row.spans, len(row.token_ids))
    assert len(row.logprobs) == len(row.token_ids)
    mine = [i for step in episode.steps for i in range(step.start, step.stop)]
    assert [i for i, flag in enumerate(row.action_mask) if flag] == mine
    for k, step in enumerate(episode.steps):
        text = tokenizer.decode(row.token_ids[step.start : step.stop])
        assert text.removesuffix("<|im_end|>") == step.action
        assert all(span.step == k for span in row.spans if span.start == step.start)
    assert episode.reward == pytest.approx(sum(step.reward for step in episode.steps))
    assert episode.reward == pytest.approx(sum(episode.reward_terms.values()))
    assert episode.terminated != episode.truncated
    assert (episode.truncation is None) == episode.terminated
    assert episode.sampled_tokens == len(mine)
    assert row.prompt_length == episode.steps[0].start
