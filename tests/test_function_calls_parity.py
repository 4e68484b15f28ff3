"""`FunctionCalls-v0` on BFCL's data: gold replays, the original's verdicts on mutated runs and answers, splits, panels.

They skip where the wheel is not prepared: agent-gym prepare bfcl, or AGENT_GYM_BFCL=WHEEL.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from bfcl_tools import (
    ENV_ID,
    Original,
    gold_run,
    mutated_calls,
    mutated_run,
    play_run,
    prepared_folder,
    tasks_of,
)

import agent_gym
from agent_gym.certify import run_check
from agent_gym.certify.fuzz import HOSTILE, aimed
from agent_gym.certify.record import Subject
from agent_gym.envs.function_calls.answers import first_right, right_calls
from agent_gym.envs.function_calls.data import LIVE, MULTI_TURN, SINGLE_TURN, UNSOLVABLE
from agent_gym.evaluate.panels import read_panel
from agent_gym.testing import check_returned, check_text_env, expert_episode, play

pytest.importorskip("mpmath")
WITH_GOLD = [name for name in SINGLE_TURN + LIVE if "irrelevance" not in name]
SIZES = [200] * 4 + [400, 200, 200, 200, 240, 258, 1053, 16, 24, 884]
# SHA-256 of the ids of each split, a line each, so that a split never changes.
PINNED = {
    "multi_turn": "814b657b4e756991e402e596abab7cab9fa05d9ff583905f0e26178b3539891e",
    "single_turn": "883f31e9a24fabd264d825ad2132a4ff050e517f803713181ba0f044c9910f6b",
    "live": "7f53cad35525948b42e6abb24484ae7a8c96b0add3f9295119c206c950e15c65",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_folder(tmp_path_factory.mktemp("bfcl"))


@pytest.fixture(scope="module")
def original(folder: Path) -> Original:
    return Original(folder)


@pytest.mark.parametrize(("category", "size"), [*zip(MULTI_TURN + SINGLE_TURN + LIVE, SIZES, strict=True)])
def test_the_gold_calls_of_each_task_are_right_with_the_results_of_the_original(
    category: str, size: int, folder: Path, original: Original
) -> None:
    env = tasks_of(folder, category)
    rows, wrong = env.tasks["test"], set()
    assert len(rows) == size
    for index, row in enumerate(rows):
        *_, (_, reward, terminated, _, info) = expert_episode(env, options={"split": "test", "index": index})
        assert terminated and (reward == 1.0) == info["is_success"]
        if category in MULTI_TURN:
            assert env._api._results == original.gold_results(row), row["id"]
        wrong |= set() if info["is_success"] else {row["id"]}
    assert wrong == {row["id"] for row in rows} & UNSOLVABLE


def compare_runs(folder: Path, original: Original, category: str, count: int, seed: int) -> None:
    env, rng, verdicts = tasks_of(folder, category), random.Random(f"{category}/{seed}"), list[bool]()
    for _ in range(count):
        index, other = rng.randrange(200), rng.randrange(200)
        env.reset(options={"index": other})
        calls = [call for turn in gold_run(env) for step in turn for call in step]
        env.reset(options={"index": index})
        gold = gold_run(env)
        run = mutated_run(rng, gold, [*calls, *(call for turn in gold for step in turn for call in step)])
        verdicts.append(play_run(env, index, run)["is_success"])
        assert verdicts[-1] == original.right_run(env._task, run), (env._task["id"], run)
    assert 0.2 < sum(verdicts) / count < 0.6, "the runs tell nothing"


def compare_answers(folder: Path, original: Original, category: str, count: int, seed: int) -> None:
    rows, rng, verdicts = tasks_of(folder, category).tasks["test"], random.Random(f"{category}/{seed}"), list[bool]()
    for _ in range(count):
        row = rng.choice(rows)
        calls = mutated_calls(rng, first_right(row["functions"], row["gold"]))
        verdicts.append(right_calls(category, row["functions"], calls, row["gold"]))
        assert verdicts[-1] == original.right_answer(row, calls), (row["id"], calls)
    assert 0.2 < sum(verdicts) / count < 0.7, "the answers tell nothing"


@pytest.mark.parametrize("category", MULTI_TURN)
def test_mutated_runs_have_the_verdict_of_the_original(category: str, folder: Path, original: Original) -> None:
    compare_runs(folder, original, category, 60, seed=0)


@pytest.mark.parametrize("category", WITH_GOLD)
def test_mutated_answers_have_the_verdict_of_the_original(category: str, folder: Path, original: Original) -> None:
    compare_answers(folder, original, category, 250, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("category", MULTI_TURN)
def test_many_mutated_runs_have_the_verdict_of_the_original(category: str, folder: Path, original: Original) -> None:
    compare_runs(folder, original, category, 1250, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("category", WITH_GOLD)
def test_many_mutated_answers_have_the_verdict_of_the_original(category: str, folder: Path, original: Original) -> None:
    compare_answers(folder, original, category, 5000, seed=1)


# Splits and panels.


@pytest.mark.parametrize("group", PINNED)
def test_splits_are_pinned_and_no_scenario_is_in_two(group: str, folder: Path) -> None:
    splits = agent_gym.make(ENV_ID, category=group, data=str(folder)).tasks
    lines = "".join(f"{split} {row['id']}\n" for split, rows in splits.items() for row in rows)
    assert hashlib.sha256(lines.encode()).hexdigest() == PINNED[group]
    sides = defaultdict[str, set[str]](set)
    for split, rows in splits.items():
        for row in rows:
            if group == "multi_turn":
                sides[row["id"].rpartition("_")[2]].add(split)
                sides[json.dumps(row["config"])].add(split)
            else:
                for one in row["functions"]:
                    sides[one["name"] + one["description"]].add(split)
            sides[json.dumps([m["content"] for m in sum(row["turns"], []) if m["role"] == "user"])].add(split)
    assert all(len(found) == 1 for found in sides.values())


@pytest.mark.parametrize("group", ["multi_turn", "single_turn", "live"])
def test_the_panels_have_the_tasks_that_there_are(group: str, folder: Path) -> None:
    read_panel(f"official-{group}-test", ENV_ID).check({"category": group, "data": str(folder)})
    if group == "multi_turn":
        read_panel(f"official-{group}", ENV_ID).check({"category": group, "official": True, "data": str(folder)})


# The contract of environments, in one long context and in all categories.


def test_the_checks_of_environments_pass(folder: Path) -> None:
    check_text_env(lambda: agent_gym.make(ENV_ID, category="all", data=str(folder)), episodes=12)


@pytest.mark.parametrize("category", ["multi_turn_long_context", "live_multiple"])
def test_hostile_actions_never_raise(category: str, folder: Path) -> None:
    env: Any = agent_gym.make(ENV_ID, category=category, data=str(folder))
    for name, hostile in HOSTILE.items():
        log = play(env, [aimed(env, hostile)] * 2, seed=0)
        check_returned(env, log)
        for _, *_, info in log:
            assert json.dumps(info, allow_nan=False), name


def test_an_episode_changes_nothing_of_the_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes leave files in the usual one
    subject = Subject(ENV_ID, {"category": "multi_turn", "data": str(folder)})
    for check in ("isolation", "determinism"):
        record = run_check(check, subject)
        assert record.verdict == "pass", record
    assert not [name for name in sys.modules if name.startswith("gorilla")]


def test_a_file_system_that_doubles_with_each_copy_is_full(folder: Path) -> None:
    env: Any = agent_gym.make(ENV_ID, category="multi_turn_base", official=True, data=str(folder))
    env.reset(options={"index": 0})
    call = env.parser.render
    env.step(call("mkdir", {"dir_name": "d0"}))
    for n in range(18):
        inside = [call("mkdir", {"dir_name": f"d{n + 1}"}), call("cp", {"source": f"d{n}", "destination": f"e{n}"})]
        moves = [call("mv", {"source": f"{one}{n}", "destination": f"d{n + 1}"}) for one in "de"]
        seen = env.step("\n".join([*inside, *moves]))[0]
        if env._over:
            break
    assert "the file system is full" in seen
    assert not env.step("Done.")[-1].get("is_success")
