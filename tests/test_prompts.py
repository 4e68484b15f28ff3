"""Distinct prompts are counted and are what intervals are over; and few of them are a warning on the table itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from rollout_tools import roll

from agent_gym import Reply, TextEnv
from agent_gym.cli.main import main
from agent_gym.evaluate import make_specs, summarize
from agent_gym.evaluate.compare import Run, compare
from agent_gym.evaluate.panels import read_panel
from agent_gym.evaluate.prompts import FEW, few_prompts, prompt_of
from agent_gym.evaluate.report import table
from agent_gym.evaluate.statistics import compare_clustered, share, wilson_interval
from agent_gym.rollout.failures import Failure

BISECT = "AgentR1/Bisect-v0"
HIDDEN = "Toy/Hidden-v0"


class HiddenEnv(TextEnv):
    """Asks one of `openings` questions; what is right is hidden, so that ten tasks are one prompt."""

    reward_weights = {"answer": 1.0}

    def __init__(self, openings: int = 4, **kwargs: Any) -> None:
        super().__init__({"test": [(n, right) for n in range(openings) for right in range(10)]}, max_turns=1, **kwargs)

    def begin(self, task: Any) -> str:
        self.task = task
        return f"Question {task[0]}"

    def respond(self, action: str) -> Reply:
        right = action == str(self.task[1])
        return Reply(terms={"answer": float(right)}, terminated=True, success=right)


if HIDDEN not in gymnasium.registry:
    gymnasium.register(HIDDEN, entry_point=HiddenEnv)


def played(tokenizer: Any, act: Any, openings: int = 4) -> list[Any]:
    return roll(tokenizer, make_specs(HIDDEN, {"openings": openings}), act)


def test_tasks_that_differ_in_what_is_hidden_are_one_prompt(tokenizer: Any) -> None:
    episodes = played(tokenizer, lambda episode: "3")
    result = summarize(episodes)
    assert (result.tasks, result.prompts, result.success) == (40, 4, 0.1)
    assert len({prompt_of(one) for one in episodes}) == 4
    one = summarize(played(tokenizer, lambda episode: "3", openings=1))
    assert (one.tasks, one.prompts) == (10, 1) and one.high - one.low > 0.7, "one prompt says nothing of another"


def test_intervals_are_over_prompts(tokenizer: Any) -> None:
    # All tasks of half of the prompts are solved: as sure as a coin thrown 4 times, and not 40 times.
    def act(episode: Any) -> str:
        n, right = divmod(episode.spec.index, 10)
        return str(right) if n < 2 else "none"

    result = summarize(played(tokenizer, act))
    assert result.success == 0.5
    assert (result.low, result.high) == pytest.approx(wilson_interval(2, 4), abs=1e-9)
    assert result.measures["reward"].high - result.measures["reward"].low > 1.0


def test_a_comparison_is_over_prompts_too(tokenizer: Any) -> None:
    runs = []
    for name, last in (("a", 2), ("b", 4)):  # the second one solves two prompts more, which are 20 tasks

        def act(episode: Any, last: int = last) -> str:
            n, right = divmod(episode.spec.index, 10)
            return str(right) if n < last else "none"

        run = Run(name, HIDDEN, {"openings": 4})
        for episode in played(tokenizer, act):
            run.add(episode)
        runs.append(run)
    found = compare(*runs)
    success = found.measures["episode/success"]
    assert (found.paired, found.prompts, success.difference) == (40, 4, 0.5)
    assert success.p == 2 * 2 / 2**3 and success.test == "permutation", "two prompts changed, not 20 tasks"
    assert success.low < 0.0 < success.high


def test_the_mean_of_clusters_is_that_of_their_tasks() -> None:
    found = compare_clustered([0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], ["x", "x", "x", "y"])
    assert (found.a, found.b, found.difference) == (0.25, 0.75, 0.5)
    # With a cluster for each task it is the usual comparison, and McNemar's exact p.
    every = compare_clustered([0.0] * 8, [1.0] * 6 + [0.0] * 2, range(8))
    assert every.p == 2 / 2**6
    assert share([3.0], [5.0], 5).high - share([3.0], [5.0], 5).low > 0.7, "one cluster has no spread to judge by"


@pytest.mark.parametrize(("prompts", "warned"), [(1, True), (FEW - 1, True), (FEW, False)])
def test_few_prompts_are_a_warning_on_the_table_itself(tokenizer: Any, prompts: int, warned: bool) -> None:
    result = summarize(played(tokenizer, lambda episode: "3", openings=prompts))
    assert ("warning: Hidden: " in table({("someone", HIDDEN): result})) == warned
    assert bool(few_prompts(prompts, 10 * prompts, "x")) == warned and few_prompts(0, 0, "x") == ""


def test_what_is_printed_and_the_card_say_how_many(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    words = ["eval", BISECT, "--panel", "test", "--policy", "expert", "random", "--tokenizer", tiny_model]
    assert main([*words, "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "96 tasks, 4 distinct prompts" in printed and "warning: Bisect: 96 tasks are 4 distinct prompts" in printed
    cards = json.loads(file.with_suffix(".card.json").read_text())["cards"]
    assert [card["counts"]["prompts"] for card in cards] == [4, 4]
    assert main(["compare", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "96 tasks paired, 4 distinct prompts" in printed and "warning: AgentR1/Bisect-v0: 96 tasks are 4" in printed
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "warning: AgentR1/Bisect-v0: 96 tasks are 4 distinct prompts" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert [row["prompts"] for row in json.loads(capsys.readouterr().out)["results"]] == [4, 4]
    assert read_panel("test", BISECT).prompts == 4 and read_panel("test", "AgentR1/GSM8K-v0").prompts == 200


def test_a_panel_that_is_exported_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "tasks", BISECT, str(tmp_path / "mine.jsonl"), "--tasks", "96"]) == 0
    assert "96 tasks, 4 distinct prompts, openings " in capsys.readouterr().out


def test_what_a_failed_episode_read_is_not_counted(tokenizer: Any) -> None:
    episodes = played(tokenizer, lambda episode: "3")
    lost = [dataclasses.replace(one, failure=Failure("EnvFailure", "gone")) for one in episodes[:10]]
    result = summarize([*lost, *episodes[10:]])
    assert (result.prompts, result.failed) == (3, 10)
