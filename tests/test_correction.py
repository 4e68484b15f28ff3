"""Bounded importance weights between the engine and the trainer, against the definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agent_gym.trainers.correction import MODES, engine_ratio, mismatch_kl  # noqa: E402

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
