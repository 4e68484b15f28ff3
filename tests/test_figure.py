"""The picture of a speedrun: its numbers are those of the runs, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from cli_tools import complaint  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.speedrun.figure import draw_figure  # noqa: E402


def leave(
    folder: Path, seed: int, success: list[float], *, steps: tuple[int, ...] = (0, 20, 40), **changes: Any
) -> None:
    """Write the part of a results.json that is drawn."""
    evaluations = [
        {
            "step": step,
            "success": rate,
            "low": 0.0,
            "high": 1.0,
            "turns": 3.0 - rate,
            "tool_calls": 0.0,
            "tokens": 9 + rate,
        }
        for step, rate in zip(steps, success, strict=True)
    ]
    controls = [{"policy": name, "success": success[0] + 0.01 * k, "low": 0.0, "high": 1.0}
                for k, name in enumerate(("more SFT", "best-of-8 self-imitation"), 1)]  # fmt: skip
    dev = {"split": "validation", "tasks": 90, "decoding": "greedy", "start": "imitation"}
    dev |= {"evaluations": evaluations, "controls": controls}
    start = {"demonstrator": {"episodes": 3000, "success": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    run = {"preset": "AgentR1/Bisect-v0", "seed": seed, "dev": dev, "start": start, **changes}
    (folder / f"seed_{seed}").mkdir(parents=True)
    (folder / f"seed_{seed}" / "results.json").write_text(json.dumps(run))


def test_a_picture_of_three_seeds_shows_means_and_students_band(tmp_path: Path, capsys: Any) -> None:
    for seed, end in ((10, 0.6), (2, 0.5), (0, 0.7)):
        leave(tmp_path, seed, [0.3, 0.4, end])
    found, files = draw_figure(tmp_path, tmp_path / "new" / "a.png")
    assert found["seeds"] == [0, 2, 10] and found["steps"] == [0, 20, 40]
    # A standard deviation of 0.1 over three seeds and the quantile 4.3027 for two degrees of freedom.
    half = 4.3027 * 0.1 / 3**0.5
    assert found["success"][2] == {
        "mean": pytest.approx(0.6), "low": pytest.approx(0.6 - half, abs=1e-4),
        "high": pytest.approx(0.6 + half, abs=1e-4), "values": [0.7, 0.5, 0.6],
    }  # fmt: skip
    assert found["success"][0] == {"mean": 0.3, "low": None, "high": None, "values": [0.3, 0.3, 0.3]}, "all agree"
    assert [one["mean"] for one in found["turns"]] == pytest.approx([2.7, 2.6, 2.4]) and "tool_calls" not in found
    assert [one["mean"] for one in found["tokens"]] == pytest.approx([9.3, 9.4, 9.6])
    lines = {name: pytest.approx(one["mean"]) for name, one in found["lines"].items()}
    controls = {"more SFT": 0.31, "best-of-8 self-imitation": 0.32}
    assert lines == {"start: imitation": 0.3, **controls, "demonstrator, on training tasks": 0.5}

    picture, vectors = files
    assert files == [tmp_path / "new" / "a.png", tmp_path / "new" / "a.svg"]
    assert picture.read_bytes().startswith(b"\x89PNG") and "<svg" in vectors.read_text()
    before = vectors.read_bytes()
    assert main(["figure", str(tmp_path), "--output", str(picture)]) == 0
    assert capsys.readouterr().out == f"seeds 0, 2, 10\n{picture}\n{vectors}\n"
    assert vectors.read_bytes() == before, "the same numbers make the same picture"


def test_one_seed_has_no_band_and_the_command_says_so(tmp_path: Path, capsys: Any) -> None:
    leave(tmp_path, 3, [0.2, 0.4, 0.6])
    found, _ = draw_figure(tmp_path)
    assert all(one["low"] is None and one["high"] is None for one in found["success"])
    assert main(["figure", str(tmp_path)]) == 0
    assert "one seed, 3: the picture has no band" in capsys.readouterr().out
    (alone,) = tmp_path.glob("seed_3")
    assert draw_figure(alone, tmp_path / "b.png")[0] == found, "the folder of a run is as good as that of its seeds"


def test_a_run_that_ended_at_a_flat_curve_keeps_its_last_policy(tmp_path: Path) -> None:
    leave(tmp_path, 0, [0.1, 0.2, 0.6])
    leave(tmp_path, 1, [0.3, 0.4], steps=(0, 20))
    with pytest.raises(ConfigError, match=r"seed 0 has \[0, 20, 40\], seed 1 has \[0, 20\]"):
        draw_figure(tmp_path)
    file = tmp_path / "seed_1" / "results.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "dev": {**found["dev"], "flat_at": 20}}))
    assert draw_figure(tmp_path)[0]["success"][2]["values"] == [0.6, 0.4]


def test_what_cannot_be_drawn_is_named(tmp_path: Path, capsys: Any) -> None:
    line = complaint(capsys, "figure", str(nothing := tmp_path / "not a thing"))
    assert (
        "thing holds no finished run" in line and f"agent-gym speedrun --seeds 0,1,2 --output_dir '{nothing}'" in line
    )
    leave(tmp_path / "steps", 0, [0.1, 0.2, 0.3])
    leave(tmp_path / "steps", 1, [0.1, 0.2], steps=(0, 30))
    line = complaint(capsys, "figure", str(tmp_path / "steps"))
    assert "the runs differ in their steps: seed 0 has [0, 20, 40], seed 1 has [0, 30]; draw runs of one preset" in line
    leave(tmp_path / "presets", 0, [0.1, 0.2, 0.3])
    leave(tmp_path / "presets", 1, [0.1, 0.2, 0.3], preset="AgentR1/GSM8K-v0")
    with pytest.raises(ConfigError, match="differ in their environment: seed 0 has AgentR1/Bisect"):
        draw_figure(tmp_path / "presets")
    leave(tmp_path / "old", 0, [0.1, 0.2, 0.3], dev={})
    with pytest.raises(ConfigError, match="holds no evaluations during RL: it is of an earlier version"):
        draw_figure(tmp_path / "old")
    (tmp_path / "old" / "seed_0" / "results.json").write_text('{"preset": "Agent')
    assert "seed_0/results.json is not whole: Unterminated string" in complaint(capsys, "figure", str(tmp_path / "old"))
    leave(tmp_path / "one", 0, [0.1, 0.2, 0.3])
    with pytest.raises(ConfigError, match="cannot write"):
        draw_figure(tmp_path / "one", tmp_path / "one" / "seed_0" / "results.json" / "a.png")
