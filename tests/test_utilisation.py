"""The share of a device that updates use: tokens that were computed, what they need, and which devices are known."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch  # noqa: E402
from trainer_tools import make_trainer  # noqa: E402

from agent_gym.trainers.batch import common_prefixes, micro_batches  # noqa: E402
from agent_gym.trainers.hooks import utilisation  # noqa: E402
from agent_gym.trainers.hooks.utilisation import peak_of, recomputed  # noqa: E402


def test_the_log_has_the_operations_of_the_tokens_that_were_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilisation, "peak_of", lambda device: 1e9)
    trainer = make_trainer(tmp_path, max_steps=1, num_iterations=1, micro_batch_size=64)
    frozen = trainer.model.get_input_embeddings().weight
    batches: list[Any] = []
    lay_out = trainer._lay_out
    trainer._lay_out = lambda episodes: batches.append(lay_out(episodes)) or batches[0]
    trainer.train()
    assert trainer.shares_prefixes
    rows = [*zip(batches[0]["input_ids"].tolist(), batches[0]["attention_mask"].sum(1).tolist(), strict=True)][:-1]
    beginnings = {tuple(ids[: k + 1]) for ids, length in rows for k in range(length)}
    per_token = 6 * sum(weight.numel() for weight in trainer.model.parameters())
    log = trainer.state.log_history[0]
    assert log["perf/mfu"] * log["time/update"] * 1e9 == pytest.approx(per_token * len(beginnings))
    assert log["update/tokens_computed"] == len(beginnings) < log["update/tokens"] == sum(length for _, length in rows)
    frozen.requires_grad_(False)
    meter = utilisation.UpdateMeter(trainer.model, torch.device("cpu"))
    meter.after_forward(torch.tensor([3, 4, 4]))
    with torch.no_grad():
        meter.after_forward(torch.arange(100))  # scores, which are no part of the update
    assert meter.after_backward({}, 0.5)["perf/mfu"] == pytest.approx(2 * (per_token - 2 * frozen.numel()) / 0.5e9)
    assert meter.after_backward({}, 0.5)["perf/mfu"] == 0.0


@pytest.mark.parametrize("limit", [40, 4000])
def test_a_group_with_a_long_opening_is_one_pass(tmp_path: Path, limit: int) -> None:
    """A group of four whose opening has more tokens than the limit, and a limit that holds all of it."""
    trainer = make_trainer(tmp_path, max_steps=2, num_iterations=1, micro_batch_tokens=limit)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
    assert trainer.shares_prefixes and trainer.state.log_history[0]["update/tokens_computed"]
    assert not [one for one in told if "openings span several passes" in str(one.message)]


def test_openings_that_span_passes_are_told_with_the_flag_that_changes_it() -> None:
    """Two groups of eight rows, whose answers are as long as their openings."""
    rows = [[1000 * group + n for n in range(30)] + [row] * 30 for group in range(2) for row in range(8)]
    ids = torch.tensor(rows)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "episode_of": torch.arange(16)}
    order = sorted(range(16), key=rows.__getitem__)
    common = common_prefixes(rows, order)

    def computed(limit: int) -> int:
        passes = micro_batches([60] * 16, max_tokens=limit, order=order, common=common)
        return sum(30 * len({rows[i][0] for i in one}) + 30 * len(one) for one in passes)

    assert computed(40) == 660
    line = recomputed(batch, computed(40))
    assert "computes 660 tokens, of which 540 differ" in line
    needed = int(re.findall(r"--micro_batch_tokens (\d+)", line)[0])
    assert computed(needed) == 540 and recomputed(batch, 540) == ""


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA RTX A1000", None), ("NVIDIA L40", 181e12), ("NVIDIA L4", 121e12), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_a_device_is_known_by_its_name(name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_of(torch.device("cuda", 0)) == peak and peak_of(torch.device("cpu")) is None
