"""Shopping: to search for all that an instruction says, to open what was found, to choose the option, to buy."""

from agent_gym.examples.presets.preset import ADAM, TINY_GRPO, Imitation, Preset, mostly_badly

# What is the same on every page, so that an episode has about 230 tokens instead of 900: the shop's own texts, and
# those of the receipt. Where a page of results has another number the text is spelled, as any other.
_HEAD = "Instruction: [SEP] i need "
_BACK = " [SEP] Back to Search [SEP] "
_FRAMES = (
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
    "search[",
    "search[i need ",
    "click[",
    "click[buy now]",
    "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
    "Purchased [SEP] asin [SEP] ",
    " [SEP] options [SEP] {",
    "} [SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] "
    "Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] product "
    "category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] ",
    " [SEP] Reward Details [SEP] None",
)

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
    tiny={"vocab_size": 1000, "frames": _FRAMES},
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles={"default": 1.0},
            steps=1000,
            # Small batches: what takes long is to find out how ids are copied, and that takes steps, not episodes.
            batch=8,
            settings={
                "learning_rate": 4e-3,
                "lr_scheduler_type": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 450, "decay_type": "linear", "min_lr_ratio": 0.05},
                "warmup_steps": 40,
                **ADAM,
            },
        ),
        mostly_badly("SFT policy (70% in a hurry)", {"default": 0.3, "direct": 0.7}),
    ),
    train_tasks=None,
    dev_split="validation",
    dev_tasks=200,
    test_tasks=None,
    grpo={**TINY_GRPO, "max_steps": 24, "max_turn_tokens": 32},
)
