"""Advantage estimators: from what the steps of an episode earned to how much better each token was than expected."""

from agent_gym.trainers.estimators.experience import Credit, Estimate, Experience

__all__ = ["Credit", "Estimate", "Experience"]
