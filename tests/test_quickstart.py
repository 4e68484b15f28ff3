"""The short calls of the notebooks: what they draw is what was logged, and whose token it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")
pytest.importorskip("matplotlib")

from agent_gym import ConfigError  # noqa: E402
from agent_gym.speedrun.quickstart import evaluate, plot, plot_tokens, warm_start  # noqa: E402


def test_a_warm_start_plays_and_its_episodes_are_drawn_token_by_token() -> None:
    learner = warm_start("AgentR1/Bisect-v0", {"size": 16}, steps=2, styles={"newest": 1.0})
    played = evaluate(learner, episodes=1000, temperature=1.0)
    assert played.result.episodes == len(played.records) == 24  # as many as there are
    assert played.result.success == sum(record["success"] for record in played.records) / 24
    row = played.records[0]["rows"][0]
    image = pixels(plot_tokens(played.records))
    assert image.shape[:2] == (24, max(len(record["rows"][0]["token_ids"]) for record in played.records))
    colours = {tuple(image[0, start]) for start, _, source, _ in row["spans"] if source == "agent"}
    others = {tuple(image[0, start]) for start, _, source, _ in row["spans"] if source != "agent"}
    assert len(colours) == 1 and not colours & others


def test_a_heat_map_has_a_colour_for_advantages_of_the_policy_alone() -> None:
    spans = [[0, 2, "user", -1], [2, 4, "agent:first", 0], [4, 5, "env", 0], [5, 6, "agent:first", 1]]
    rows = [{"spans": spans, "advantages": [0.0, 0.0, 1.0, 1.0, 0.0, -1.0]}, {"spans": spans}]
    image = pixels(plot_tokens([{"rows": rows}]))
    world, good, bad, none = (tuple(image[at]) for at in ((0, 0), (0, 2), (0, 5), (1, 2)))
    assert tuple(image[0, 4]) == world and tuple(image[0, 3]) == good
    assert len({world, good, bad, none}) == 4


def test_a_curve_is_what_was_logged(tmp_path: Path) -> None:
    history = [{"step": n, "reward": n / 10, "entropy": 1.0, "episode/success": 0.5} for n in (1, 2, 3)]
    history.append({"step": 3, "eval_success": 0.4, "eval_success_low": 0.3, "eval_success_high": 0.5})
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=history))
    figure = plot(trainer)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["success on held-out tasks", "training success", "training reward", "entropy"]
    (line,) = plot(trainer, "reward").axes[0].lines
    assert line.get_xydata().tolist() == [[1, 0.1], [2, 0.2], [3, 0.3]]
    figure.savefig(tmp_path / "curve.png")
    with pytest.raises(ConfigError, match=r"not logged rewrd; it has: .*reward"):
        plot(trainer, "rewrd")


def pixels(figure: Any) -> Any:
    """The cells of a drawing, (rows, tokens, 3)."""
    return np.asarray(figure.axes[0].images[0].get_array())
