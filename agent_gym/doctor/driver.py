"""How many turns of a rollout one process drives: the loop, the environments and the tokenizer, without an engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

from agent_gym.env import TextEnv
from agent_gym.policies import ScriptedPolicy
from agent_gym.policies.small_tokenizer import SmallTokenizer, train_bpe
from agent_gym.reply import Reply
from agent_gym.rollout import Budget, EpisodeSpec, Runner
from agent_gym.speedrun import text_of

ENV = "Doctor/Talk-v0"
WORDS = "the old forest near here had seven quick foxes and a lazy dog which nobody saw before "  # 16, a token each
EPISODES, TURNS, SAMPLED = 64, 8, 64
OBSERVED = (64, 1024)  # tokens of an answer: a calculator's, and a page's or a terminal's


class Talk(TextEnv):
    """Answers each turn with the same text."""

    reward_weights: ClassVar[Mapping[str, float]] = {"done": 1.0}

    def __init__(self, observed: int, **kwargs: Any) -> None:
        self.observed = WORDS * (observed // 16)
        super().__init__({"train": range(EPISODES)}, max_turns=TURNS, **kwargs)

    def begin(self, task: int) -> str:
        return f"This is world {task}."

    def respond(self, action: str) -> Reply:
        return Reply(self.observed, terms={"done": 1.0}, terminated=self.turn + 1 == TURNS)


def turns_per_second(observed: int) -> float:
    """Play `EPISODES` at once; return turns per CPU second of this process, each with so many observed tokens."""
    if ENV not in gymnasium.registry:
        gymnasium.register(ENV, entry_point=f"{__name__}:Talk", disable_env_checker=True, order_enforce=False)
    tokenizer = SmallTokenizer(train_bpe([WORDS]), text_of("chat.jinja"))
    ids = tokenizer.encode(WORDS * (SAMPLED // 16))
    runner = Runner(ScriptedPolicy(lambda episode: "", lambda text: [*ids]), tokenizer, Budget(max_tokens=65_536))
    specs = [EpisodeSpec(ENV, {"observed": observed}, split="train", index=i) for i in range(EPISODES)]
    try:
        runner.run(specs[:2])  # the costs of the first use are no costs of a turn
        began = time.process_time()
        turns = sum(len(episode.steps) for episode in runner.run(specs))
        return turns / (time.process_time() - began)
    finally:
        runner.close()


def told() -> str:
    """Return the two lines of `doctor` and `plan`."""
    short, long = (f"{turns_per_second(observed):,.0f}" for observed in OBSERVED)
    return (
        f"One process drives about {short} turns per second of a core here, of {SAMPLED} sampled and\n"
        f"{OBSERVED[0]} observed tokens; {long} where {OBSERVED[1]:,} are observed."
    )
