"""Cards: every environment has the sections of Gymnasium's own, and `agent-gym info` shows what can be read off."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from runpy import run_path

import pytest
from toy_envs import IDS

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.registry import ENVS
from agent_gym.speedrun.presets import PRESETS
from agent_gym.viewer.card import baselines

ROOT = Path(__file__).parents[1]
CLASSES = sorted({entry.entry_point for entry in ENVS})
SECTIONS = ("Description", "Observation", "Action", "Reward", "Episode end", "Arguments", "References", "Versions")


def class_of(entry_point: str) -> type:
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("entry_point", [one for one in CLASSES if ".variants:" not in one])
def test_a_class_documents_itself_as_gymnasiums_do(entry_point: str) -> None:
    card = inspect.getdoc(class_of(entry_point)) or ""
    assert [name for name in SECTIONS if f"\n## {name}\n" not in card] == []


def test_info_prints_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "AgentR1/GSM8K-v0"]) == 0
    card = capsys.readouterr().out
    for line in (
        "## Episode end",
        "| `use_calculator` | `True` |",
        "| `format` | 0.1 | outcome |",
        "| `call` | 0 | process |",
        "| tasks | train 20,000, validation 1,000, test 1,000 |",
        '  "name": "calculator",',
        "`reset`: messages, tools, stop, task_id, categories, spans. `step`: ",
        "## Baselines of AgentR1/GSM8K-v0",
        '``````text title="policy"',
    ):
        assert line in card, line
    assert main(["info", "cheating_envs:Cheat/Mute-v0"]) == 0
    mute = capsys.readouterr().out
    assert "Has neither an expert nor a gold answer that it names." in mute and "## An episode" not in mute
    assert main(["info", "AgentR1/HotpotQA-FullWiki-v0"]) == 0
    assert "needs corpus= or retriever=" in capsys.readouterr().out
    assert main(["info", "CartPole-v1"]) == 2


def test_each_id_that_can_be_made_has_baselines_and_its_expert_is_the_best_of_them() -> None:
    known = json.loads(files("agent_gym.registry").joinpath("baselines.json").read_text(encoding="utf-8"))
    assert [env_id for env_id in known if env_id in IDS] == IDS
    for env_id, about in known.items():
        success = {who: float(share.rstrip("%")) for who, _, share, _ in about["rows"]}
        slippery = env_id == "AgentR1/FrozenLake-v0"  # the best player falls into holes, too
        assert (success["expert"] == 100.0 or slippery) and success["random"] < 60.0


def test_a_card_says_where_a_script_without_learning_solves_nearly_all() -> None:
    said = {entry.id for entry in ENVS if "**A script without learning" in "\n".join(baselines([entry]))}
    names = ("GSM8K", "HotpotQA", "ALFWorld", "Bisect", "Support", "Sokoban", "Countdown")
    assert said == {f"AgentR1/{name}-v0" for name in names}


def test_rows_of_recipes_are_those_of_the_results() -> None:
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    sections = {title: text for title, _, text in (part.partition("\n") for part in page.split("\n## ")[1:])}
    known = json.loads(files("agent_gym.registry").joinpath("baselines.json").read_text(encoding="utf-8"))
    rows = [row for about in known.values() for row in about.get("recipes", [])]
    not_there = {"gpu"}
    assert {row[0].partition(" ")[0] for row in rows} == set(PRESETS) - not_there
    for *_, greedy, sampled, _, _, section in rows:
        for number in re.findall(r"\d+\.\d", f"{greedy} {sampled}"):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", sections[section]), (number, section)


def test_rows_of_recipes_are_taken_from_runs(tmp_path: Path) -> None:
    for seed, shares in ((0, (0.656, 0.29, 0.864)), (1, (0.5, 0.25, 1.0))):
        played = [("imitation", "greedy", 323), ("imitation", "sampled", 2584), ("GRPO policy", "greedy", 323)]
        results = [
            {"policy": policy, "decoding": decoding, "episodes": episodes, "success": share}
            for (policy, decoding, episodes), share in zip(played, shares, strict=True)
        ]
        point = {"step": 0, "success": 0.5, "low": 0.0, "high": 1.0, "turns": 1.0, "tool_calls": 0.0, "tokens": 9.0}
        dev = {"split": "validation", "tasks": 9, "decoding": "greedy", "start": "imitation", "evaluations": [point]}
        run = {"preset": "AgentR1/Bargain-v0", "seed": seed, "results": results, "dev": dev}
        (tmp_path / f"seed_{seed}").mkdir()
        (tmp_path / f"seed_{seed}" / "results.json").write_text(json.dumps(run))
    recipe = run_path(str(ROOT / "benchmarks" / "baselines.py"))["recipe"]
    title = "Presets: `benchmarks/rivals.py NAME --seeds N ...`"
    assert recipe(str(tmp_path), "bargain", "Presets") == (
        "AgentR1/Bargain-v0",
        [
            ["bargain", "tiny model, imitation", "65.6, 50.0", "29.0, 25.0", "323", "0, 1", title],
            ["bargain", "tiny model, after GRPO", "86.4, 100.0", "", "323", "0, 1", title],
        ],
    )
    for preset, section, words in (
        ("maze", "Presets", "trains on AgentR1/VisualMaze-v0"),
        ("bargain", "x", "a heading of"),
    ):
        with pytest.raises(ConfigError, match=words):
            recipe(str(tmp_path), preset, section)
