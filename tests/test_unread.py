"""An estimator that reads success alone, or has a loss of its own, refuses the settings that it would not read."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("trl")

from agent_gym.errors import ConfigError
from agent_gym.trainers import AgentGRPOConfig
from agent_gym.trainers.hooks.judging import check_judge


def config(**settings: Any) -> AgentGRPOConfig:
    return AgentGRPOConfig("run", use_cpu=True, bf16=False, report_to="none", **settings)


UNREAD: dict[str, dict[str, Any]] = {
    "kl_in='reward' changes rewards, and 'raft' reads success": {"beta": 0.1, "kl_in": "reward"},
    "process_norm changes rewards": {"process_norm": "group"},
    "overlong_buffer changes rewards": {"overlong_buffer": 4, "max_turn_tokens": 16},
    "loss_type is 'cispo', and 'raft' has the loss 'reinforce'": {"loss_type": "cispo", "epsilon_high": 5.0},
    "mode is 'in_ratio', and the loss of 'raft' has no probability ratio": {
        "vllm_importance_sampling_mode": "in_ratio"
    },
}


@pytest.mark.parametrize("message", UNREAD)
def test_settings_that_would_be_lost_are_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        config(advantage_estimator="raft", **UNREAD[message])
    config(**UNREAD[message])  # which GRPO reads


def test_what_is_read_is_allowed() -> None:
    assert config(advantage_estimator="raft", beta=0.1).policy_loss == "reinforce"  # the KL is in the loss
    assert config(advantage_estimator="raft", loss_type="reinforce").policy_loss == "reinforce"
    assert config(advantage_estimator="raft_pp", vllm_importance_sampling_mode="in_ratio").policy_loss == "clip"
    assert config(advantage_estimator="grpo", loss_type="reinforce").policy_loss == "reinforce"
    assert config(advantage_estimator="reinforce", beta=0.1, kl_in="reward").policy_loss == "reinforce"
    with pytest.raises(ConfigError, match="leave it out, or take raft_pp"):
        config(advantage_estimator="reinforce", loss_type="cispo", epsilon_high=5.0)


def test_a_judge_whose_score_would_not_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="'raft_pp' reads success alone: leave the judge out"):
        check_judge(None, config(advantage_estimator="raft_pp"))  # type: ignore[arg-type]
