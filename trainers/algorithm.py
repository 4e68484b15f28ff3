"""The settings of the learning algorithm: credit, loss, which episodes are trained on, and who watches.

They stand apart from the settings of rollouts (config.py) because they are what papers differ in. Where TRL has a name
for something, it keeps that name (`epsilon`, `epsilon_high`, `delta`, `beta`, `scale_rewards`, `num_iterations`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_gym.errors import ConfigError
from agent_gym.trainers.curriculum import TurnCurriculum
from agent_gym.trainers.estimators import PROCESS_NORMS, Credit, Estimator, get_estimator
from agent_gym.trainers.losses import LOSSES, RATIO_LEVELS
from agent_gym.trainers.normalization import NORMALIZATIONS

_TRL_LOSSES = {
    "dapo": "loss_type='clip', loss_normalization='token'",
    "grpo": "loss_type='clip', loss_normalization='sequence'",
    "dr_grpo": "advantage_estimator='dr_grpo', loss_type='clip', loss_normalization='constant'",
}


@dataclass
class AlgorithmConfig:
    """What is learned from an episode, and how."""

    advantage_estimator: str = field(
        default="grpo",
        # Written out, because `--help` reads this file without running it.
        metadata={
            "help": "How credit is given: grpo, dr_grpo, rloo, remax, reinforce_pp, reinforce_pp_baseline, gigpo, gae, "
            "step_gae, bilevel_gae. The last three need a critic."
        },
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount per sampled token."})
    lam: float = field(default=1.0, metadata={"help": "Lambda of the GAE over tokens."})
    step_gamma: float = field(default=1.0, metadata={"help": "Discount per step, also of process rewards."})
    step_lam: float = field(default=1.0, metadata={"help": "Lambda of the GAE over steps."})
    gigpo_step_weight: float = field(default=1.0, metadata={"help": "Weight of GiGPO's step advantage."})
    whiten_advantages: bool = field(
        default=True,
        metadata={"help": "Centre and scale advantages over the batch, in the estimators that do so by definition."},
    )
    process_norm: str | None = field(
        default=None,
        metadata={
            "help": "Credit process rewards from their step on, scaled: none, trajectory, group, batch or prime. Left "
            "out, they are part of the episode's reward like any other."
        },
    )
    outcome_weight: float = field(
        default=1.0, metadata={"help": "Factor of the outcome reward beside process rewards, with process_norm."}
    )
    loss_type: str = field(default="clip", metadata={"help": "clip (PPO's) or cispo."})
    loss_normalization: str = field(
        default="token",
        metadata={
            "help": "What counts the same in the loss: token, sequence (row), step or episode; or constant (Dr. GRPO): "
            "each token by 1 / (episodes of a rollout x max_episode_tokens)."
        },
    )
    importance_sampling_level: str = field(
        default="token",
        metadata={"help": "Over what the probability ratio is taken: token, step (GSPO per step) or sequence (row)."},
    )
    log_ratio_clamp: float = field(default=20.0, metadata={"help": "Largest magnitude of a log-ratio."})
    kl_in: str = field(
        default="loss",
        metadata={
            "help": "Where beta x KL goes: loss (k3 x probability ratio; k3 alone with use_bias_correction_kl false) "
            "or reward (log-ratio per token, before credit is given)."
        },
    )
    minibatch_by: str = field(
        default="rows",
        metadata={
            "help": "What the minibatches of one rollout divide: rows or episodes. With episodes, one whose context "
            "was rewritten many times stays in one update."
        },
    )
    keep_groups: float = field(
        default=1.0, metadata={"help": "StarPO-S: train on this share of the groups, those of largest reward spread."}
    )
    keep_groups_by: str = field(
        default="fraction", metadata={"help": "What keep_groups is a share of: fraction (groups) or top_p (spread)."}
    )
    max_refills: int = field(
        default=0,
        metadata={
            "help": "DAPO's dynamic sampling: replace groups without spread by new tasks, up to this many times."
        },
    )
    overlong_buffer: int = field(
        default=0,
        metadata={"help": "DAPO's soft penalty: tokens before max_turn_tokens in which it rises; 0 for none."},
    )
    overlong_penalty: float = field(default=1.0, metadata={"help": "The penalty of a turn that was cut off."})
    turn_curriculum: str | None = field(
        default=None, metadata={"help": "ScalingInter: turns allowed from a step on, for example 0:2,100:4,200:8."}
    )
    echo_trap: str = field(
        default="warn", metadata={"help": "What the collapse monitor does when it sees one coming: off, warn or stop."}
    )

    def check_algorithm(self) -> None:
        """Raise `ConfigError` for settings that are unknown or contradict each other."""
        self.estimator  # noqa: B018  (an unknown name shows now)
        if self.loss_type in _TRL_LOSSES:
            raise ConfigError(f"loss_type {self.loss_type!r} of TRL is called {_TRL_LOSSES[self.loss_type]} here")
        choices = {
            "loss_type": LOSSES,
            "loss_normalization": NORMALIZATIONS,
            "importance_sampling_level": RATIO_LEVELS,
            "process_norm": (None, *PROCESS_NORMS),
            "kl_in": ("loss", "reward"),
            "minibatch_by": ("rows", "episodes"),
            "keep_groups_by": ("fraction", "top_p"),
            "echo_trap": ("off", "warn", "stop"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(str(choice) for choice in allowed)}")
        for name in ("gamma", "lam", "step_gamma", "step_lam"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        if not 0.0 < self.keep_groups <= 1.0:
            raise ConfigError(f"keep_groups is {self.keep_groups}; it must be above 0 and at most 1")
        for name in ("max_refills", "overlong_buffer", "overlong_penalty", "outcome_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.log_ratio_clamp <= 0:
            raise ConfigError(f"log_ratio_clamp is {self.log_ratio_clamp}; it must be positive")
        if self.outcome_weight != 1.0 and self.process_norm is None:
            raise ConfigError("outcome_weight weighs the outcome against process rewards: set process_norm, too")
        if self.single and (self.keep_groups < 1.0 or self.max_refills):
            raise ConfigError("keep_groups and max_refills compare episodes of a task: num_generations must be above 1")
        if self.single and self.estimator.needs_groups:
            raise ConfigError(
                f"num_generations is 1, but {self.advantage_estimator!r} compares episodes of the same task: raise it "
                "to 2 or more, or take an estimator that learns from single episodes (reinforce_pp, remax, gae, ...)"
            )
        self.curriculum  # noqa: B018  (a mistake in it shows now)

    @property
    def single(self) -> bool:
        """Whether each task is played once, so that there are no groups."""
        return getattr(self, "num_generations", None) == 1

    @property
    def estimator(self) -> Estimator:
        """The advantage estimator."""
        return get_estimator(self.advantage_estimator)

    @property
    def credit(self) -> Credit:
        """The settings of the estimator."""
        return Credit(
            gamma=self.gamma,
            lam=self.lam,
            step_gamma=self.step_gamma,
            step_lam=self.step_lam,
            scale=getattr(self, "scale_rewards", "group"),
            whiten=self.whiten_advantages,
            step_weight=self.gigpo_step_weight,
        )

    @property
    def curriculum(self) -> TurnCurriculum | None:
        """The turn budget over the run, None for a constant one."""
        return None if self.turn_curriculum is None else TurnCurriculum.parse(self.turn_curriculum)
