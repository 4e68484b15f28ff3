"""The complete GSM8K, where its rows are on this machine: the expert, the calculator and the reward on all of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_gym.envs.gsm8k.env import annotated_steps, calculate, gold_answer
from agent_gym.rewards import parse_number

# Test row 319 writes the same number in another way: <<3/4=3/4>>.
DISAGREEING = {"test": [(319, "3/4", "3/4", "0.75")], "train": []}


@functools.cache
def real_env(folder: Path) -> Any:
    return gymnasium.make("AgentR1/GSM8K-v0", data=str(folder)).unwrapped


@pytest.mark.parametrize(("split", "rows"), [("test", 1319), ("train", 7473)])
def test_expert_solves_the_real_rows(gsm8k_folder: Path, split: str, rows: int) -> None:
    env = real_env(gsm8k_folder)
    assert len(env.tasks[split]) == rows
    unsolved, failed_calls = [], []
    for index in range(rows):
        env.reset(options={"split": split, "index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.expert_action())
            failed_calls += [(index, call["arguments"]) for call in info["tool_calls"] if call["error"]]
            over = terminated or truncated
        if not info["is_success"]:
            unsolved.append(index)
    print(f"GSM8K {split}: {rows - len(unsolved)} of {rows} solved; not solved: {unsolved or 'none'}")
    assert len(unsolved) <= 0.02 * rows, unsolved
    assert not failed_calls


@pytest.mark.parametrize("split", ["test", "train"])
def test_annotations_agree_with_the_calculator(gsm8k_folder: Path, split: str) -> None:
    """Row by row, as numbers; the list above is complete. Every gold answer is one number."""
    disagreeing = []
    for index, row in enumerate(real_env(gsm8k_folder).tasks[split]):
        assert parse_number(gold_answer(row["answer"])) is not None, index
        for expression, value in annotated_steps(row["answer"]):
            result = calculate(expression)
            number = parse_number(result)
            if number is None or number != parse_number(value):
                disagreeing.append((index, expression, value, result))
    assert disagreeing == DISAGREEING[split]
