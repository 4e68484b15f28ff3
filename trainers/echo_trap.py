"""Watch a run for the echo trap: the policy repeats itself, its groups agree, and there is nothing left to learn from.

RAGEN (arXiv:2504.20073, section 4) describes how multi-turn training collapses. Early signs: the spread of rewards
within groups falls off a cliff and the entropy drops, while the success rate still looks well. Late sign: the gradient
norm spikes, from where no run came back. `EchoTrapMonitor` looks for these and for repeated text; `EchoTrapCallback`
feeds it from the logs of a trainer.

Healthy runs show some of it too: a policy that solves everything has no spread, one that is sure of itself has little
entropy, one that has learned a format repeats it, and the first successes of a hard task make large gradients. So the
monitor warns, and only the spread, without which every advantage is zero, can stop a run.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from agent_gym.errors import ConfigError

LOG_KEYS = {
    "reward_spread": "reward_std",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "repeated": "rollout/repeated",
}
"""What is watched, and the name it is logged under."""

ACTIONS = ("warn", "stop")

# RAGEN's second version stops a run whose reward variance stays below 10% of the mean of its first 10 steps for 10
# steps. It gives no number for the entropy, for which we take the same.
FALLEN = 0.1
# Ours: half of the distinct n-grams gone. Small rollouts could not reach a lower bound: a single text, the same in
# every episode, is a good part of all there is.
VARIETY = 0.5
# Ours: norms that differ by a factor of three from batch to batch are common, a factor of ten is not.
SPIKE = 10.0

_MEANING = {
    "reward_spread": "the members of a group earn the same, so that their advantages are zero, be it that they all "
    "succeed or all fail",
    "entropy": "the policy hardly explores any more",
    "grad_norm": "if this is not the first success on a hard task, the run will hardly recover",
    "repeated": "the policy writes the same again and again",
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """One finding of the monitor."""

    kind: str  # a key of `LOG_KEYS`
    level: int  # 1 for a warning, 2 when it is critical
    step: int  # optimizer step of the last measurement
    message: str  # what was measured and what it means


class EchoTrapMonitor:
    """Compares a run with its own beginning.

    A measurement is bad if the spread or the entropy is below `FALLEN` of its baseline, if the share of distinct
    n-grams is below `VARIETY` of it, or if the gradient norm is more than `SPIKE` times its running median. Baselines
    are means of the first `warmup` measurements: what a spread or an entropy should be depends on rewards and model.
    `levels` holds the present level of each kind: 0, 1 for a warning, 2 when critical. It falls back to 0 on recovery.

    Args:
        warmup: measurements that make the baseline; nothing is bad before.
        warn_after: bad measurements in a row that make a warning; single ones are noise.
        patience: bad measurements in a row that are critical.

    Raises:
        ConfigError: unless 1 <= warn_after <= patience and 1 <= warmup.
    """

    def __init__(self, warmup: int = 10, warn_after: int = 3, patience: int = 10) -> None:
        if not (warmup >= 1 and 1 <= warn_after <= patience):
            raise ConfigError(
                f"the echo-trap monitor got warmup={warmup}, warn_after={warn_after}, patience={patience}; it needs "
                "warmup >= 1 and 1 <= warn_after <= patience"
            )
        self.warmup, self.warn_after, self.patience = warmup, warn_after, patience
        self.levels = dict.fromkeys(LOG_KEYS, 0)
        self._seen: dict[str, list[float]] = {kind: [] for kind in LOG_KEYS}
        self._bad = dict.fromkeys(LOG_KEYS, 0)  # in a row
        self._reported = dict.fromkeys(LOG_KEYS, 0)

    def update(self, step: int, **measured: float | None) -> list[Alarm]:
        """Take in the measurements of an optimizer step and return what is new; each level is reported once per run.

        Args:
            step: the optimizer step.
            **measured: by key of `LOG_KEYS`: reward_spread (mean over groups of the standard deviation of returns,
                before any group is dropped), entropy (mean per sampled token, nats), grad_norm (before clipping) and
                repeated (`repeated_share` of the rollout). None and NaN mean that there was none.
        """
        alarms = []
        for kind, value in measured.items():
            if value is None or math.isnan(value):
                continue
            bound = self._bound(kind)
            rises = kind in ("grad_norm", "repeated")
            bad = bound is not None and (value > bound if rises else value < bound)
            if math.isfinite(value):
                self._seen[kind].append(value)
            self._bad[kind] = self._bad[kind] + 1 if bad else 0
            level = (self._bad[kind] >= self.warn_after) + (self._bad[kind] >= self.patience)
            self.levels[kind] = level
            if level > self._reported[kind]:
                self._reported[kind] = level
                message = (
                    f"echo trap: at step {step} {LOG_KEYS[kind]} is {value:.3g}, and for {self._bad[kind]} "
                    f"measurements it was {'above' if rises else 'below'} its bound, now {bound:.3g}: {_MEANING[kind]}"
                )
                alarms.append(Alarm(kind, level, step, message))
        return alarms

    def _bound(self, kind: str) -> float | None:
        """Return where a measurement becomes bad; None while there is nothing to compare with."""
        seen = self._seen[kind]
        if len(seen) < self.warmup:
            return None
        if kind == "grad_norm":
            # Long enough that a spike which lasts is critical before it makes up half the window and is the new median.
            median = statistics.median(seen[-5 * self.patience :])
            return SPIKE * median if median > 0 else None
        baseline = statistics.fmean(seen[: self.warmup])
        return 1 - VARIETY * (1 - baseline) if kind == "repeated" else FALLEN * baseline


class EchoTrapCallback(TrainerCallback):
    """Feeds the monitor from the logs, adds `echo_trap/<kind>` (the levels) to them, warns, and may stop the run.

    A trainer inserts it before the callbacks that report, which see what it adds only then. The logs must be the same
    in all processes: one that stops alone leaves the others waiting. A resumed run reads its past measurements from the
    trainer's log history.

    Args:
        action: "warn", or "stop" to also end the training as long as the spread of rewards is critical.
        **limits: arguments of `EchoTrapMonitor`.

    Raises:
        ConfigError: for an unknown action or limits that contradict each other.
    """

    def __init__(self, action: str = "warn", **limits: int) -> None:
        if action not in ACTIONS:
            raise ConfigError(f"the echo-trap action is {action!r}; allowed: {', '.join(ACTIONS)}")
        self.action, self.limits = action, limits
        self.monitor = EchoTrapMonitor(**limits)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in what was logged before a restart, which was warned of then."""
        self.monitor = EchoTrapMonitor(**self.limits)
        for log in state.log_history:
            self._measure(log, log["step"])

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if not any(key in logs for key in LOG_KEYS.values()):  # an evaluation, for example
            return
        messages = [alarm.message for alarm in self._measure(logs, state.global_step)]
        levels = {f"echo_trap/{kind}": level for kind, level in self.monitor.levels.items()}
        logs.update(levels)
        # transformers has put a copy there just before.
        state.log_history[-1].update(levels)
        if self.action == "stop" and self.monitor.levels["reward_spread"] == 2:
            control.should_training_stop = True
            messages.append(
                f"echo trap: training stops at step {state.global_step}, because the groups have agreed for "
                f"{self.monitor.patience} measurements or more. Read the trajectories; if the tasks are solved, take "
                "harder ones, else go back to an earlier checkpoint and lower the learning rate or filter groups"
            )
        if state.is_world_process_zero:
            for message in messages:
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _measure(self, log: Mapping[str, Any], step: int) -> list[Alarm]:
        return self.monitor.update(step, **{kind: log.get(key) for kind, key in LOG_KEYS.items()})
