"""What counts for credit and not for the loss (what was cut off, what is greedy), and where process rewards go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from test_continuous import SERVER, Slow, run  # noqa: E402
from test_grpo_masks import rollout, row_of  # noqa: E402
from test_recipes import Moody  # noqa: E402
from trainer_tools import ENV, LettersEnv, RandomPolicy, make_trainer  # noqa: E402

from agent_gym import Reply, TextEnv  # noqa: E402
from agent_gym.policies import Generation, Request  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402

PAID, SEARCH_ENV = "Toy/PaidLetters-v0", "Toy/Search-v0"
SEARCH, ANSWER, GUESS = 40, 50, 60  # first tokens of three kinds of turn


class PaidEnv(LettersEnv):
    """Half of the reward is for the way."""

    process_terms = frozenset({"length"})
    reward_weights = {"letters": 1.0, "length": 1.0}


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


for _id, _env in ((PAID, PaidEnv), (SEARCH_ENV, SearchEnv)):
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=_env)


@pytest.mark.parametrize("name", ["dr_grpo", "reinforce_pp", "gigpo", "step_gae"])
def test_cut_off_episodes_leave_the_loss_and_not_the_baseline(tmp_path: Path, name: str) -> None:
    # Some members of a group are cut off by the budget of tokens, others are not.
    options = {"max_episode_tokens": 185, "max_turn_tokens": 16, "advantage_estimator": name, "num_generations": 4}
    options["ppo"] = name.endswith("gae")
    played, whole = rollout(make_trainer(tmp_path / "a", **options))
    again, masked = rollout(make_trainer(tmp_path / "b", mask_truncated_completions=True, **options))
    assert [e.rows[0].token_ids for e in played] == [e.rows[0].token_ids for e in again]
    groups = [{e.truncated for e in again if e.spec.group == g} for g in (0, 1)]
    assert {True, False} in groups, "a group has both kinds"
    left = [ids[:n].tolist() for ids, n in zip(masked["input_ids"], masked["attention_mask"].sum(1), strict=True)]
    for episode in again:
        ids = episode.rows[0].token_ids
        assert any(len(row) > 2 and ids[: len(row)] == row for row in left) != episode.truncated
        if not episode.truncated:
            (i, n), (j, _) = row_of(masked, ids), row_of(whole, ids)
            assert torch.allclose(masked["advantages"][i, :n], whole["advantages"][j, :n], atol=1e-6)
    for kind in ("weights", *(["value_weights"] if options["ppo"] else [])):
        assert masked[kind].sum().item() == pytest.approx(1.0, abs=1e-5), "the others have the whole loss"
    assert torch.equal(masked["weights"] > 0, masked["action_mask"])


# ReMax.


@pytest.mark.parametrize("members", [1, 2])
def test_the_greedy_baseline_is_shaped_as_the_return(tmp_path: Path, members: int) -> None:
    shape = {"process_norm": "none", "outcome_weight": 2.0, "overlong_buffer": 4, "beta": 0.5, "kl_in": "reward"}
    trainer = make_trainer(
        tmp_path, env=PAID, env_kwargs={"patient": True}, max_turns=2, advantage_estimator="remax",
        num_generations=members, **shape,
    )  # fmt: skip
    # A reference that differs, or the KL would be 0 at the start.
    with torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    played, batch = rollout(trainer)
    greedy = {e.spec.group: e for e in played if e.spec.greedy}
    first = [e for e in played if e.spec.member == 0]
    assert len(greedy) == len(first) == 8 // members and len(played) == 8 + len(greedy)
    assert batch["weights"].sum().item() == pytest.approx(1.0, abs=1e-5)
    assert int((batch["episode_of"] >= 0).sum()) == 8, "greedy episodes are not trained on"
    # The toy policy answers by the seed alone: a greedy episode is that of the first member, and what is compared is
    # equal. Both were cut off, so that no process reward is left.
    for episode in first:
        assert greedy[episode.spec.group].rows[0].token_ids == episode.rows[0].token_ids
        i, _ = row_of(batch, episode.rows[0].token_ids)
        assert batch["advantages"][i][batch["action_mask"][i]].abs().max() < 1e-5


def test_process_rewards_remain_beside_a_baseline_that_equals_the_outcome(tmp_path: Path) -> None:
    options = {"advantage_estimator": "remax", "num_generations": 1, "process_norm": "none"}
    played, batch = rollout(make_trainer(tmp_path, env=PAID, **options))
    for episode in (episode for episode in played if not episode.spec.greedy):
        i, _ = row_of(batch, episode.rows[0].token_ids)
        to_go = 0.0
        for k in reversed(range(len(episode.steps))):
            to_go += episode.steps[k].process_reward
            found = batch["advantages"][i][batch["step_of"][i] == k]
            assert found.tolist() == pytest.approx([to_go] * len(found), abs=1e-5)


class SlowMoody(Moody, Slow):
    """Says other things when it is greedy, and takes its time."""


@pytest.mark.parametrize("way", [{}, SERVER], ids=["colocate", "server"])
def test_greedy_episodes_are_played_ahead_with_their_groups(tmp_path: Path, way: dict[str, Any]) -> None:
    data = task_dataset(ENV, split="train", tasks=16)
    options = {"advantage_estimator": "remax", "num_generations": 2, "train_dataset": data, "use_vllm": True}
    plain = make_trainer(tmp_path / "a", policy=SlowMoody(), **options)
    ahead = make_trainer(tmp_path / "b", policy=SlowMoody(), max_staleness=1, **options, **way)
    expected, seen = run(plain), run(ahead)
    assert [len(batch) for batch in seen] == [12] * 3, "four groups of two and a greedy one each"
    assert Counter(e for batch in seen for e in batch) == Counter(e for batch in expected for e in batch)


# Process rewards go to the tokens of the step that earned them, and stalling does not pay.


class Plan(RandomPolicy):
    """Member 0 searches and answers, 1 searches for ever, 2 guesses, 3 searches and then guesses."""

    TURNS = ((SEARCH, ANSWER), (SEARCH, SEARCH, SEARCH, SEARCH), (GUESS,), (SEARCH, SEARCH, GUESS))

    def _write(self, request: Request) -> Generation:
        episode = request.episode
        ids = [self.TURNS[episode.spec.member][len(episode.steps)], 70 + episode.spec.member, 2]
        return Generation(request.id, ids, [-6.0] * 3, "stop")


def credit(folder: Path, **options: Any) -> list[list[float]]:
    """Play one rollout and return the advantage of each step of each member of the first group."""
    played, batch = rollout(make_trainer(folder, env=SEARCH_ENV, policy=Plan(), **options))
    found = []
    for episode in played[:4]:
        row, _ = row_of(batch, episode.rows[0].token_ids)
        steps = [batch["advantages"][row][batch["step_of"][row] == k] for k in range(len(episode.steps))]
        found.append([values.unique().item() for values in steps])
    return found


def test_each_step_gets_the_outcome_and_what_comes_after_it(tmp_path: Path) -> None:
    found = credit(tmp_path, process_norm="none", scale_rewards="none", step_gamma=0.5, outcome_weight=2.0)
    right, wrong = 1.5, -0.5  # 2 x (answer - mean of the group)
    assert found[0] == pytest.approx([right + 0.5, right])
    assert found[1] == pytest.approx([wrong] * 4)  # we had to stop it: its searches pay nothing
    assert found[2] == pytest.approx([wrong])
    assert found[3] == pytest.approx([wrong + 0.5 + 0.25, wrong + 0.5, wrong])
    found = credit(tmp_path / "b", scale_rewards="none")  # without a norm they are a part of the return
    returns = [1.5, 2.0, 0.0, 1.0]
    for values, value in zip(found, returns, strict=True):
        assert values == pytest.approx([value - sum(returns) / 4] * len(values))
    assert found[1][0] > found[0][0]  # here stalling does pay: the reason for a norm, whichever it is
