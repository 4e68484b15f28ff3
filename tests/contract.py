"""The environment contract as one check, and the ways of playing that the conformance tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_gym import Span, TextEnv
from agent_gym.registry import ENVS
from agent_gym.transcript import check_tiling

IDS = [entry.id for entry in ENVS if entry.needs is None]
"""The ids that can be made without arguments."""
every_id = pytest.mark.parametrize("env_id", IDS)


def play(env: Any, actions: list[Any], **reset: Any) -> list[tuple[Any, ...]]:
    """Reset and step until the actions or the episode end; everything that came back, wall-clock times removed."""
    log: list[tuple[Any, ...]] = [env.reset(**reset)]
    for action in actions:
        log.append(env.step(action))
        if log[-1][2] or log[-1][3]:
            break
    for *_, info in log:
        for call in info.get("tool_calls", ()):
            call.pop("seconds")
    return log


def expert_episode(env: Any, **reset: Any) -> list[tuple[Any, ...]]:
    """The expert's episode; it must end by itself."""
    log: list[tuple[Any, ...]] = [env.reset(**reset)]
    while len(log) == 1 or not (log[-1][2] or log[-1][3]):
        log.append(env.step(env.unwrapped.expert_action()))
    return log


def leaves(value: Any, where: str = "info") -> Iterator[tuple[str, Any]]:
    """Every scalar inside plain containers, with the path to it. Other objects could hide things and are refused."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{where} key", key
            yield from leaves(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from leaves(item, f"{where}[{i}]")
    else:
        assert value is None or isinstance(value, str | int | float | bool), f"{where} is a {type(value).__name__}"
        yield where, value


def check_returned(env: TextEnv, log: list[tuple[Any, ...]]) -> None:
    """The contract of everything `reset` and `step` return in one episode."""
    spans: list[Span] = []
    for n, (observation, *middle, info) in enumerate(log):
        assert observation in env.observation_space
        spans += info["spans"]
        list(leaves({**info, "tools": [], "spans": []}))
        assert all(set(message) >= {"role", "content"} for message in info["messages"])
        if n == 0:
            assert {"messages", "tools", "stop", "task_id", "spans"} <= set(info)
            assert all(span.step == -1 and span.source != "agent" for span in info["spans"])
            continue
        reward, terminated, truncated = middle
        assert isinstance(reward, float) and isinstance(terminated, bool) and isinstance(truncated, bool)
        assert sum(info["reward_terms"].values()) == pytest.approx(reward)
        assert set(info["reward_terms"]) <= set(type(env).reward_weights)
        assert {"reward_terms", "process_reward", "tool_calls", "metrics", "error"} <= set(info)
        process = [value for name, value in info["reward_terms"].items() if name in env.process_terms]
        assert info["process_reward"] == pytest.approx(sum(process))
        assert ("is_success" in info) == (terminated or truncated)
        assert [span.source for span in info["spans"]] == ["agent", "env"]
        assert all(span.step == n - 1 for span in info["spans"])
        assert info["messages"][0]["role"] == "assistant"
        assert all(set(call) >= {"name", "arguments", "error"} for call in info["tool_calls"])
    text = env.transcript.text
    check_tiling(spans, len(text))
    said = [text[span.start : span.stop] for span in spans if span.source == "agent"]
    assert said == [info["messages"][0]["content"] for *_, info in log[1:]]
