"""What is published of presets: seeds that chose settings are in no mean that does not say so, and trials are equal."""

from __future__ import annotations

import json
import re

import pytest
from test_docs import ROOT

pytest.importorskip("pydantic")

from agent_gym.speedrun import tables
from agent_gym.speedrun.presets import PRESETS

HISTORY = ROOT / "benchmarks" / "history"


def seeds_of(text: str) -> set[int]:
    """Read "0, 2 to 5" as {0, 2, 3, 4, 5}."""
    found = set[int]()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_seeds_are_read_as_pages_write_them() -> None:
    assert seeds_of("0, 2 to 5") == {0, 2, 3, 4, 5} and seeds_of("22 to 24, 28") == {22, 23, 24, 28}


def test_a_mean_with_seeds_that_chose_says_so() -> None:
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`, [^|]*?, ((?:\d+(?: to \d+)?(?:, )?)+) \|", page, re.MULTILINE)
    rows = [(name, seeds) for name, seeds in rows if name in PRESETS]
    assert len(rows) >= 5, "the table of presets has its seeds in the first column"
    (said,) = re.findall(r"^- .*The seeds that chose settings are in the means of (.*)\.$", page, re.MULTILINE) or [""]
    admitted = {name: seeds_of(seeds) for name, seeds in re.findall(r"`(\w+)` \(([^)]*)\)", said)}
    for name, seeds in rows:
        both = set(PRESETS[name].chosen_on) & seeds_of(seeds)
        assert both <= admitted.get(name, set()), f"{name}: settings were chosen on {sorted(both)}"


def test_both_sides_have_the_same_number_of_trials() -> None:
    for name, preset in PRESETS.items():
        assert len({len(tried) for tried in preset.trials.values()}) <= 1, f"{name}: {dict(preset.trials)}"


def test_means_leave_out_seeds_that_chose_or_say_that_there_are_no_others() -> None:
    runs = [
        {"preset": "P", "seed": seed, "results": [
            {"policy": "GRPO", "decoding": "greedy", "success": share, "reward": share, "prompts": 4}
        ]}
        for seed, share in ((0, 1.0), (1, 0.2), (2, 0.4))
    ]  # fmt: skip
    found = tables.over_seeds(runs, chosen_on=(0,))
    assert found["seeds"] == [1, 2] and found["results"][0]["success"]["mean"] == pytest.approx(0.3)
    printed = tables.seeds_table(found)
    assert "settings were chosen on seeds 0, which are left out" in printed
    assert "warning: this table: its test tasks are 4 distinct prompts" in printed
    alone = tables.over_seeds(runs[:1], chosen_on=(0,))
    assert not alone["publishable"] and "no result" in tables.seeds_table(alone)
    assert tables.over_seeds(runs)["seeds"] == [0, 1, 2]


def test_recorded_runs_say_what_they_are() -> None:
    for file in sorted(HISTORY.glob("rivals.*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        assert file.name == f"rivals.{run['preset']}.{run['arm']}.seed{run['seed']}.json"
        assert run["settings"]["grpo"]["max_steps"] and run["cpu_seconds"] > 0
        assert all(row["prompts"] >= 64 for row in run["results"]), "fewer prompts show little"
        assert run["dev"]["evaluations"][0]["step"] == 0
