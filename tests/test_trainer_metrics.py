"""Metrics of several processes are those of all their episodes together."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from trainer_tools import in_ranks, make_trainer  # noqa: E402

from agent_gym.evaluate import episode_metrics  # noqa: E402
from agent_gym.rollout import Episode, EpisodeSpec, Failure, Step  # noqa: E402
from agent_gym.trainers.metrics import RunningMeans, eval_metrics, mean_metrics, merge_means  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

MODES = choices(AgentSettings, "vllm_importance_sampling_mode")

TOOLS = [{"function": {"name": "add"}}]


def make_episode(kind: tuple[int, bool, int]) -> Episode:
    """Build an episode with so many turns, a rare reward term or not, and so many calls in each turn."""
    turns, rare, n_calls = kind
    calls = [{"name": "add", "arguments": {}, "error": i == 0, "seconds": 0.5 + i} for i in range(n_calls)]
    terms = {"usual": 1.0} | ({"rare": 2.0} if rare else {})
    steps = [Step(0, i, i + 1, "a", "o", 1.0, terms, calls, {}, None, "stop", 0.0) for i in range(turns)]
    return Episode(EpisodeSpec("Toy/None-v0"), steps=steps, tools=TOOLS, success=rare, truncated=not rare)


KINDS = st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 2)), max_size=4)


@given(st.lists(KINDS, min_size=1, max_size=4))
def test_merging_shares_gives_the_metrics_of_the_whole(shares: list[list[tuple[int, bool, int]]]) -> None:
    parts = [[make_episode(kind) for kind in share] for share in shares]
    whole = episode_metrics([episode for part in parts for episode in part])
    merged = merge_means([(episode_metrics(part), len(part)) for part in parts])
    assert merged == pytest.approx(whole)


def test_failed_episodes_count_as_failed_and_as_nothing_else() -> None:
    broken = make_episode((3, False, 1))
    broken.failure = Failure("EnvFailure", "gone")
    episodes = [make_episode((1, True, 0)), broken, make_episode((2, False, 0))]
    assert mean_metrics(episodes) == episode_metrics([episodes[0], episodes[2]])
    metrics = eval_metrics(episodes)
    assert (metrics["episodes"], metrics["failed"], metrics["success"], metrics["reward"]) == (2, 1, 0.5, 1.5)
    assert 0.0 < metrics["success_low"] < 0.5 < metrics["success_high"] < 1.0


def test_no_episode_at_all_is_no_success_and_no_knowledge() -> None:
    metrics = eval_metrics([])
    assert (metrics["success"], metrics["success_low"], metrics["success_high"], metrics["episodes"]) == (0, 0, 1, 0)


def test_several_environments_are_also_reported_apart() -> None:
    here = [make_episode((1, True, 0)), make_episode((3, False, 2))]
    there = [dataclasses.replace(make_episode((2, True, 1)), spec=EpisodeSpec("Toy/Other-v0"))]
    found = mean_metrics([*here, *there])
    for env_id, part in (("Toy/None-v0", here), ("Toy/Other-v0", there)):
        for name, value in episode_metrics(part).items():
            assert found[f"{env_id}/{name}"] == pytest.approx(value)
    assert (found["Toy/None-v0/reward"], found["Toy/Other-v0/reward"]) == (2.0, 2.0)
    assert found["episode/turns"] == 2.0
    assert not any(name.startswith("Toy") for name in mean_metrics(here))


@given(st.lists(st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5))
def test_means_over_tokens_do_not_depend_on_the_pieces(pieces: list[list[tuple[float, bool]]]) -> None:
    means, accelerator = RunningMeans(), Accelerator(cpu=True)
    for piece in pieces:
        values, mask = (torch.tensor(column) for column in zip(*piece, strict=True))
        means.add("some", values, mask)
        means.add("all", values, torch.ones_like(mask))
        means.largest("most", values.abs(), mask)
    counted = [value for piece in pieces for value, mine in piece if mine]
    everything = [value for piece in pieces for value, _ in piece]
    found = means.pop(accelerator)
    assert found["most"] == pytest.approx(max(map(abs, counted), default=0.0))
    assert found["some"] == pytest.approx(sum(counted) / max(1, len(counted)), abs=1e-5)
    assert found["all"] == pytest.approx(sum(everything) / len(everything), abs=1e-5)
    assert means.pop(accelerator) == {}


def means_of_a_rank() -> dict[str, float]:
    means, accelerator, rank = RunningMeans(), Accelerator(cpu=True), int(os.environ["RANK"])
    means.add("mean", torch.tensor([1.0 + rank, math.inf]), torch.tensor([True, False]))
    means.largest("most", torch.tensor([5.0 - rank, 9.0]), torch.tensor([True, False]))
    return means.pop(accelerator)


def test_means_and_maxima_are_those_of_all_processes() -> None:
    assert in_ranks(means_of_a_rank, 2) == [{"mean": 1.5, "most": 5.0}] * 2


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
