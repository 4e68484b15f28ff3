"""Watch a run for the echo trap: the policy repeats itself, its groups agree, and no advantage is left to learn from.

RAGEN (arXiv:2504.20073, section 4) describes how multi-turn training collapses. There are early signs: the spread of
rewards within groups falls steeply and the entropy drops, while the success rate still looks good. There is a late
sign: the gradient norm spikes, and no run of the paper recovered after it. `EchoTrapMonitor` looks for these signs and
for repeated text. `EchoTrapCallback` passes the logs of a trainer to the monitor. RAGEN-2 (arXiv:2604.06268) adds a
collapse that none of these signs shows: text that no longer depends on its prompt (input_dependence.py, with
`probe_steps`).

A healthy run can show some of the signs too. A policy that solves everything has no spread. A policy that is sure has
little entropy. A policy that has learned a format repeats it. The first successes on a hard task make large gradients.
Therefore the monitor only warns, except for the spread: without a spread every advantage is zero, and this can stop a
run.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

LOG_KEYS = {
    "reward_spread": "reward_std",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "repeated": "rollout/repeated",
    "input_dependence": "probe/mutual_information",
    "reward_gap": "eval_gap",
}
"""The kinds of measurements that the monitor watches, and the name of each in the log."""

WARMUP, WARN_AFTER, PATIENCE = 10, 3, 10
"""The measurements of a baseline, and the bad measurements in a row that make a warning and a critical level."""

# RAGEN's second version stops a run whose reward variance stays for 10 steps below 10% of the mean of its first 10
# steps. The paper gives no number for the entropy; the same number is used here.
FALLEN = 0.1
# This number is ours: half of the distinct n-grams are lost. A small rollout could not reach a lower bound, because a
# single text that is the same in every episode makes up a good part of all n-grams.
VARIETY = 0.5
# This number is ours: norms often differ by a factor of three from batch to batch, and rarely by a factor of ten.
SPIKE = 10.0
# This number is ours: RAGEN-2 shows that mutual information falls before the success does, and gives no bound. Half of
# the baseline is beyond the noise of its 32 responses. A policy that begins below `IGNORES` nats does not yet read its
# prompts.
DEPENDENCE = 0.5
IGNORES = 0.1
# This number is ours: the held-out success that is lost while the training reward is at its best. The confidence
# interval of an evaluation of 200 tasks is 0.07 to either side.
GAP = 0.1
# These numbers are ours: a mean is over the rewards of `RECENT` steps, and a mean within `NEAR` of the range of the
# means counts as the best.
RECENT, NEAR = 5, 0.05

_MEANING = {
    "reward_spread": "the members of a group earn the same, so that their advantages are zero, be it that they all "
    "succeed or all fail",
    "entropy": "the policy hardly explores any more",
    "grad_norm": "if this is not the first success on a hard task, the run will hardly recover",
    "repeated": "the policy writes the same again and again",
    "input_dependence": "what the policy writes depends less and less on its prompt, which entropy does not show",
    "reward_gap": "the training reward is at its best while success on held-out tasks falls: the policy earns what it "
    "should not, or learns its tasks by heart; read its trajectories",
}


class EchoTrapMonitor:
    """Compares a run with its own beginning.

    A measurement is bad in one of these cases:

    - The spread or the entropy is below `FALLEN` of its baseline.
    - The share of distinct n-grams is below `VARIETY` of its baseline.
    - The mutual information of prompts and responses is below `DEPENDENCE` of its baseline.
    - The gradient norm is more than `SPIKE` times its running median.
    - `gap` is above `GAP`.

    A baseline is the mean of the first measurements, because the usual spread and entropy depend on rewards and model.
    `levels` holds the present level of each kind: 0, 1 for a warning, 2 for critical. A level falls back to 0 on
    recovery.
    """

    def __init__(self) -> None:
        self.levels = dict.fromkeys(LOG_KEYS, 0)
        self._seen: dict[str, list[float]] = {kind: [] for kind in LOG_KEYS}
        self._bad = dict.fromkeys(LOG_KEYS, 0)  # bad measurements in a row
        self._reported = dict.fromkeys(LOG_KEYS, 0)
        self._rewards: list[float] = []
        self._means: list[float] = []  # of the last `RECENT` rewards, at each step
        self._best = 0.0  # the best held-out success

    def gap(self, log: Mapping[str, Any]) -> float:
        """Return the held-out success lost since its best evaluation; 0 if the training reward has fallen too."""
        success = log["eval_success"]
        self._best = max(self._best, success)
        span = max(self._means, default=0.0) - min(self._means, default=0.0)
        high = bool(self._means) and self._means[-1] >= max(self._means) - NEAR * span
        return self._best - success if high else 0.0

    def update(self, step: int, log: Mapping[str, Any]) -> list[str]:
        """Take in the log of a step, and return a message for each level that is reached for the first time.

        A value that is absent or NaN was not measured.
        """
        messages = []
        if math.isfinite(reward := log.get("reward", math.nan)):
            self._rewards.append(reward)
            self._means.append(statistics.fmean(self._rewards[-RECENT:]))
        if "eval_success" in log:
            log = {**log, "eval_gap": self.gap(log)}
        for kind, key in LOG_KEYS.items():
            value = log.get(key)
            if value is None or math.isnan(value):
                continue
            bound, rises = self._bound(kind), kind in ("grad_norm", "repeated", "reward_gap")
            bad = bound is not None and (value > bound if rises else value < bound)
            if math.isfinite(value):
                self._seen[kind].append(value)
            self._bad[kind] = self._bad[kind] + 1 if bad else 0
            level = self.levels[kind] = (self._bad[kind] >= WARN_AFTER) + (self._bad[kind] >= PATIENCE)
            if level > self._reported[kind]:
                self._reported[kind] = level
                messages.append(
                    f"echo trap: at step {step} {key} is {value:.3g}, and for {self._bad[kind]} measurements it was "
                    f"{'above' if rises else 'below'} its bound, now {bound:.3g}: {_MEANING[kind]}"
                )
        return messages

    def _bound(self, kind: str) -> float | None:
        """Return the value at which a measurement becomes bad; None as long as a baseline is missing."""
        if kind == "reward_gap":
            return GAP
        seen = self._seen[kind]
        if len(seen) < WARMUP:
            return None
        if kind == "grad_norm":
            # The window is so long that a lasting spike is critical before it fills half of the window and becomes the
            # median.
            median = statistics.median(seen[-5 * PATIENCE :])
            return SPIKE * median if median > 0 else None
        baseline = statistics.fmean(seen[:WARMUP])
        if kind == "input_dependence":
            return DEPENDENCE * baseline if baseline >= IGNORES else None
        return 1 - VARIETY * (1 - baseline) if kind == "repeated" else FALLEN * baseline


class EchoTrapCallback(TrainerCallback):
    """Passes the logs to the monitor, adds `echo_trap/<kind>` (the levels) to the logs, warns, and may stop the run.

    A trainer inserts this callback before the callbacks that report, because only then do they see the added values.
    The logs must be the same in all processes: a process that stops alone leaves the others waiting. With `stop` the
    training ends when the spread of rewards is critical.
    """

    def __init__(self, stop: bool) -> None:
        self._stop = stop
        self._monitor = EchoTrapMonitor()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in the logs from before a restart; their warnings were given then."""
        self._monitor = EchoTrapMonitor()
        for log in state.log_history:
            self._monitor.update(log["step"], {name: x for name, x in log.items() if isinstance(x, int | float)})

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if not any(key in logs for key in (*LOG_KEYS.values(), "eval_success")):  # such as the summary at the end
            return
        messages = self._monitor.update(state.global_step, logs)
        levels = {f"echo_trap/{kind}": level for kind, level in self._monitor.levels.items()}
        logs.update(levels)
        # transformers has put a copy of the logs into the history just before.
        state.log_history[-1].update(levels)
        if self._stop and self._monitor.levels["reward_spread"] == 2:
            control.should_training_stop = True
            messages.append(
                f"echo trap: training stops at step {state.global_step}, because the groups have agreed for "
                f"{PATIENCE} measurements or more. Read the trajectories; if the tasks are solved, take harder ones, "
                "else go back to an earlier checkpoint and lower the learning rate or filter groups"
            )
        if state.is_world_process_zero:
            for message in messages:
                warnings.warn(message, RuntimeWarning, stacklevel=2)


def attach(trainer: Any) -> None:
    """Attach with `echo_trap`, before the callbacks that report, which then see the added values of the logs."""
    if trainer.args.echo_trap != "off":
        trainer.callback_handler.callbacks.insert(0, EchoTrapCallback(stop=trainer.args.echo_trap == "stop"))
