"""Advantage estimators: from what the steps of an episode earned to how much better each token was than expected.

Each is a short pure function over tensors, and an adapter that picks what the function needs from an `Experience`.
registry.py lists them; groups.py, reinforce.py, gigpo.py and gae.py hold them.
"""

from agent_gym.trainers.estimators.experience import Credit, Estimate, Experience
from agent_gym.trainers.estimators.groups import SCALES
from agent_gym.trainers.estimators.process import PROCESS_NORMS, normalize_process
from agent_gym.trainers.estimators.registry import ESTIMATORS, Estimator, get_estimator

__all__ = [
    "ESTIMATORS",
    "PROCESS_NORMS",
    "SCALES",
    "Credit",
    "Estimate",
    "Estimator",
    "Experience",
    "get_estimator",
    "normalize_process",
]
