"""Process rewards from an environment to the tokens of the step that earned them, and no pay for stalling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import RandomPolicy, batches_of, make_trainer, played_by  # noqa: E402

from agent_gym import Reply, TextEnv  # noqa: E402
from agent_gym.policies import Generation, Request  # noqa: E402

ENV = "Toy/Search-v0"
SEARCH, ANSWER, GUESS = 40, 50, 60  # first tokens of the three kinds of turn


class SearchEnv(TextEnv):
    """Pays 0.5 for each search, as often as one likes, and 1 for an answer after a search."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0, "search": 0.5}
    process_terms: ClassVar[frozenset[str]] = frozenset({"search"})

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"train": range(16)}, max_turns=4, **kwargs)

    def begin(self, task: Any) -> str:
        self.searched = False
        return f"Task {task}"

    def respond(self, action: str) -> Reply:
        if action.startswith(self.renderer.decode_action([SEARCH])):
            self.searched = True
            return Reply("found", terms={"search": 1.0})
        right = self.searched and action.startswith(self.renderer.decode_action([ANSWER]))
        return Reply(terms={"answer": float(right)}, terminated=True, success=right)


if ENV not in gymnasium.registry:
    gymnasium.register(ENV, entry_point=SearchEnv)


class Plan(RandomPolicy):
    """Member 0 searches and answers, 1 searches for ever, 2 guesses, 3 searches and then guesses."""

    TURNS = ((SEARCH, ANSWER), (SEARCH, SEARCH, SEARCH, SEARCH), (GUESS,), (SEARCH, SEARCH, GUESS))

    def _write(self, request: Request) -> Generation:
        episode = request.episode
        ids = [self.TURNS[episode.spec.member][len(episode.steps)], 70 + episode.spec.member, 2]
        return Generation(request.id, ids, [-6.0] * 3, "stop")


def credit(folder: Path, **options: Any) -> dict[int, list[float]]:
    """Train one step and return the advantage of each step of each member of the first group."""
    trainer = make_trainer(folder, env=ENV, policy=Plan(), max_steps=1, **options)
    episodes, batches = played_by(trainer), batches_of(trainer)
    trainer.train()
    (batch,) = batches
    found: dict[int, list[float]] = {}
    for episode in episodes[:4]:
        ids = episode.rows[0].token_ids[: episode.steps[-1].stop]
        (row,) = [i for i in range(len(batch["input_ids"])) if batch["input_ids"][i, : len(ids)].tolist() == ids]
        steps = batch["step_of"][row]
        found[episode.spec.member] = [
            batch["advantages"][row][steps == k].unique().item() for k in range(len(episode.steps))
        ]
    return found


def test_each_step_gets_the_outcome_and_what_comes_after_it(tmp_path: Path) -> None:
    found = credit(tmp_path, process_norm="none", scale_rewards="none", step_gamma=0.5, outcome_weight=2.0)
    outcome = {0: 1.5, 1: -0.5, 2: -0.5, 3: -0.5}  # 2 x (answer - mean of the group)
    assert found[0] == pytest.approx([outcome[0] + 0.5, outcome[0]])
    assert found[1] == pytest.approx([outcome[1]] * 4)  # we had to stop it: its searches pay nothing
    assert found[2] == pytest.approx([outcome[2]])
    assert found[3] == pytest.approx([outcome[3] + 0.5 + 0.25, outcome[3] + 0.5, outcome[3]])
    found = credit(tmp_path / "b", scale_rewards="none")  # without a norm they are a part of the return
    returns = [1.5, 2.0, 0.0, 1.0]
    for member, value in enumerate(returns):
        assert found[member] == pytest.approx([value - sum(returns) / 4] * len(found[member]))
    assert found[1][0] > found[0][0]  # here stalling does pay: the reason for a norm, whichever it is


@pytest.mark.parametrize(
    ("norm", "estimator"),
    [("none", "grpo"), ("trajectory", "gigpo"), ("group", "rloo"), ("batch", "dr_grpo"), ("prime", "gigpo")],
)
def test_no_process_reward_makes_stalling_better_than_answering(tmp_path: Path, norm: str, estimator: str) -> None:
    found = credit(tmp_path, process_norm=norm, advantage_estimator=estimator)
    for k, stalled in enumerate(found[1]):
        assert stalled < found[0][min(k, 1)]
        assert stalled <= found[3][min(k, 2)] + 1e-6
    assert found[1][0] <= found[2][0] + 1e-6  # not even better than a wrong guess, in the state that both have seen
