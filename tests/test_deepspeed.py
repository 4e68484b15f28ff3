"""ZeRO-2 on the CPU: two ranks with sharded optimizer states end where one plain process does.

DeepSpeed is an extra (`pip install 'agent-gym[deepspeed]'`), and compiles a small extension on first use.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import distance, in_ranks, make_trainer, train, weights  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]

ADAMW: dict[str, Any] = {"learning_rate": 2e-4, "critic_learning_rate": 2e-4, "adam_epsilon": 1e-5}
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo, window": {"num_generations": 4, "learning_rate": 2e-4, "adam_epsilon": 1e-5, "context": "window:1"},
    "ppo": {"ppo": True, **ADAMW, "lam": 0.9},
}
ZERO = {
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
}


def run_rank(folder: str, options: dict[str, Any]) -> Any:
    os.environ.pop("ACCELERATE_USE_CPU", None)  # or accelerate takes its own way of running on CPUs
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]
    config = Path(folder, f"zero{os.environ['RANK']}.json")
    config.write_text(json.dumps(ZERO))
    trainer = make_trainer(folder, deepspeed=str(config), **options)
    trainer.train()
    assert trainer.is_deepspeed_enabled and trainer.accelerator.num_processes == 2
    return weights(trainer.model)


@pytest.mark.parametrize("name", SETTINGS)
def test_two_ranks_with_zero_2_equal_one_process(tmp_path: Path, name: str) -> None:
    # Without clipping: DeepSpeed clips policy and critic as one, the plain trainer each by itself.
    common: dict[str, Any] = {**SETTINGS[name], "max_grad_norm": 0.0, "optim": "adamw_torch"}
    half = {**common, "per_device_train_batch_size": 8, "micro_batch_size": 3}
    one, other = in_ranks(run_rank, 2, str(tmp_path), half)
    assert distance(one, other) == 0.0
    plain = train(tmp_path / "plain", **common, per_device_train_batch_size=16)
    assert distance(plain, one) <= 1e-6
