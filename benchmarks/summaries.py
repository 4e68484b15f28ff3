"""Does it pay to train the summaries that a policy writes for itself? Half of the context, and the same kind of start.

    python benchmarks/summaries.py                         # everything; hours on two cores, taken up where it stopped
    python benchmarks/summaries.py --only append --seeds 0
    python benchmarks/summaries.py --table                 # print what there is

The task is Bisect with one thing taken away: the answer to a test is "good" or "bad", commits keep their first numbers,
and what is left is not counted. What to test next depends on two earlier turns: the newest commit that is good and the
oldest that is bad. `append` sees the whole episode. The others see half of its tokens: `budget` forgets the oldest
turns; `summarize` asks the policy for a summary, which is trained like an action (its advantage is that of the episode)
or masked, so that only actions are trained.

The player who is imitated is poor in two ways: half of its tests suspect the newest commits, and half of its summaries
name only the commit that is bad. Each context has an imitation of its own, since a policy has to be taught what it will
see: the same model, the same player, the same steps. RL is GRPO of _bisect24.py for all, `--steps` rollouts of
32 tasks x 8 episodes. Intervals are Student's over seeds; differences are paired by seed. `whole` is the share of
summaries in the sampled test episodes that name both commits, and rightly.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
import gymnasium
from algorithms import PACKAGES, Seed, interval, parsed

import agent_gym
from agent_gym.envs.bisect import BisectEnv
from agent_gym.rollout.contexts import OBSERVATION_HEADING, REQUEST, SUMMARY_HEADING

ENV = "Benchmark/BlindBisect-v0"
HALF = 34  # tokens; an episode of five tests has 68
STEPS = 1000  # of imitation


def main() -> None:
    options = parsed(__doc__, SIDES, steps=16, folder="runs/summaries")
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    gymnasium.register(ENV, BlindBisect)
    for seed, name in itertools.product([] if options.table else options.seeds, options.only):
        Side(seed, options.out, options.steps, SIDES[name]["context"], quick=options.quick).run([name])
    results = [json.loads(file.read_text()) for file in sorted(options.out.glob("*/*.seed*.json"))]
    print(table(results))
    _common.write_json(options.json, facts=facts, results=results)


def masked(base: Any) -> Any:
    """Return a trainer that trains on actions only: what a summary is made of has no weight in the loss."""
    import torch

    class Masked(base):
        def _training_episode(self, episode: Any) -> Any:
            kept = super()._training_episode(episode)
            self.__dict__.setdefault("kinds", {})[kept.number] = [step.kind == "summary" for step in episode.steps]
            return kept

        def _lay_out(self, episodes: Sequence[Any]) -> Any:
            kinds = [torch.tensor(self.kinds[episode.number]) for episode in episodes]
            self.summaries = torch.nn.utils.rnn.pad_sequence(kinds, batch_first=True)
            self.kinds.clear()
            return super()._lay_out(episodes)

        def _weigh(self, batch: Any, mask: torch.Tensor) -> torch.Tensor:
            rows = self.summaries[batch["episode_of"]]  # (B, steps)
            return super()._weigh(batch, mask & ~rows.gather(1, batch["step_of"].clamp(min=0)))

    return Masked


SIDES: dict[str, dict[str, Any]] = {
    "append": {"context": "append"},
    "summarize, trained": {"context": f"summarize:{HALF}"},
    "summarize, masked": {"context": f"summarize:{HALF}", "trainer": masked},
    "budget": {"context": f"budget:{HALF}"},
}


class BlindBisect(BisectEnv):
    """Bisect whose answers say only "good" or "bad"; a commit keeps the number that it has at the beginning."""

    def begin(self, task: Any) -> str:
        self.good = 0  # the newest commit that is known to be good
        return super().begin(task)

    @property
    def bad(self) -> int:
        """The oldest commit that is known to be bad."""
        return self.good + self._left

    def respond(self, action: str) -> agent_gym.Reply:
        text = action.strip()
        tested = (int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0) - self.good
        passes = tested < self._bad
        reply = super().respond(str(tested))
        if reply.error:
            return replace(reply, text="again")
        self.good += tested if passes else 0
        return replace(reply, text="" if reply.terminated else "good" if passes else "bad")

    def expert_action(self, style: str = "default") -> str:
        """Halve what is left; with "poor" only in half of the tests."""
        self.check_style(style, ("default", "poor"))
        newest = style == "poor" and self.np_random.random() < 0.5
        return str(self.good + int(super().expert_action("newest" if newest else "default")))

    def summary(self) -> str:
        """Name the newest commit that is good and the oldest that is bad, or, as often, only the latter."""
        return f"{self.good if self.np_random.random() < 0.5 else 0} {self.bad}"


class Side(Seed):
    """One seed of one context, from an imitation in this context."""

    variants = SIDES

    def __init__(self, seed: int, folder: Path, steps: int, context: str, *, quick: bool) -> None:
        super().__init__(seed, folder / context.partition(":")[0], steps, quick=quick)
        words = [f"\n\n{REQUEST}", f"\n\n{SUMMARY_HEADING}\n", f"\n\n{OBSERVATION_HEADING}\n"]
        tiny = {**self.preset.tiny, "frames": [*words, *self.preset.tiny["frames"]]}
        # What is left has to be found out from two turns, which takes more steps to learn than to read a number.
        (phase,) = self.preset.imitation
        decay = {**phase.settings["lr_scheduler_kwargs"], "num_decay_steps": STEPS // 3}
        phase = replace(phase, steps=STEPS, settings={**phase.settings, "lr_scheduler_kwargs": decay})
        self.preset = replace(self.preset, env_id=ENV, tiny=tiny, imitation=(phase,))
        self.context = context

    def imitate(self, phase: Any, model: Any, tokenizer: Any, settings: Any) -> None:
        """Let the poor player play in this context, with its own summaries, and imitate it."""
        from transformers import TrainerCallback

        from agent_gym.chat import ChatRenderer
        from agent_gym.evaluate import make_specs
        from agent_gym.policies import ScriptedPolicy
        from agent_gym.rollout import Budget, Runner
        from agent_gym.trainers.sft import train_sft

        def act(episode: Any) -> str:
            env = episode.env.unwrapped
            return env.expert_action("poor") if episode.asked == "act" else env.summary()

        renderer, budget = ChatRenderer.of(tokenizer), Budget(self.args.max_turn_tokens, self.args.max_episode_tokens)
        policy = ScriptedPolicy(act, renderer.encode_action)
        episodes = phase.episodes if self.quick else None  # all tasks
        specs = make_specs(ENV, self.preset.env_kwargs, split="train", episodes=episodes, seed=self.seed)
        with contextlib.closing(Runner(policy, renderer, budget, context=self.context, workers=4)) as runner:
            rows = [row for episode in runner.run(specs) for row in episode.rows]
        train_sft(model, tokenizer, rows, settings, train_on="all", callbacks=[TrainerCallback()])

    def look(self, episodes: list[Any]) -> dict[str, Any]:
        """Return how many summaries there were, and which share of them named both commits as they were."""
        asked = [(e, k) for e in episodes for k, step in enumerate(e.steps) if step.kind == "summary"]
        whole = [episode.steps[k].action.split() == known(episode, k) for episode, k in asked]
        return {"summaries": len(asked) / len(episodes), "whole": sum(whole) / max(len(whole), 1)}


def known(episode: Any, stop: int) -> list[str]:
    """Return the newest commit that is good and the oldest that is bad after the first steps of an episode."""
    good, bad = "0", episode.initial_messages[-1]["content"].split()[0]
    for step in episode.steps[:stop]:
        if step.observation == "good":
            good = step.action.strip()
        elif step.observation == "bad":
            bad = step.action.strip()
    return [good, bad]


def table(results: list[dict[str, Any]]) -> str:
    """Lay the results out: a line per context, means over its seeds with intervals, and how far it is from `append`."""
    head = "context|seeds|start, sampled|greedy|sampled|minus append|minus masked|whole, start|whole".split("|")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    after = {(result["name"], result["seed"]): result["after"]["sampled"] for result in results}
    for name in SIDES:
        mine = [result for result in results if result["name"] == name]
        if not mine:
            continue
        parts = [("before", "sampled"), ("after", "greedy"), ("after", "sampled")]
        cells = [interval([result[when][what] for result in mine]) for when, what in parts]
        for other in ("append", "summarize, masked"):
            pairs = [(after[name, r["seed"]], after.get((other, r["seed"]))) for r in mine]
            gaps = [one - two for one, two in pairs if two is not None and name != other]
            cells.append(interval(gaps, "+") if gaps else "")
        asked = mine[0]["before"]["summaries"] > 0
        cells += [interval([r[when]["whole"] for r in mine]) if asked else "" for when in ("before", "after")]
        lines.append("| " + " | ".join([name, str(len(mine)), *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
