"""`starpo_s="auto"`: StarPO-S (RAGEN, arXiv:2504.20073, section 4) from an early sign of the echo trap on.

StarPO-S trains on the quarter of the groups whose returns differ most, lets the probability ratio rise to 1.28, and has
no KL to the reference model. The paper's early signs are the spread of rewards and the entropy.
"""

from __future__ import annotations

import warnings
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.selection import keep_groups

SIGNS, SHARE, CLIP = ("echo_trap/reward_spread", "echo_trap/entropy"), 0.25, 0.28


class StarPOS(Hook):
    """Reads the levels of the monitor from the logs, which all processes share, and adds `starpo_s` (0 or 1)."""

    on = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._set(any(log.get("starpo_s") for log in state.log_history))  # a resumed run goes back to its checkpoint

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (logs := kwargs["logs"]).keys() >= set(SIGNS):
            seen = " and ".join(name for name in SIGNS if logs[name])
            if seen and not self.on and state.is_world_process_zero:
                warnings.warn(f"StarPO-S begins after step {state.global_step}: {seen}", RuntimeWarning, stacklevel=2)
            self._set(self.on or bool(seen))
            logs["starpo_s"] = state.log_history[-1]["starpo_s"] = float(self.on)

    def _set(self, on: bool) -> None:
        self.on, trainer = on, self.trainer
        if on:
            trainer.beta, trainer.epsilon_high = 0.0, max(trainer.epsilon_high, CLIP)

    def after_select(self, rollout: RolloutBatch) -> None:
        if self.on:
            rollout.groups = set(keep_groups({g: rollout.returns[g] for g in rollout.groups}, SHARE, rollout.source_of))


def attach(trainer: Any) -> None:
    """Attach with `starpo_s`; `ConfigError` if nothing would switch it on, or there is no choice of groups to make."""
    if (args := trainer.args).starpo_s == "auto":
        if args.echo_trap == "off" or args.num_generations == 1 or args.keep_groups < 1 or args.keep_variance:
            needs = "num_generations above 1, no keep_groups and no keep_variance"
            raise ConfigError(f"starpo_s 'auto' needs the warnings of echo_trap (warn or stop) and groups: {needs}")
        trainer.add_callback(StarPOS())
