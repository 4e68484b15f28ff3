"""Watch a run for the echo trap: the policy repeats itself, its groups agree, and there is nothing left to learn from.

RAGEN (arXiv:2504.20073, section 4) describes how multi-turn training collapses. Early signs: the spread of rewards
within groups falls off a cliff and the entropy drops, while the success rate still looks well. Late sign: the gradient
norm spikes, from where no run came back. `EchoTrapMonitor` looks for these and for repeated text; `EchoTrapCallback`
feeds it from the logs of a trainer. RAGEN-2 (arXiv:2604.06268) adds a collapse that none of these shows: text that does
not depend on its prompt any more (input_dependence.py, with `probe_steps`).

Healthy runs show some of it too: a policy that solves everything has no spread, one that is sure of itself has little
entropy, one that has learned a format repeats it, and the first successes of a hard task make large gradients. So the
monitor warns, and only the spread, without which every advantage is zero, can stop a run.
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
"""What is watched, and the name it is logged under."""

WARMUP, WARN_AFTER, PATIENCE = 10, 3, 10
"""Measurements that make a baseline, and bad ones in a row that make a warning and a critical level."""

# RAGEN's second version stops a run whose reward variance stays below 10% of the mean of its first 10 steps for 10
# steps. It gives no number for the entropy, for which we take the same.
FALLEN = 0.1
# Ours: half of the distinct n-grams gone. Small rollouts could not reach a lower bound: a single text, the same in
# every episode, is a good part of all there is.
VARIETY = 0.5
# Ours: norms that differ by a factor of three from batch to batch are common, a factor of ten is not.
SPIKE = 10.0
# Ours: RAGEN-2 shows that mutual information falls before the success does and gives no bound. Half is beyond the
# noise of its 32 responses. A policy that begins below `IGNORES` nats does not read its prompts yet.
DEPENDENCE = 0.5
IGNORES = 0.1
# Ours: held-out success that is lost while the training reward is at its best. The interval of an evaluation of 200
# tasks is 0.07 to either side.
GAP = 0.1
# Ours: rewards of as many steps make a mean, and what is within a twentieth of the range of these means is at its best.
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

    A measurement is bad if the spread or the entropy is below `FALLEN` of its baseline, if the share of distinct
    n-grams is below `VARIETY` of it, if the mutual information of prompts and responses is below `DEPENDENCE` of it, if
    the gradient norm is more than `SPIKE` times its running median, or if `gap` is above `GAP`. Baselines are means of
    the first measurements: what a spread or an entropy should be depends on rewards and model. `levels` holds the
    present level of each kind: 0, 1 for a warning, 2 when critical. It falls back to 0 on recovery.
    """

    def __init__(self) -> None:
        self.levels = dict.fromkeys(LOG_KEYS, 0)
        self._seen: dict[str, list[float]] = {kind: [] for kind in LOG_KEYS}
        self._bad = dict.fromkeys(LOG_KEYS, 0)  # in a row
        self._reported = dict.fromkeys(LOG_KEYS, 0)
        self._rewards: list[float] = []
        self._means: list[float] = []  # of the last of them, at each step
        self._best = 0.0  # held-out success

    def gap(self, log: Mapping[str, Any]) -> float:
        """Return the held-out success lost since its best at an evaluation, 0 if the training reward has fallen too."""
        success = log["eval_success"]
        self._best = max(self._best, success)
        span = max(self._means, default=0.0) - min(self._means, default=0.0)
        high = bool(self._means) and self._means[-1] >= max(self._means) - NEAR * span
        return self._best - success if high else 0.0

    def update(self, step: int, log: Mapping[str, Any]) -> list[str]:
        """Take in what was logged at a step, and return a message for each level that is reached for the first time.

        What is absent or NaN was not measured.
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
        """Return where a measurement becomes bad; None while there is nothing to compare with."""
        if kind == "reward_gap":
            return GAP
        seen = self._seen[kind]
        if len(seen) < WARMUP:
            return None
        if kind == "grad_norm":
            # Long enough that a spike which lasts is critical before it makes up half the window and is the new median.
            median = statistics.median(seen[-5 * PATIENCE :])
            return SPIKE * median if median > 0 else None
        baseline = statistics.fmean(seen[:WARMUP])
        if kind == "input_dependence":
            return DEPENDENCE * baseline if baseline >= IGNORES else None
        return 1 - VARIETY * (1 - baseline) if kind == "repeated" else FALLEN * baseline


class EchoTrapCallback(TrainerCallback):
    """Feeds the monitor from the logs, adds `echo_trap/<kind>` (the levels) to them, warns, and may stop the run.

    A trainer inserts it before the callbacks that report, which see what it adds only then. The logs must be the same
    in all processes: one that stops alone leaves the others waiting. With `stop` the training ends when the spread of
    rewards is critical.
    """

    def __init__(self, stop: bool) -> None:
        self._stop = stop
        self._monitor = EchoTrapMonitor()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take in what was logged before a restart, which was warned of then."""
        self._monitor = EchoTrapMonitor()
        for log in state.log_history:
            self._monitor.update(log["step"], log)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if not any(key in logs for key in (*LOG_KEYS.values(), "eval_success")):  # the summary at the end, for example
            return
        messages = self._monitor.update(state.global_step, logs)
        levels = {f"echo_trap/{kind}": level for kind, level in self._monitor.levels.items()}
        logs.update(levels)
        # transformers has put a copy there just before.
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
    """Attach with `echo_trap`, in front of the callbacks that report: they see what it adds to the logs."""
    if trainer.args.echo_trap != "off":
        trainer.callback_handler.callbacks.insert(0, EchoTrapCallback(stop=trainer.args.echo_trap == "stop"))
