"""The rows of an agent's episodes against a log of all requests and answers, which the agent keeps itself."""

from __future__ import annotations

from collections import Counter

import pytest
from gateway_tools import WildAgent, check_log, play_agent
from rollout_tools import RandomWriter
from tiny import make_tiny_tokenizer

from agent_gym.rollout import Budget


@pytest.mark.parametrize("episodes", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_each_sampled_token_is_trained_once_and_nothing_else(episodes: int) -> None:
    wild, policy = WildAgent(), RandomWriter()

    async def agent(client, task):
        return await wild(client, task)

    tasks = [{"seed": seed} for seed in range(episodes)]
    budget = Budget(max_turn_tokens=16, max_tokens=1024)
    played = play_agent(agent, make_tiny_tokenizer(), tasks, policy=policy, budget=budget)
    deeds = Counter[str]()
    rows = steps = 0
    for seed, episode in enumerate(played):
        # An agent none of whose requests was waited for asked nothing.
        if episode.failure is not None:
            assert "before its first request" in episode.failure.message, episode.failure.traceback
            continue
        check_log(episode, wild.logs[seed], policy)
        deeds += wild.logs[seed].deeds
        rows, steps = rows + len(episode.rows), steps + len(episode.steps)
    print(f"{episodes} episodes, {rows} rows, {steps} turns, {dict(deeds)}")
    assert set(deeds) >= set("go_on fork compact side_by_side again cut timeout timeouts stream cut_again".split())
    assert episodes < rows < steps
    assert sum(e.failure is not None for e in played) < 0.1 * episodes
