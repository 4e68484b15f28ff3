"""The presets: what `agent-gym speedrun` runs, one per task and machine, every number of a run in one place.

Each starts RL from a constructed prior and says so. A tiny model that has imitated the expert leaves RL little to add,
since what it still gets wrong are slips of the pen. So after imitation a short last phase shows episodes of which most
are bad: they answer without the tool, or give up at once. Whether the better way is worth its turns is what RL has to
find out. The results table shows the policy after each phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.examples.preset import ADAM, TINY_GRPO, Imitation, Preset, hold_then_decay
from agent_gym.formats.code import CodeParser

EXPERT = {"default": 1.0}

COPY: Mapping[str, Any] = {"learning_rate": 4e-3, **ADAM, "weight_decay": 1.0}
"""Of a phase in which copying has to be learned: with less weight decay it comes later, and for some seeds in part."""


def learn_to_copy(*, episodes: int, steps: int, until_loss: float, then: int) -> tuple[Imitation, Imitation]:
    """Imitate the expert at a constant rate until the loss shows that copying has come, then settle.

    `episodes`, `steps` (at most) and `until_loss` are of the first phase, `then` counts the episodes of the second.
    """
    constant = {**COPY, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 30}
    decay = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.05}, "warmup_steps": 5}
    return (
        Imitation("expert imitation, first phase", episodes, EXPERT, steps, 24, constant, until_loss),
        Imitation("expert imitation", then, EXPERT, 300, 24, {**COPY, **decay}),
    )


def mostly_badly(name: str, styles: Mapping[str, float]) -> Imitation:
    """Show few episodes, after imitation, of which most are in a worse style: the start that RL comes back from."""
    settings = {"learning_rate": 5e-4, "lr_scheduler_type": "cosine", **ADAM}
    return Imitation(name, episodes=640, styles=styles, steps=20, batch=32, settings=settings)


# The calculator, on a CPU with a tiny model and on a GPU with a real one.
CPU = Preset(
    env_id="AgentR1/GSM8K-v0",
    # The tiny model has no use for a prompt in prose, and pays for each of its tokens.
    env_kwargs={"system_prompt": ""},
    model=None,
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=12000,
            styles=EXPERT,
            steps=900,
            batch=24,
            settings={"learning_rate": 4e-3, **hold_then_decay(450), **ADAM},
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

# Search: questions of two hops about worlds that training has not seen.
HOTPOTQA = Preset(
    env_id="AgentR1/HotpotQA-v0",
    # One paragraph per search: the tiny model reads what it pays for. Years and comparisons are beyond it.
    env_kwargs={"system_prompt": "", "levels": ("easy",), "top_k": 1},
    model=None,
    # With few tokens besides the words of the sentences, names are short sequences of tokens that all names share.
    tiny={"vocab_size": 600, "names_apart": True},
    imitation=(
        *learn_to_copy(episodes=16000, steps=2000, until_loss=0.645, then=7200),
        mostly_badly("SFT policy (75% give up at once)", {"default": 0.25, "direct": 0.75}),
    ),
    train_tasks=4000,
    dev_split="unseen_entities_dev",
    dev_tasks=200,
    test_tasks=500,
    test_split="unseen_entities",
    grpo={**TINY_GRPO, "max_steps": 24},
)

# Mazes that are only seen. The imitation ends on purpose when the policy finds the way in half of them: how to look is
# found out all at once, after 30 to 200 steps, and a model that looks well leaves RL nothing to do.
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
            styles=EXPERT,
            steps=400,
            batch=32,
            until_loss=0.25,
            settings={"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20, **ADAM},
        ),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=100,
    test_tasks=None,
    # In mazes of sixteen cells success fell at the 5e-4 of the other tiny models.
    grpo={
        **TINY_GRPO,
        "max_steps": 30,
        "learning_rate": 2e-4,
        "micro_batch_size": 32,
        "max_turn_tokens": 6,
        "eval_steps": 5,
    },
)

# Programs: problems that a Python interpreter solves, in sentences of training, with numbers that it has not seen. What
# stands in every episode in the same words is a token each, which makes 80 tokens of 130.
RETOOL = Preset(
    env_id="AgentR1/ReTool-v0",
    env_kwargs={
        "system_prompt": "",
        # Three kinds whose programs are one line (two with an import) of words that never change, into which two or
        # three numbers of the problem have to be copied: copying is what a tiny model can learn. None has a loop that
        # goes on until something is found: with a number copied wrongly it would go on to the limit of CPU time.
        "kinds": ("modular-power", "coprime-count", "digit-count"),
        # Numbers of three and four digits, mostly. Those of level 1 are few, and to copy them is learned later.
        "level": 2,
        # The last line of an error is all that a tiny model needs to read of it.
        "output_style": "retool",
        "max_turns": 3,
    },
    model=None,
    tiny={
        "frames": (
            CodeParser("code_interpreter", "code").instructions(()),
            "A program finds it.\n<code>\n```python\n",
            "\n```\n</code>",
            "\n<interpreter>\n",
            "</interpreter>\n\n",
            "<answer>\n\\boxed{",
            "}\n</answer>",
        ),
        "demonstrations": 500,  # a program costs 10 ms of CPU time, and these are few words
    },
    imitation=(
        *learn_to_copy(episodes=3000, steps=1200, until_loss=0.42, then=2000),
        mostly_badly("SFT policy (70% answer at once)", {"default": 0.3, "direct": 0.7}),
    ),
    train_tasks=4000,
    dev_split="unseen_numbers_dev",
    dev_tasks=200,
    test_tasks=500,
    test_split="unseen_numbers",
    grpo={**TINY_GRPO, "max_steps": 18, "max_turn_tokens": 64},
)

# Housework: to look into one place after the other until the thing is found, to take it, to carry it where it goes.
# Furniture and things are a token each, with their numbers, and so is what the world always writes in the same words:
# an episode has half as many tokens. Where to look next stands in the list at the beginning, behind the place where one
# is: with a token for each place, to find it takes one step of looking back.
_FURNITURE = (
    "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser "
    "fridge garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa stoveburner "
    "toaster toilet toiletpaperhanger towelholder tvstand"
).split()
_THINGS = (
    "alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard cup "
    "desklamp dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan "
    "pen pencil peppershaker pillow plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon "
    "spraybottle statue teddybear tennisracket tissuebox toiletpaper tomato towel vase watch wateringcan winebottle"
).split()
ALFWORLD = Preset(
    env_id="AgentR1/ALFWorld-v0",
    env_kwargs={
        # Rooms with four receptacles, in which something lies in one and has to be put into another.
        "receptacles": 4,
        "task_types": ("pick_and_place_simple",),
        "commands": "text",
        "system_prompt": "",
        # Looking into one receptacle after the other takes ten turns at most.
        "max_turns": 12,
    },
    model=None,
    tiny={
        "frames": (
            "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you "
            "see a ",
            ", a ",
            ", and a ",
            ".\n\nYour task is to: put",
            *("go to ", "open ", "take ", " from ", "move ", " to "),
            *("You arrive at ", "You open the ", "You pick up the ", " from the ", "You move the ", " to the "),
            ". The ",
            ". On the ",
            " is closed.",
            " is open. In it, you see a ",
            " is open. In it, you see nothing.",
            ", you see a ",
            ", you see nothing.",
            "Nothing happens.",
            *(f"{name} {number}" for name in _FURNITURE for number in range(1, 5)),
            *(f"{name} 1" for name in _THINGS),
        ),
        "demonstrations": 500,
    },
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles={"searching": 1.0},
            steps=900,
            # Small batches and much weight decay: what takes long is to find out how the list is gone through.
            batch=8,
            settings={**COPY, **hold_then_decay(400)},
        ),
        mostly_badly("SFT policy (70% give up at once)", {"searching": 0.3, "direct": 0.7}),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=100,
    test_tasks=300,
    grpo={**TINY_GRPO, "max_steps": 16, "eval_steps": 4, "max_turn_tokens": 12},
)

# Shopping: to search for all that an instruction asks, to open what was found, to choose the option, to buy. What is
# the same on every page, and on the receipt, is a token each, so that an episode has about 230 tokens instead of 900.
# Where a page of results has another number the text is spelled, as any other.
_HEAD = "Instruction: [SEP] i need "
_BACK = " [SEP] Back to Search [SEP] "
WEBSHOP = Preset(
    env_id="AgentR1/WebShop-v0",
    env_kwargs={
        "data": "embedded-easy",
        # WebShop's own text, which is shorter than calls of tools.
        "commands": "text",
        "system_prompt": "",
        # The tiny model reads what it pays for: one product, and it has to search so that this is the right one.
        "per_page": 1,
        # The expert takes four turns.
        "max_turns": 6,
    },
    model=None,
    tiny={
        "vocab_size": 1000,
        "frames": (
            " [SEP] ",
            f"WebShop [SEP] {_HEAD}",
            _HEAD,
            ", and price lower than ",
            ".00 dollars",
            " [SEP] Search",
            f"{_BACK}Page 1 (Total results: 50) [SEP] Next > [SEP] ",
            f"{_BACK}< Prev [SEP] ",
            " [SEP] $",
            " [SEP] Price: $",
            ".0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now",
            *("search[", "search[i need ", "click[", "click[buy now]"),
            "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) "
            "[SEP] Purchased [SEP] asin [SEP] ",
            " [SEP] options [SEP] {",
            "} [SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] "
            "None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] "
            "category [SEP] product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, "
            "max 1.0) [SEP] ",
            " [SEP] Reward Details [SEP] None",
        ),
    },
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles=EXPERT,
            steps=1000,
            # Small batches: what takes long is to find out how ids are copied, and that takes steps, not episodes.
            batch=8,
            settings={"learning_rate": 4e-3, **hold_then_decay(450, warmup_steps=40), **ADAM},
        ),
        mostly_badly("SFT policy (70% in a hurry)", {"default": 0.3, "direct": 0.7}),
    ),
    train_tasks=None,
    dev_split="validation",
    dev_tasks=200,
    test_tasks=None,
    grpo={**TINY_GRPO, "max_steps": 24, "max_turn_tokens": 32},
)

PRESETS = {
    "cpu": CPU,
    "gpu": GPU,
    "alfworld": ALFWORLD,
    "hotpotqa": HOTPOTQA,
    "maze": MAZE,
    "retool": RETOOL,
    "webshop": WEBSHOP,
}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
