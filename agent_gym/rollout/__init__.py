"""Rollouts: environments meet a policy, and episodes come out."""

from agent_gym.rollout.budget import Budget, RolloutStats, derive_seed
from agent_gym.rollout.contexts import CONTEXTS, Context, make_context, tighten
from agent_gym.rollout.envs import EnvPool, make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.failures import Failure, check_failures, failure_summary
from agent_gym.rollout.loop import Loop
from agent_gym.rollout.replaying import Replay, play_again, replay
from agent_gym.rollout.runner import Runner
from agent_gym.rollout.trajectories import (
    from_record,
    read_trajectories,
    scan_trajectories,
    to_line,
    to_record,
    write_trajectories,
)

__all__ = [
    "CONTEXTS",
    "Budget",
    "Context",
    "EnvPool",
    "Episode",
    "EpisodeSpec",
    "Failure",
    "Loop",
    "Replay",
    "Row",
    "RolloutStats",
    "Runner",
    "Step",
    "check_failures",
    "derive_seed",
    "failure_summary",
    "from_record",
    "make_context",
    "make_env",
    "play_again",
    "read_trajectories",
    "replay",
    "scan_trajectories",
    "tighten",
    "to_line",
    "to_record",
    "write_trajectories",
]
