"""The files of a training run carry what the viewer colours tokens by."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")
from trainer_tools import make_trainer  # noqa: E402

from agent_gym.rollout import read_trajectories  # noqa: E402


@pytest.mark.parametrize("ppo", [False, True])
def test_trajectories_carry_the_credit_of_each_sampled_token(tmp_path: Path, ppo: bool) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, trajectories_per_step=4, ppo=ppo)
    trainer.train()
    # The second rollout: a fresh critic says 0 everywhere.
    _, file = sorted((tmp_path / "trajectories").iterdir())
    batch = trainer._generated
    mask = batch["action_mask"]
    rows = [row for record in read_trajectories(file) for row in record["rows"]]
    assert len(rows) >= 4
    for name, laid in (("advantages", "advantages"), ("values", "old_values")):
        if name == "values" and not ppo:
            assert all(name not in row for row in rows)
            continue
        written: list[float] = []
        for row in rows:
            inside = {i for start, stop, source, _ in row["spans"] if source == "agent" for i in range(start, stop)}
            assert all(value == 0.0 for i, value in enumerate(row[name]) if i not in inside)
            written += [round(value, 4) for i, value in enumerate(row[name]) if i in inside]
        known = {round(value, 4) for value in batch[laid][mask].tolist()}
        assert written and any(written)
        assert all(any(abs(value - other) < 2e-4 for other in known) for value in written)
