"""Rollouts: environments meet a policy, and episodes come out."""

from agent_gym.rollout.contexts import CONTEXTS, Context, make_context, tighten
from agent_gym.rollout.env_threads import make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec, Row, Step
from agent_gym.rollout.episode_run import Budget, derive_seed
from agent_gym.rollout.failures import Failure, check_failures, failure_summary, warn_of_expert
from agent_gym.rollout.live_episode import LiveEpisode
from agent_gym.rollout.replaying import Replay, play_again, replay
from agent_gym.rollout.roles import by_role
from agent_gym.rollout.runner import Rollout, Runner
from agent_gym.rollout.stream import Stream
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
    "Episode",
    "EpisodeSpec",
    "Failure",
    "LiveEpisode",
    "Replay",
    "Rollout",
    "Row",
    "Runner",
    "Step",
    "Stream",
    "by_role",
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
    "warn_of_expert",
    "write_trajectories",
]
