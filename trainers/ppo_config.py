"""The settings of the trainer with a critic."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_gym.errors import ConfigError
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.critic import KINDS


@dataclass
class AgentPPOConfig(AgentGRPOConfig):
    """Settings of `AgentPPOTrainer`; everything `AgentGRPOConfig` has, and the fields below.

    TRL's `num_iterations` are PPO's epochs, `steps_per_generation` / `gradient_accumulation_steps` its minibatches.

    Raises:
        ConfigError: for settings that contradict each other or this trainer.
    """

    critic: str = field(
        default="model", metadata={"help": "model: a backbone of its own; head: one layer on the policy's trunk."}
    )
    critic_learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate of the critic."})
    critic_trunk_gradient: bool = field(
        default=False, metadata={"help": "Let the value loss of a head change the policy's trunk, too."}
    )
    critic_warmup_steps: int = field(
        default=0, metadata={"help": "Optimizer steps at the start in which only the critic learns."}
    )
    vf_coef: float = field(default=0.5, metadata={"help": "Factor of the value loss."})
    cliprange_value: float | None = field(
        default=0.2, metadata={"help": "How far a value may move from the old one within a rollout; None for no limit."}
    )

    # Defaults that do not suit a critic.
    advantage_estimator: str = field(
        default="gae", metadata={"help": "How credit is given: gae, step_gae or bilevel_gae."}
    )
    num_generations: int | None = field(
        default=1, metadata={"help": "Episodes per task. The critic is the comparison, so one is enough."}
    )

    def __post_init__(self) -> None:
        """Check what only this trainer can know."""
        if self.critic not in KINDS:
            raise ConfigError(f"critic is {self.critic!r}; allowed: {', '.join(KINDS)}")
        if self.critic_trunk_gradient and self.critic != "head":
            raise ConfigError(
                "critic_trunk_gradient needs critic='head': a critic with a backbone of its own has no trunk"
            )
        for name in ("critic_learning_rate", "critic_warmup_steps", "vf_coef"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.cliprange_value is not None and self.cliprange_value <= 0:
            raise ConfigError(f"cliprange_value is {self.cliprange_value}; it must be positive, or None for no limit")
        super().__post_init__()
