"""The card of a training run, `card.json` in its folder: the last evaluations, and the cost of the training so far.

`agent_gym.evaluate.cards` defines the form of a card. Costs are summed over all processes. A continued run adds to the
costs on its card.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_gym.distributed import gather, gather_items
from agent_gym.errors import AgentGymError, described
from agent_gym.evaluate.cards import Meter, conclude, write_cards
from agent_gym.evaluate.panels import canonical, played_panel
from agent_gym.rollout import Episode, Row
from agent_gym.rollout.roles import ROLE_GROUPS
from agent_gym.trainers.checkpoints import provenance, run_facts
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.untrusted import read_json

_IMITATION = (
    "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs",
    "max_length", "seed",
)  # fmt: skip


class RunCard(Hook):
    """Counts the costs of training in this process, and writes the card after each evaluation and at the end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self._meter = trainer, Meter()
        self._path = Path(str(trainer.args.output_dir), "card.json").resolve()
        self._before: dict[str, float] = {}
        self._begun = False

    @property
    def _judge(self) -> dict[str, Any] | None:
        return self.trainer.judge and self.trainer.judge.describe()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The file holds the counts of an earlier call of `train`.
        self._before = self._written().get("spent", {}) if state.global_step or self._begun else {}
        self._meter, self._begun = Meter(), True
        self.trainer.spent.clear()

    def after_log(self, rollout: RolloutBatch) -> None:
        self.count(rollout.episodes, rollout.trained)

    def count(self, episodes: Sequence[Episode], trained: Container[int]) -> None:
        """Add the costs of a rollout's episodes; `trained` holds the numbers of the trained episodes.

        The roles of one episode of self-play count as one episode.
        """
        games: dict[tuple[int, int], list[Episode]] = {}
        for episode in episodes:
            games.setdefault((episode.spec.group % ROLE_GROUPS, episode.spec.member), []).append(episode)
        played = [roles for roles in games.values() if not any(role.failure for role in roles)]
        skipped = sum(not any(self.trainer.number_of(role) in trained for role in roles) for roles in played)
        spent = self.trainer.spent
        spent.update(asked=len(games), played=len(played), failed=len(games) - len(played), skipped=skipped)
        spent["truncated"] += sum(any(role.truncated for role in roles) for roles in played)
        spent["read_tokens"] += sum(step.start for episode in episodes for step in episode.steps)
        spent["sampled_tokens"] += sum(episode.sampled_tokens for episode in episodes)

    def after_evaluation(self, prefix: str, episodes: Sequence[Episode], seconds: Mapping[str, float]) -> None:
        """Write the card after an evaluation that took `seconds`; all processes have to call it."""
        trainer, name = self.trainer, self._path.parent.name
        tasks = prefix.removeprefix("eval").removeprefix("_")  # the name of the set of tasks, if a run has several
        played: dict[str, list[Episode]] = {}
        # Tokens and later messages are left out: a card does not need them, and each process gets the episodes of all.
        light = [
            replace(one, rows=[Row(spans=row.spans) for row in one.rows], messages=one.initial_messages)
            for one in episodes
        ]
        for episode in gather_items(light):
            spec = episode.spec
            played.setdefault(canonical([spec.env_id, spec.env_kwargs, spec.split]), []).append(episode)
        limits = dataclasses.asdict(trainer.runner.budget)
        facts: dict[str, Any] = {
            "decoding": {"temperature": trainer.args.eval_temperature, "seed": trainer.args.seed, "limits": limits},
            "model": {"name": name, "step": trainer.state.global_step},
            "seconds": seconds,
            "judge": self._judge,
        }
        mine = played.values() if trainer.accelerator.is_main_process else ()
        panels = [(some, replace(played_panel(some), name=tasks)) for some in mine]
        self._write([conclude(name, some, panel, asked=len(some), **facts)[1] for some, panel in panels])

    def _written(self) -> dict[str, Any]:
        """Return the part of the file about training; the result is empty if the file cannot be read."""
        try:
            if not self._path.exists():
                return {}
            training: dict[str, Any] = read_json(self._path, {"training?": dict}).get("training", {})
        except ValueError as error:
            warnings.warn(f"{self._path} cannot be read, and is written anew: {described(error)[:300]}", stacklevel=2)
            return {}
        return training

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write([])

    def _write(self, cards: Sequence[dict[str, Any]]) -> None:
        spent = _of_all(self.trainer.spent, self._meter)
        spent.update(self._before)
        if self.trainer.accelerator.is_main_process:
            training = {**provenance(self.trainer), "judge": self._judge, "spent": spent}
            try:
                # An evaluation before this trainer has trained keeps the part that an earlier run has written.
                write_cards(self._path, cards, training=training if self._begun else self._written() or training)
            except AgentGymError as error:  # such as a full disk: the weights matter more
                warnings.warn(f"{self._path} was not written, and training continues: {error}", stacklevel=2)


def write_imitation_card(trainer: Any, tasks: Mapping[str, Any], shown: Counter[str], meter: Meter) -> None:
    """Write the card of an imitation, which has no evaluations; all processes have to call it.

    `tasks` describes the tasks that the expert played (`env_id`, `env_kwargs`, `split`, `tasks`, `styles`). `shown`
    counts the expert's episodes and their tokens. Each process has played all of them.
    """
    spent = _of_all(Counter(), meter)
    spent.update(shown)
    if trainer.accelerator.is_main_process:
        about = run_facts(trainer, [tasks], _IMITATION)
        write_cards(Path(trainer.args.output_dir, "card.json"), [], training={**about, "spent": spent})


def _of_all(mine: Counter[str], meter: Meter) -> Counter[str]:
    """Return the costs summed over all processes, with the seconds of their meters."""
    spent = Counter[str]()
    for one in gather({**mine, **{f"{name}_seconds": value for name, value in meter.seconds().items()}}):
        spent.update(one)
    return spent


def attach(trainer: Any) -> None:
    """Attach always."""
    trainer.add_callback(RunCard(trainer))
