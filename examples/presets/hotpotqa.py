"""Search: questions of two hops about worlds that training has not seen."""

from agent_gym.examples.presets.preset import TINY_GRPO, Preset, learn_to_copy, mostly_badly

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
