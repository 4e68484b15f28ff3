"""What the speedrun runs: one `Preset` per machine, every number in one place.

The CPU preset starts from a constructed prior and says so. A tiny model that has imitated the expert leaves RL little
to add, since what it still gets wrong are slips of the pen. So after imitation a short second phase shows episodes of
which most answer at once, without the calculator: the policy can use the tool but mostly guesses. Whether it is worth
using is what RL has to find out. The results table shows the policy after each phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_gym.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Imitation:
    """One phase of supervised fine-tuning.

    Attributes:
        name: what the results table calls the policy after it.
        episodes: expert episodes to play.
        styles: expert style to its share.
        steps: optimizer steps, at most.
        batch: episodes per step.
        settings: further fields of `trl.SFTConfig`.
        until_loss: end the phase when the mean loss of 25 steps falls below this. A tiny model learns to copy names all
            at once, and how soon that happens differs between seeds by a factor of two.
    """

    name: str
    episodes: int
    styles: Mapping[str, float]
    steps: int
    batch: int
    settings: Mapping[str, Any]
    until_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A complete run.

    Attributes:
        env_id: the environment.
        env_kwargs: its arguments.
        model: a model id, or None for a tiny model made on the spot.
        tiny: arguments of `make_tiny_model` for the second.
        imitation: phases of supervised fine-tuning before RL.
        train_tasks: tasks RL trains on; None for all.
        dev_split: the split of the learning curve.
        dev_tasks: its size.
        test_tasks: size of the test set of the results table.
        test_split: the split of the results table.
        needs_gpu: whether it makes sense on a GPU only.
        grpo: fields of `AgentGRPOConfig`.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    model: str | None
    imitation: tuple[Imitation, ...]
    train_tasks: int | None
    dev_split: str
    dev_tasks: int
    test_tasks: int | None
    test_split: str = "test"
    needs_gpu: bool = False
    tiny: Mapping[str, Any] = field(default_factory=dict)
    grpo: Mapping[str, Any] = field(default_factory=dict)


_ADAM = {"adam_beta2": 0.98, "weight_decay": 0.05}

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
                **_ADAM,
            },
        ),
        Imitation(
            name="SFT policy (70% answer at once)",
            episodes=1300,
            styles={"default": 0.3, "direct": 0.7},
            steps=40,
            batch=32,
            settings={"learning_rate": 1e-3, "lr_scheduler_type": "cosine", **_ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=200,
    test_tasks=500,
    grpo={
        "max_steps": 36,
        "per_device_train_batch_size": 128,
        "num_generations": 8,
        "micro_batch_size": 64,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "warmup_steps": 5,
        "adam_beta2": 0.98,
        "epsilon_high": 0.28,
        "max_turn_tokens": 40,
        "max_episode_tokens": 400,
        "eval_steps": 3,
        "max_num_seqs": 128,
        "trajectories_per_step": 48,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
    },
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
        "model_init_kwargs": {"dtype": "bfloat16"},
    },
)

_SEARCH = {"learning_rate": 4e-3, **_ADAM, "weight_decay": 1.0}

HOTPOTQA = Preset(
    env_id="AgentR1/HotpotQA-v0",
    # One paragraph per search: the tiny model reads what it pays for. Years and comparisons are beyond it.
    env_kwargs={"system_prompt": "", "levels": ("easy",), "top_k": 1},
    model=None,
    # With few tokens besides the words of the sentences, names are short sequences of tokens that all names share.
    tiny={"vocab_size": 600, "names_apart": True},
    imitation=(
        Imitation(
            name="expert imitation, first phase",
            episodes=16000,
            styles={"default": 1.0},
            steps=2000,
            batch=24,
            settings={**_SEARCH, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 30},
            until_loss=0.645,
        ),
        Imitation(
            name="expert imitation",
            episodes=7200,
            styles={"default": 1.0},
            steps=300,
            batch=24,
            settings={
                **_SEARCH,
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.05},
                "warmup_steps": 5,
            },
        ),
        Imitation(
            name="SFT policy (75% give up at once)",
            episodes=640,
            styles={"default": 0.25, "direct": 0.75},
            steps=20,
            batch=32,
            settings={"learning_rate": 5e-4, "lr_scheduler_type": "cosine", **_ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="unseen_entities_dev",
    dev_tasks=200,
    test_tasks=500,
    test_split="unseen_entities",
    grpo={**CPU.grpo, "max_steps": 24},
)

PRESETS = {"cpu": CPU, "gpu": GPU, "hotpotqa": HOTPOTQA}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
