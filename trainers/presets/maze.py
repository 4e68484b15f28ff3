"""Mazes that are only seen: imitation until the policy often finds the way, then RL for the mazes in which it does not.

The imitation is short on purpose. A tiny model soon learns to go towards the goal, and late to go around walls: an
expert shows little of that, and a policy runs into it itself.
"""

from agent_gym.trainers.presets.preset import ADAM, TINY_GRPO, Imitation, Preset

MAZE = Preset(
    env_id="AgentR1/VisualMaze-v0",
    env_kwargs={},
    model=None,
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles={"default": 1.0},
            steps=80,
            batch=24,
            settings={"learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 10, **ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=100,
    test_tasks=500,
    grpo={
        **TINY_GRPO,
        "max_steps": 40,
        "micro_batch_size": 32,
        "max_turn_tokens": 6,
        # Ten turns, of which each shows 25 tokens of maze.
        "max_episode_tokens": 500,
        "eval_steps": 5,
    },
)
