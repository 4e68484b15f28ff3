"""How much memory a training run needs, before anything is loaded: `agent-gym plan`.

Arithmetic only: a model's shape (shapes.py, models.py), what its weights, optimizer, activations and cache occupy
(memory.py), and which ways to lay a run out over GPUs have room for that (layouts.py). Nothing here imports torch.
"""

from agent_gym.plan.layouts import Estimate, plan
from agent_gym.plan.models import find_shape
from agent_gym.plan.shapes import ModelShape

__all__ = ["Estimate", "ModelShape", "find_shape", "plan"]
