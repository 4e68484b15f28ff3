"""Bounded importance weights between the engine and the trainer, against the definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agent_gym.trainers.losses import engine_ratio, mismatch_kl  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

MODES = choices(AgentSettings, "vllm_importance_sampling_mode")

NAN = float("nan")
LOGPS = torch.tensor([[-1.0, -2.0, -3.0, -9.0], [-1.0, -1.0, -1.0, -1.0]])
ENGINE = torch.tensor([[-2.0, -2.0, -5.0, -1.0], [-1.5, -0.5, 0.0, 7.0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()


def ratio(**options: Any) -> list[list[float]]:
    return engine_ratio(LOGPS, ENGINE, MASK, **options).tolist()


def close(got: list[list[float]], expected: list[list[float]]) -> None:
    assert [pytest.approx(row, rel=1e-6) for row in expected] == got


def test_token_truncate_clamps_each_token() -> None:
    e = math.e
    close(ratio(high=3.0), [[e, 1, 3, 1], [e**0.5, e**-0.5, 1, 1]])
    close(ratio(low=0.9, high=2.0), [[2, 1, 2, 1], [e**0.5, 0.9, 1, 1]])


def test_token_mask_drops_tokens_outside() -> None:
    e = math.e
    close(ratio(mode="token_mask", high=3.0), [[e, 1, 0, 1], [e**0.5, e**-0.5, 1, 1]])
    close(ratio(mode="token_mask", low=0.7, high=None), [[e, 1, e**2, 1], [e**0.5, 0, 1, 1]])


def test_sequence_modes_take_the_product_over_sampled_tokens() -> None:
    close(ratio(mode="sequence_truncate", high=30.0), [[math.e**3], [1.0]])
    close(ratio(mode="sequence_truncate", high=3.0), [[3.0], [1.0]])
    close(ratio(mode="sequence_mask", high=3.0), [[0.0], [1.0]])


def test_a_missing_engine_logprob_counts_as_no_difference() -> None:
    engine = ENGINE.clone()
    engine[0, 0] = NAN
    assert engine_ratio(LOGPS, engine, MASK)[0].tolist() == pytest.approx([1.0, 1.0, 3.0, 1.0])
    sequence = engine_ratio(LOGPS, engine, MASK, mode="sequence_truncate", high=30.0)
    assert sequence.tolist() == [[pytest.approx(math.e**2)], [pytest.approx(1.0)]]


def test_tokens_of_the_world_count_for_nothing_whatever_the_engine_says() -> None:
    engine = torch.where(MASK, ENGINE, torch.full_like(ENGINE, NAN))
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        assert torch.equal(engine_ratio(LOGPS, engine, MASK, mode=mode), engine_ratio(LOGPS, ENGINE, MASK, mode=mode))


def test_a_long_row_with_rounding_noise_is_kept_by_the_default_and_lost_by_the_whole_row() -> None:
    # 4096 tokens whose logprobs differ by 1e-3, as bf16 engines do: the product is e**4.
    logps, mask = torch.zeros(1, 4096), torch.ones(1, 4096).bool()
    engine = logps - 1e-3
    assert engine_ratio(logps, engine, mask).mean().item() == pytest.approx(1.001, abs=1e-4)
    assert engine_ratio(logps, engine, mask, mode="sequence_mask").item() == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_without_bounds_the_ratio_is_the_ratio(mode: str) -> None:
    tokens = [[math.e, 1.0, math.e**2, 1.0], [math.e**0.5, math.e**-0.5, 1.0, 1.0]]
    expected = [[math.e**3], [1.0]] if mode.startswith("sequence") else tokens
    close(ratio(mode=mode, low=None, high=None), expected)


def test_the_mismatch_is_the_kl_from_the_engine() -> None:
    # Its mean over tokens of the engine is the KL itself: summed here over all tokens of two distributions.
    engine, trainer = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log()
    per_token = mismatch_kl(trainer, engine, torch.ones(2, 3).bool())
    exact = (engine.exp() * (engine - trainer)).sum(1)
    assert torch.allclose((engine.exp() * per_token).sum(1), exact)
    assert (per_token >= 0).all() and mismatch_kl(engine, engine, torch.ones(2, 3).bool()).abs().max() == 0
    unknown = torch.full((1, 3), NAN)
    assert (mismatch_kl(trainer, unknown, torch.ones(1, 3).bool()) == 0).all()


HUGE = {"clamped by vLLM": -9999.0, "minus infinity": -math.inf, "twenty nats in each of forty tokens": None}


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("what", HUGE)
def test_a_ratio_that_overflows_is_bounded_or_dropped_and_never_nan(mode: str, what: str) -> None:
    logps, mask = torch.full((2, 40), -1.0), torch.ones(2, 40).bool()
    mask[:, ::4] = False
    engine = logps.clone()
    engine[0, 5:6] = logps[0, 5] - 20.0 if HUGE[what] is None else HUGE[what]
    if HUGE[what] is None:
        engine[0] = logps[0] - 20.0
    got = engine_ratio(logps, engine, mask, mode=mode, high=3.0)
    assert torch.equal(got, trl_ratio(logps, engine, mask, mode, None, 3.0))
    assert got.isfinite().all() and (got[1] == 1.0).all()
    assert got[0].max() == 3.0 if mode.endswith("truncate") else got[0].min() == 0.0
    if mode.endswith("mask"):
        # Without an upper bound everything is inside that is a number.
        free = engine_ratio(logps, engine, mask, mode=mode, low=0.5, high=None)
        assert free.isfinite().all()


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_weights_are_trls(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for low, high in ((None, 3.0), (0.5, 2.0), (0.9, None)):
        logps = -torch.rand(16, 12, generator=generator) * 3
        engine = logps + torch.randn(16, 12, generator=generator) * 0.5
        mask = torch.rand(16, 12, generator=generator) < 0.7
        odd = torch.rand(16, 12, generator=generator)
        engine[odd < 0.05], engine[odd > 0.98] = NAN, -math.inf
        if high is None:
            engine = engine.nan_to_num(neginf=-3.0)
        got = engine_ratio(logps, engine, mask, mode=mode, low=low, high=high)
        assert torch.equal(got, trl_ratio(logps, engine, mask, mode, low, high))


def trl_ratio(logps: Any, engine: Any, mask: Any, mode: str, low: float | None, high: float | None) -> Any:
    """What trl 1.16 computes in `_generate_and_score_completions`."""
    difference = torch.nan_to_num((logps - engine) * mask, nan=0.0)
    ratio = torch.exp(difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return ratio.masked_fill((ratio < least) | (ratio > most), value=0.0)
