"""Metrics of several processes are those of all their episodes together."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from accelerate import Accelerator  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from trainer_tools import in_ranks, make_trainer  # noqa: E402

from agent_gym.rollout import Episode, EpisodeSpec, Failure, Step  # noqa: E402
from agent_gym.trainers.grpo import mean_metrics  # noqa: E402
from agent_gym.trainers.losses import RunningMeans  # noqa: E402
from agent_gym.trainers.metrics import eval_metrics  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

MODES = choices(AgentSettings, "vllm_importance_sampling_mode")


def make_episode(turns: int, rare: bool, n_calls: int, env_id: str = "Toy/None-v0") -> Episode:
    """Build an episode with so many turns, a rare reward term or not, and so many calls in each turn."""
    calls = [{"name": "add", "arguments": {}, "error": i == 0, "seconds": 0.5 + i} for i in range(n_calls)]
    terms = {"usual": 1.0} | ({"rare": 2.0} if rare else {})
    steps = [Step(0, i, i + 1, "a", "o", 1.0, terms, calls, {}, None, "stop", 0.0) for i in range(turns)]
    tools = [{"function": {"name": "add"}}]
    return Episode(EpisodeSpec(env_id), steps=steps, tools=tools, success=rare, truncated=not rare)


def metrics_of_a_rank() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    Accelerator(cpu=True)
    rank = int(os.environ["RANK"])
    broken = make_episode(3, False, 1)
    broken.failure = Failure("EnvFailure", "gone")
    episodes = [make_episode(1, True, 0), make_episode(4, False, 2)] if rank else [broken, make_episode(1, False, 1)]
    other = [make_episode(2, True, 0, "Toy/Other-v0")] * rank
    means = RunningMeans()
    means.add("mean", torch.tensor([1.0 + rank, math.inf]), torch.tensor([True, False]))
    means.largest("most", torch.tensor([5.0 - rank, 9.0]), torch.tensor([True, False]))
    mixed = mean_metrics(episodes + other)
    return mean_metrics(episodes) | eval_metrics(episodes), mixed, means.pop(Accelerator(cpu=True))


def test_metrics_are_those_of_all_processes_and_failed_episodes_count_as_failed_only() -> None:
    one, other = in_ranks(metrics_of_a_rank, 2)
    assert one == other
    metrics, mixed, means = one
    assert (metrics["episodes"], metrics["failed"]) == (3, 1)
    assert (metrics["success"], metrics["reward"]) == (1 / 3, 2.0)
    assert 0.0 < metrics["success_low"] < 1 / 3 < metrics["success_high"] < 1.0
    assert (metrics["episode/turns"], metrics["reward/rare"], metrics["reward/usual"]) == (2.0, 2 / 3, 2.0)
    assert (metrics["tool/add/calls"], metrics["tool/add/errors"]) == (3.0, 5 / 3)
    # Per call and not per episode: one of 0.5 s, and four pairs of 0.5 s and 1.5 s.
    assert metrics["tool/add/latency"] == pytest.approx((0.5 + 4 * 2.0) / 9)
    assert not any(name.startswith("Toy") for name in metrics)
    assert mixed["episode/turns"] == 2.0
    assert {n: v for n, v in mixed.items() if n.startswith("Toy/None-v0/episode/")} == {
        f"Toy/None-v0/{name}": metrics[name] for name in metrics if name.startswith("episode/")
    }
    assert (mixed["Toy/None-v0/reward"], mixed["Toy/Other-v0/reward"], mixed["Toy/Other-v0/reward/rare"]) == (2, 2, 4)
    assert means == {"mean": 1.5, "most": 5.0}


def test_no_episode_at_all_is_no_success_and_no_knowledge() -> None:
    metrics = eval_metrics([])
    assert (metrics["success"], metrics["success_low"], metrics["success_high"], metrics["episodes"]) == (0, 0, 1, 0)
    assert mean_metrics([]) == {}


@given(st.lists(st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5))
def test_means_over_tokens_do_not_depend_on_the_pieces(pieces: list[list[tuple[float, bool]]]) -> None:
    means, accelerator = RunningMeans(), Accelerator(cpu=True)
    for piece in pieces:
        values, mask = (torch.tensor(column) for column in zip(*piece, strict=True))
        means.add("some", values, mask)
        means.largest("most", values.abs(), mask)
    counted = [value for piece in pieces for value, mine in piece if mine]
    found = means.pop(accelerator)
    assert found["most"] == pytest.approx(max(map(abs, counted), default=0.0))
    assert found["some"] == pytest.approx(sum(counted) / max(1, len(counted)), abs=1e-5)
    assert means.pop(accelerator) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_the_correction_did_is_logged_before_its_bounds(tmp_path: Path, mode: str) -> None:
    high, low = (1.05, 0.9) if mode.startswith("token") else (1.5, 0.5)
    bounds = {"vllm_importance_sampling_clip_max": high, "vllm_importance_sampling_clip_min": low}
    options = {"use_vllm": True, "vllm_importance_sampling_mode": mode, "num_iterations": 2, "max_steps": 1}
    trainer = make_trainer(tmp_path, **bounds, **options)
    trainer.train()
    batch, log = trainer._generated, trainer.state.log_history[0]
    mask = batch["action_mask"]
    off = (batch["old_logps"] - batch["engine_logps"]) * mask
    ratio = (off.sum(1, keepdim=True).expand_as(off) if mode.startswith("sequence") else off).exp()[mask]
    assert log["sampling/ratio_mean"] == pytest.approx(ratio.mean().item(), rel=1e-4)
    assert log["sampling/ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-4)
    outside = ((ratio > high) | (ratio < low)).float().mean().item()
    assert log["sampling/bounded"] == pytest.approx(outside) and 0.1 < outside < 1.0
    assert log["sampling/ratio_max"] > high
    tokens = off[mask].double()
    assert log["sampling/kl"] == pytest.approx((tokens.exp() - 1 - tokens).mean().item(), rel=1e-3)
    assert log["sampling/logp_difference_max"] == pytest.approx(tokens.abs().max().item())
