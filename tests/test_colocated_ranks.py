"""Training with vLLM inside each of two processes, each rank with its own engine and its own episodes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trainer_tools import distance, in_ranks, make_trainer, weights  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def trained(folder: str, options: dict[str, Any]) -> tuple[Any, list[float], str]:
    trainer = make_trainer(folder, policy=None, max_steps=2, **options)
    trainer.train()
    policy = trainer.runner.policy
    policy.close()
    logs = trainer.state.log_history
    gaps = [log["sampling/logp_difference_max"] for log in logs if "sampling/logp_difference_max" in log]
    return weights(trainer.model), gaps, type(policy).__name__


def test_two_ranks_with_an_engine_each_train_as_one_process(tmp_path: Path) -> None:
    here = {"per_device_train_batch_size": 8}
    plain, _, _ = trained(str(tmp_path / "plain"), here)
    [(alone, _, _)] = in_ranks(trained, 1, str(tmp_path / "one"), {**here, "use_vllm": True}, timeout_s=600)
    options = {"use_vllm": True, "per_device_train_batch_size": 4}
    pair = in_ranks(trained, 2, str(tmp_path / "two"), options, timeout_s=600)
    (one, gaps, name), (other, _, _) = pair
    assert name == "VLLMPolicy" and distance(one, other) == 0.0
    # The same tasks and seeds: the engines draw the same tokens, up to rounding of their logits.
    assert distance(one, alone) < 1e-5 and distance(one, plain) < 1e-5
    assert distance(one, weights(make_trainer(tmp_path / "fresh").model)) > 1e-3, "it trained"
    assert len(gaps) == 2 and max(gaps) < 1e-5
