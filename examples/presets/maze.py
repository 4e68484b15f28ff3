"""Mazes that are only seen: imitation until the policy finds the way in half of them, then RL.

The imitation ends on purpose when the model has found out how to look, or it would leave RL nothing to do. In mazes of
sixteen cells and more that takes longer.
"""

from agent_gym.examples.presets.preset import ADAM, TINY_GRPO, Imitation, Preset

MAZE = Preset(
    env_id="AgentR1/VisualMaze-v0",
    # Nine cells: the smallest mazes that have walls to go around and enough layouts to hold some out.
    # Four turns: one mistake is allowed, and a policy that does not look fails in half of them (benchmarks/maze.py).
    env_kwargs={"size": 3, "longest": 3, "max_turns": 4},
    model=None,
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles={"default": 1.0},
            steps=400,
            batch=32,
            # How to look is found out all at once, after 30 to 200 steps.
            until_loss=0.25,
            settings={"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20, **ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=100,
    test_tasks=None,
    grpo={
        **TINY_GRPO,
        "max_steps": 30,
        # In mazes of sixteen cells success fell at the 5e-4 of the other tiny models.
        "learning_rate": 2e-4,
        "micro_batch_size": 32,
        "max_turn_tokens": 6,
        "eval_steps": 5,
    },
)
