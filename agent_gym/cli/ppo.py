"""`agent-gym ppo ENV`: reinforcement learning with `AgentPPOTrainer`."""

from __future__ import annotations

from agent_gym.cli.rl import RLCommand

_COMMAND = RLCommand(
    name="ppo",
    summary="Train a model on environments by reinforcement learning with a critic (PPO).",
    config="agent_gym.trainers.config:AgentPPOConfig",
    trainer="AgentPPOTrainer",
    critic=True,
)
FLAGS, main, make_parser, train = _COMMAND.flags, _COMMAND.main, _COMMAND.make_parser, _COMMAND.train
