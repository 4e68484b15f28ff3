"""Which engine samples: vLLM where it is installed and can serve the policy, else transformers; what was asked for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from peft import IA3Config, LoraConfig  # noqa: E402
from trainer_tools import RandomPolicy, make_trainer, settings  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies.transformers import TransformersPolicy  # noqa: E402
from agent_gym.trainers import engine  # noqa: E402
from agent_gym.trainers.engine import check_sharded, wants_vllm  # noqa: E402

DORA = LoraConfig(use_dora=True, target_modules=["q_proj"])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: object())


def test_vllm_is_the_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for there in (True, False):
        monkeypatch.setattr(engine, "find_spec", lambda name, there=there: object() if there else None)
        assert wants_vllm(settings(tmp_path, use_vllm=None)) is there
        assert wants_vllm(settings(tmp_path, use_vllm=True)) and not wants_vllm(settings(tmp_path, use_vllm=False))


@pytest.mark.parametrize(
    "adapter", [DORA, IA3Config(target_modules=["q_proj"], feedforward_modules=[])], ids=["dora", "ia3"]
)
def test_what_vllm_cannot_serve_is_sampled_by_transformers(installed: None, tmp_path: Path, adapter: Any) -> None:
    trainer = make_trainer(tmp_path, policy=None, use_vllm=None, peft_config=adapter)
    with pytest.warns(UserWarning, match="Sampling with transformers, which is slower"):
        assert isinstance(trainer.runner.policy, TransformersPolicy)
    assert trainer.use_vllm is False
    trainer = make_trainer(tmp_path, policy=None, use_vllm=True, peft_config=adapter)
    with pytest.raises(ConfigError, match="use plain LoRA|allowed: LORA"):
        _ = trainer.runner


def test_a_policy_of_the_users_own_is_taken_as_it_is(installed: None, tmp_path: Path) -> None:
    policy = RandomPolicy()
    trainer = make_trainer(tmp_path, policy=policy, use_vllm=None, max_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert trainer.runner.policy is policy and trainer.use_vllm is False


def test_a_model_in_shares_needs_vllm_or_an_engine_of_its_own(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    live = TransformersPolicy.__new__(TransformersPolicy)
    for use_vllm, policy in ((False, None), (None, None), (True, live)):
        with pytest.raises(ConfigError, match="the model is in shares .*--use_vllm true"):
            check_sharded(settings(tmp_path, use_vllm=use_vllm), policy)
    check_sharded(settings(tmp_path, use_vllm=True), None)
    check_sharded(settings(tmp_path, use_vllm=None), RandomPolicy())
