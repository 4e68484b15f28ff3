"""The calculator: the speedrun of the README, on a CPU with a tiny model and on a GPU with a real one.

The CPU preset starts from a constructed prior and says so. A tiny model that has imitated the expert leaves RL little
to add, since what it still gets wrong are slips of the pen. So after imitation a short second phase shows episodes of
which most answer at once, without the calculator: the policy can use the tool but mostly guesses. Whether it is worth
using is what RL has to find out. The results table shows the policy after each phase.
"""

from agent_gym.examples.presets.preset import ADAM, TINY_GRPO, Imitation, Preset

CPU = Preset(
    env_id="AgentR1/GSM8K-v0",
    # The tiny model has no use for a prompt in prose, and pays for each of its tokens.
    env_kwargs={"system_prompt": ""},
    model=None,
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=12000,
            styles={"default": 1.0},
            steps=900,
            batch=24,
            settings={
                "learning_rate": 4e-3,
                # The linear decay over the second half is worth more than further steps at the full rate.
                "lr_scheduler_type": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 450, "decay_type": "linear", "min_lr_ratio": 0.05},
                "warmup_steps": 30,
                **ADAM,
            },
        ),
        Imitation(
            name="SFT policy (70% answer at once)",
            episodes=1300,
            styles={"default": 0.3, "direct": 0.7},
            steps=40,
            batch=32,
            settings={"learning_rate": 1e-3, "lr_scheduler_type": "cosine", **ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=200,
    test_tasks=500,
    grpo=TINY_GRPO,
)

GPU = Preset(
    env_id="AgentR1/GSM8K-v0",
    env_kwargs={"data": "openai/gsm8k"},
    model="Qwen/Qwen2.5-1.5B-Instruct",
    imitation=(),
    train_tasks=None,
    dev_split="test",
    dev_tasks=200,
    test_tasks=None,
    needs_gpu=True,
    grpo={
        "max_steps": 100,
        "per_device_train_batch_size": 256,
        "num_generations": 8,
        "micro_batch_size": 16,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 5,
        "epsilon_high": 0.28,
        "max_turn_tokens": 512,
        "max_episode_tokens": 2048,
        "eval_steps": 10,
        "bf16": True,
        "gradient_checkpointing": True,
        "vllm_gpu_memory_utilization": 0.4,
        # Computed with in bf16, kept in float32: updates of 1e-6 vanish in bf16 weights.
        "model_init_kwargs": {"dtype": "float32"},
    },
)
