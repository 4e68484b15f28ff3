"""Rollouts: environments meet a policy, and episodes come out."""

from agent_gym.rollout.budget import Budget, RolloutStats, derive_seed
from agent_gym.rollout.contexts import CONTEXTS, Context, make_context, tighten
from agent_gym.rollout.envs import EnvPool, make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.runner import Runner
from agent_gym.rollout.trajectories import read_trajectories, replay, to_record, write_trajectories

__all__ = [
    "CONTEXTS",
    "Budget",
    "Context",
    "EnvPool",
    "Episode",
    "EpisodeSpec",
    "Row",
    "RolloutStats",
    "Runner",
    "Step",
    "derive_seed",
    "make_context",
    "make_env",
    "read_trajectories",
    "replay",
    "tighten",
    "to_record",
    "write_trajectories",
]
