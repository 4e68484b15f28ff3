"""The controls of a speedrun: other uses of the seconds that RL used.

Each starts from the weights that RL started from and trains until as many seconds are used up:

- more SFT: the same demonstrations as before, at a separate rate. If it gains nothing, the start was converged.
- best-of-n self-imitation: in each of several rounds the policy plays training tasks n times; of each task the success
  with the best reward is kept, and SFT trains on the kept ones (rejection sampling fine-tuning: Z. Yuan et al.,
  arXiv:2308.01825; in rounds it is the Expert Iteration of T. Anthony et al., arXiv:1705.08439).

On a CPU these are seconds of this process with all its threads (`time.process_time`), since wall time depends on the
machine's other work; the engine plays in the same process there. On a GPU, whose work is not a CPU's and whose engine
has a separate process, they are seconds on the clock. The counted work is the same for all: the steps of training, with
the rollouts in them. Evaluations, the drawing of curves, and loading are left out, for RL as for the controls.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from transformers import TrainerCallback

from agent_gym.evaluate import EvalResult, make_specs
from agent_gym.evaluate.panels import opened_env
from agent_gym.rollout import Episode, EpisodeSpec, Row, derive_seed
from agent_gym.speedrun.presets import ATTEMPTS, Controls, Imitation, Preset
from agent_gym.speedrun.tables import estimate

WARMUP = 0.05
"""Share of a control's seconds in which its rate rises: Adam begins anew."""

Clock = Callable[[], float]
"""`time.process_time` on a CPU, `time.perf_counter` on a GPU."""


class StepClock(TrainerCallback):
    """Counts a trainer's optimizer steps and their seconds by a clock; with GRPO the rollouts are in them."""

    def __init__(self, clock: Clock) -> None:
        self.steps, self.seconds, self.clock, self._begin = 0, 0.0, clock, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps, self.seconds = self.steps + 1, self.seconds + self.clock() - self._begin


class UntilUsedUp(StepClock):
    """Ends training when a budget of seconds is used up, at a learning rate that falls to 0 until then.

    The rate follows the seconds that are used, not a planned number of steps: the price of a step changes with the text
    that else runs on a machine, and a schedule that ends too early or is cut off would weaken the control.
    """

    def __init__(self, budget: float, rate: float, clock: Clock) -> None:
        super().__init__(clock)
        self.budget, self.rate = budget, rate

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().on_step_begin(args, state, control)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(self.seconds / self.budget, self.rate)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control)
        control.should_training_stop = self.seconds >= self.budget


def rate_at(used: float, peak: float) -> float:
    """Return the learning rate when a share `used` of the budget is gone: a short linear rise, then a cosine to 0."""
    if used < WARMUP:
        return peak * max(used / WARMUP, 0.1)
    return peak * (1 + math.cos(math.pi * min(1.0, (used - WARMUP) / (1 - WARMUP)))) / 2


def endless(phase: Imitation) -> Imitation:
    """Return the phase without its own end or schedule: `UntilUsedUp` sets both."""
    own = {key: value for key, value in phase.settings.items() if key != "warmup_steps" and "lr_scheduler" not in key}
    settings = {**own, "lr_scheduler_type": "constant", "logging_steps": 100}
    return replace(phase, steps=10**9, settings=settings)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of self-imitation."""

    played: int  # episodes
    succeeded: int
    kept: int  # episodes that SFT trained on
    steps: int
    playing_seconds: float
    training_seconds: float


def imitate_itself(
    controls: Controls,
    budget: float,
    tasks: Sequence[EpisodeSpec],
    batch: int,
    play: Callable[[list[EpisodeSpec]], list[Episode]],
    train: Callable[[list[Row], UntilUsedUp], Any],
    seed: int,
    clock: Clock,
) -> list[Round]:
    """Sample, keep the best, imitate it, in rounds, until the seconds are used up.

    Args:
        controls: how many rounds and attempts, and the share of a round that goes into playing.
        budget: seconds of all rounds together. A round has an equal part of the remaining time.
        tasks: the training tasks, one spec each. They are played in an order drawn once, each as late again as can be.
        batch: tasks that are played at once; whether playing has had its share is looked at between batches.
        play: plays episodes with the current weights.
        train: imitates rows under a callback that ends it.
        seed: of the order, of sampling, and of the choice among attempts with equal rewards.
        clock: by which seconds are counted.
    """
    rng = random.Random(seed)
    order = itertools.cycle(rng.sample(list(tasks), len(tasks)))
    rounds, used, groups = list[Round](), 0.0, itertools.count(1)
    for number in range(controls.rounds):
        share, begin, played = (budget - used) / (controls.rounds - number), clock(), list[Episode]()
        playing, succeeded = 0.0, 0
        # A policy that has not succeeded yet plays on: without a success there is nothing to train on.
        while playing < (controls.playing * share if succeeded else share):
            specs = [
                replace(task, group=group, member=member, sampling_seed=derive_seed(seed, group, member))
                for task, group in zip(itertools.islice(order, batch), groups, strict=False)
                for member in range(controls.best_of)
            ]
            played += play(specs)
            playing, succeeded = clock() - begin, sum(episode.success for episode in played)
        kept = best_attempts(played, rng)
        end = UntilUsedUp(share - playing, controls.self_imitation_rate, clock)
        if kept and end.budget > 0:
            train([row for episode in kept for row in episode.rows], end)
        used += playing + end.seconds
        rounds.append(Round(len(played), succeeded, len(kept), end.steps, playing, end.seconds))
    return rounds


def best_attempts(episodes: Sequence[Episode], rng: random.Random) -> list[Episode]:
    """Return the solved attempt with the best reward for each task; ties are broken at random."""
    solved: dict[int | None, list[Episode]] = {}
    for episode in episodes:
        if episode.success and not episode.failure:
            solved.setdefault(episode.spec.index, []).append(episode)
    return [max(attempts, key=lambda episode: (episode.reward, rng.random())) for attempts in solved.values()]


def prove_start(
    preset: Preset, seed: int, demonstrator: EvalResult, start: EvalResult
) -> tuple[dict[str, Any], list[str]]:
    """Return numbers by which to judge a start, and the lines that print them.

    They are the success and reward of all that the demonstrator played, pass@1 and pass@8 of the start, which has
    sampled the test tasks `ATTEMPTS` times, and whether training has seen these tasks (`held_out`).
    """
    facts = held_out(preset, seed)
    most, reward = f"pass@{ATTEMPTS}", demonstrator.measures["reward"]
    passed = start.measures[most]
    found = {
        "demonstrator": {"episodes": demonstrator.episodes}
        | {"success": asdict(demonstrator.measures["episode/success"]), "reward": asdict(reward)},
        "headroom": {"tasks": start.tasks, "attempts": ATTEMPTS}
        | {"pass@1": asdict(start.measures["episode/success"]), most: asdict(passed)},
        **facts,
    }
    first = estimate("success", start.measures["episode/success"])
    lines = [
        f"demonstrator: success {demonstrator} episodes, reward {estimate('reward', reward)}",
        f"start, sampled: pass@1 {first}, {most} {estimate('success', passed)}, {start.tasks} test tasks",
        "test tasks: {test_tasks}, which are {distinct_test_prompts} distinct prompts; {test_prompts_in_training} of "
        "these are among those of the {training_tasks} tasks of training".format(**facts),
    ]
    return found, lines


def held_out(preset: Preset, seed: int) -> dict[str, int]:
    """Count the test tasks, the distinct prompts among them, and the ones of these that also occur in training.

    A prompt is the policy's text before its first turn: all messages, with their images. Two tasks that differ in
    hidden facts alone are one prompt. Training tasks are the ones of RL and of the demonstrations.
    """
    shown = [phase.episodes for phase in preset.imitation]
    trained = None if preset.train_tasks is None else max([preset.train_tasks, *shown])
    test = _openings(preset, preset.test_split, preset.test_tasks, seed)
    train = _openings(preset, "train", trained, seed)
    distinct = set(test)
    return {
        "test_tasks": len(test),
        "distinct_test_prompts": len(distinct),
        "training_tasks": len(train),
        "test_prompts_in_training": len(distinct & set(train)),
    }


def _openings(preset: Preset, split: str, tasks: int | None, seed: int) -> list[str]:
    """The prompt of each task."""
    specs = make_specs(preset.env_id, preset.env_kwargs, split=split, episodes=tasks, seed=seed)
    with opened_env(preset.env_id, preset.env_kwargs) as env:
        opened: list[Mapping[str, Any]] = [env.reset(seed=spec.seed, options=spec.options)[1] for spec in specs]
    return [json.dumps(info["messages"], default=lambda image: image.digest) for info in opened]
