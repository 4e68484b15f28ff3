"""Training ends where the validation curve is flat, and not before there is a curve."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

from agent_gym.errors import ConfigError
from agent_gym.trainers.patience import Patience, flat


@pytest.mark.parametrize(
    ("curve", "n", "ends"),
    [
        ([0.1, 0.2, 0.3], 2, False),  # too short
        ([0.1, 0.2, 0.3, 0.4], 2, False),  # rises
        ([0.3, 0.4, 0.3, 0.4], 2, True),  # flat
        ([0.1, 0.9, 0.4, 0.5, 0.6, 0.5], 3, False),  # one lucky evaluation is no plateau
        ([0.5, 0.6, 0.4, 0.3], 2, True),  # falls
        ([0.0, 0.0], 1, True),
    ],
)
def test_a_curve_is_flat_where_one_half_is_no_better_than_the_one_before(
    curve: list[float], n: int, ends: bool
) -> None:
    assert flat(curve, n) == ends


def test_it_stops_the_trainer_at_the_first_flat_stretch() -> None:
    patience, args = Patience(2), SimpleNamespace(eval_strategy="steps")
    state, control = SimpleNamespace(log_history=[], global_step=0), SimpleNamespace(should_training_stop=False)
    patience.on_train_begin(args, state, control)
    stopped = []
    for step, success in enumerate([0.1, 0.3, 0.5, 0.6, 0.6, 0.5]):
        state.log_history += [{"loss": 1.0}, {"eval_success": success}]
        state.global_step = 10 * step
        patience.on_evaluate(args, state, control)
        stopped.append(control.should_training_stop)
    assert stopped == [False, False, False, False, False, True] and patience.stopped_at == 50


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="patience is 0; it must be at least 1"):
        Patience(0)
    with pytest.raises(ConfigError, match="eval_strategy is 'no'"):
        Patience(2).on_train_begin(SimpleNamespace(eval_strategy="no"), None, None)
