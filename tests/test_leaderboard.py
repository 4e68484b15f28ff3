"""The page of the leaderboard says what its records say, and the records are of the panels that they name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import leaderboard  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate.cards import read_cards  # noqa: E402
from agent_gym.evaluate.panels import read_panel  # noqa: E402
from agent_gym.rollout import derive_seed  # noqa: E402

# Test panels without a cell. Of the last two another panel has the tasks of the split test.
WITHOUT = {
    "ALFWorld-v0.official-valid_seen": "its games are no package",
    "FunctionCalls-v0.official-multi_turn": "all splits",
    "Tau2-v0.official": "all splits",
}

MODEL_CELLS = 20  # that were played; more may come
RECORDED = [name for name in leaderboard.CELLS if leaderboard.record_of(name).is_file()]


def cards_of(name: str) -> dict[str, Any]:
    return {card["policy"]: card for card in read_cards(leaderboard.record_of(name), left_out=pytest.fail)}


def test_each_test_panel_has_a_cell() -> None:
    files = (ROOT / "registry" / "panels").glob("*.json")
    panels = {file.stem for file in files if not file.stem.endswith((".train", ".validation"))}
    assert panels == leaderboard.CELLS.keys() | WITHOUT.keys()
    recorded = {file.name.removesuffix(".card.json") for file in leaderboard.HISTORY.glob("*.card.json")}
    assert recorded <= leaderboard.CELLS.keys()
    assert sum(leaderboard.MODEL in cards_of(name) for name in recorded) >= MODEL_CELLS


def test_the_page_is_that_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["leaderboard", str(leaderboard.HISTORY), "--title", leaderboard.TITLE]
    assert main([*words, "--output", str(tmp_path / "page.html")]) == 0
    assert "left out" not in capsys.readouterr().err
    assert (tmp_path / "page.html").read_bytes() == leaderboard.PAGE.read_bytes(), "leaderboard.py --page writes it"
    text = leaderboard.DOCS.read_text(encoding="utf-8")
    assert text.endswith(leaderboard.table()), "leaderboard.py --page writes it"


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_is_of_the_first_tasks_of_its_panel(name: str) -> None:
    cell, cards, env_id = leaderboard.CELLS[name], cards_of(name), leaderboard.env_id_of(name)
    whole, panel = read_panel(name.partition(".")[2], env_id), leaderboard.panel_of(name)
    drawn = sorted((index for index, *_ in whole.tasks), key=derive_seed)[: cell.tasks]
    assert [index for index, *_ in panel.tasks] == sorted(drawn)
    assert set(panel.tasks) <= set(whole.tasks), "the hashes are those of the panel"
    players = {"random", "expert", *(["script"] if env_id in leaderboard.baselines.SCRIPTS else [])}
    assert cards.keys() <= players | ({leaderboard.MODEL} if cell.model else set())
    assert cards == leaderboard.recorded(name), "under the limits of the cell"
    for card in cards.values():
        assert card["panel"] == {**vars(panel), "tasks": cell.tasks}
        assert card["counts"]["asked"] == card["counts"]["played"] == cell.tasks
        assert card["counts"]["prompts"] == panel.prompts and not card["failures"]
        success = card["measures"]["episode/success"]
        assert success["low"] <= success["value"] <= success["high"]
    if leaderboard.MODEL in cards:
        card = cards[leaderboard.MODEL]
        assert card["model"]["name"] == "SmolLM2-135M-Instruct" and len(card["model"]["sha256"]) == 64
        assert 0 < card["seconds"]["cpu"] <= leaderboard.MOST_CPU
        assert card["decoding"]["temperature"] == 0 and card["tokens"]["sampled"] > 0


def test_a_script_that_raises_is_named_and_the_next_cell_is_played(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("def attack(opening):\n    yield from {}['page']\n")
    cells = ["Sums-v0.test", "Bandit-v0.test"]
    env_ids = [leaderboard.env_id_of(name) for name in cells]
    monkeypatch.setattr(leaderboard, "MODEL", tiny_model)
    monkeypatch.setattr(leaderboard, "HISTORY", tmp_path)
    monkeypatch.setattr(leaderboard, "CELLS", {name: leaderboard.Cell(2) for name in cells})
    monkeypatch.setattr(leaderboard.baselines, "SCRIPTS", dict.fromkeys(env_ids, script))
    leaderboard.play(cells, ["script", "random"], tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert f"Sums-v0.test, script: left out: the script {script} raised KeyError: 'page'" in lines
    assert [line.partition(":")[0] for line in lines] == [
        f"{name}, {who}" for name in cells for who in ("script", "random")
    ]
    assert all((tmp_path / f"{name}.card.json").is_file() for name in cells)


def test_a_cell_is_repeated_by_one_command(tiny_model: str, tmp_path: Path) -> None:
    words = leaderboard.command("Bandit-v0.test").split()
    assert words[:2] == ["agent-gym", "eval"] and words[-2] == "--output"
    file = tmp_path / "cell.jsonl"
    players = slice(words.index("--policy"), words.index("--max_turn_tokens"))
    words[players] = ["--policy", "random", "expert", "--tokenizer", tiny_model]
    words[words.index("--panel") + 1] = str(ROOT / words[words.index("--panel") + 1])
    assert main([*words[1:-1], str(file)]) == 0
    found = {card["policy"]: card for card in read_cards(file.with_suffix(".card.json"))}
    for player, card in cards_of("Bandit-v0.test").items():
        if player in found:
            mine = found[player]
            assert mine["measures"]["episode/success"] == card["measures"]["episode/success"]
            assert mine["panel"] == card["panel"] and mine["decoding"]["limits"] == card["decoding"]["limits"]
    assert found.keys() == {"random", "expert"}
