"""`agent-gym grpo ENV`: reinforcement learning with `AgentGRPOTrainer`."""

from __future__ import annotations

from agent_gym.cli.rl import RLCommand

_COMMAND = RLCommand(
    name="grpo",
    summary="Train a model on environments by reinforcement learning that compares episodes (GRPO and its relatives).",
    config="agent_gym.trainers.config:AgentGRPOConfig",
    trainer="AgentGRPOTrainer",
    critic=False,
)
FLAGS, main, make_parser, train = _COMMAND.flags, _COMMAND.main, _COMMAND.make_parser, _COMMAND.train
