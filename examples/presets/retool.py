"""Programs: problems that a Python interpreter solves, in sentences of training, with numbers that it has not seen."""

from agent_gym.examples.presets.preset import TINY_GRPO, Preset, learn_to_copy, mostly_badly
from agent_gym.formats.code import CodeParser

# What stands in every episode in the same words, a token each, which makes 80 tokens of 130. The choice between a
# program and an answer is that of one token, too.
_FRAMES = (
    CodeParser("code_interpreter", "code").instructions(()),
    "A program finds it.\n<code>\n```python\n",
    "\n```\n</code>",
    "\n<interpreter>\n",
    "</interpreter>\n\n",
    "<answer>\n\\boxed{",
    "}\n</answer>",
)


RETOOL = Preset(
    env_id="AgentR1/ReTool-v0",
    env_kwargs={
        "system_prompt": "",
        # Three kinds whose programs are one line (two with an import) of words that never change, into which two or
        # three numbers of the problem have to be copied: copying is what a tiny model can learn, later if there is a
        # fourth kind. None has a loop that goes on until something is found, since with a number that was copied
        # wrongly it would go on to the limit of CPU time.
        "kinds": ("modular-power", "coprime-count", "digit-count"),
        # Numbers of three and four digits, mostly. Those of level 1 are few, and to copy them is learned later.
        "level": 2,
        # The last line of an error is all that a tiny model needs to read of it.
        "output_style": "retool",
        "max_turns": 3,
    },
    model=None,
    # A program costs 10 ms of CPU time, and these are few words.
    tiny={"frames": _FRAMES, "demonstrations": 500},
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
