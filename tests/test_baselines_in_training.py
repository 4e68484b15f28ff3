"""What counts for a baseline and not for the loss: episodes that were cut off, and ReMax's greedy episodes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from estimator_tools import make_row  # noqa: E402
from test_grpo_masks import rollout, row_of  # noqa: E402
from test_over_sampling import Slow, watch  # noqa: E402
from test_recipes import Moody  # noqa: E402
from trainer_tools import ENV, LettersEnv, distance, make_trainer, weights  # noqa: E402

from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.batch import WORLD, TrainingEpisode  # noqa: E402

PAID = "Toy/PaidLetters-v0"


class PaidEnv(LettersEnv):
    """Half of the reward judges the way."""

    process_terms = frozenset({"length"})
    reward_weights = {"letters": 1.0, "length": 1.0}


if PAID not in gymnasium.registry:
    gymnasium.register(PAID, entry_point=PaidEnv)

# Some members of a group are cut off by the budget of tokens, others are not.
CUT: dict[str, Any] = {"max_episode_tokens": 185, "max_turn_tokens": 16}


@pytest.mark.parametrize(
    "name", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gigpo", "gae", "step_gae"]
)
def test_cut_off_episodes_leave_the_loss_and_not_the_baseline(tmp_path: Path, name: str) -> None:
    options = {**CUT, "advantage_estimator": name, "ppo": name.endswith("gae"), "num_generations": 4}
    played, whole = rollout(make_trainer(tmp_path / "a", **options))
    again, masked = rollout(make_trainer(tmp_path / "b", mask_truncated_completions=True, **options))
    assert [e.rows[0].token_ids for e in played] == [e.rows[0].token_ids for e in again]
    cut = [episode.truncated for episode in again]
    groups = [{c for c, e in zip(cut, again, strict=True) if e.spec.group == g} for g in (0, 1)]
    assert {True, False} in groups, "a group has both kinds"
    left = [ids[:n].tolist() for ids, n in zip(masked["input_ids"], masked["attention_mask"].sum(1), strict=True)]
    for episode in again:
        ids = episode.rows[0].token_ids
        here = [row for row in left if row and ids[: len(row)] == row and len(row) > 2]
        assert bool(here) != episode.truncated
        if not episode.truncated:
            (i, n), (j, _) = row_of(masked, ids), row_of(whole, ids)
            assert torch.allclose(masked["advantages"][i, :n], whole["advantages"][j, :n], atol=1e-6)
    for kind in ("weights", *(["value_weights"] if options["ppo"] else [])):
        assert masked[kind].sum().item() == pytest.approx(1.0, abs=1e-5), "the others have the whole loss"
    assert torch.equal(masked["weights"] > 0, masked["action_mask"])


def test_the_only_success_of_a_group_that_was_cut_off_teaches(tmp_path: Path) -> None:
    # TRL 1.16 masks the loss alone, so that the success has an advantage of 1.5 here.
    trainer = make_trainer(tmp_path, mask_truncated_completions=True)
    row = make_row([5, 6, 7], [WORLD, 0, 0], [0.0, -1.0, -1.0])
    episodes = [TrainingEpisode(k, 0, k == 0, [row], [float(k == 0)], [0.0], [0], trained=k == 0) for k in range(4)]
    batch = trainer._lay_out(episodes)
    trainer._assign_credit(batch, episodes)
    assert batch["weights"].sum().item() == pytest.approx(1.0)
    assert batch["advantages"][batch["weights"] > 0].tolist() == pytest.approx([1.5, 1.5], abs=1e-3)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "process norm": {"process_norm": "none"},
    "process norm, weighed": {"process_norm": "group", "outcome_weight": 0.3},
    "over-long": {"overlong_buffer": 4},
    "KL in the reward": {"beta": 0.5, "kl_in": "reward"},
    "all": {"process_norm": "none", "outcome_weight": 2.0, "overlong_buffer": 4, "beta": 0.5, "kl_in": "reward"},
}


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_greedy_baseline_is_shaped_as_the_return(tmp_path: Path, shape: str, members: int) -> None:
    options: dict[str, Any] = {"advantage_estimator": "remax", "num_generations": members, **SHAPES[shape]}
    trainer = make_trainer(tmp_path, env=PAID, max_steps=1, env_kwargs={"patient": True}, max_turns=2, **options)
    if "kl_in" in options:
        # A reference that differs, or the KL would be 0 at the start.
        with torch.no_grad():
            for parameter in trainer.ref_model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    played, batch = rollout(trainer)
    greedy = [e for e in played if e.spec.greedy]
    first = [e for e in played if e.spec.member == 0]
    assert len(greedy) == len(first) == 8 // members and len(played) == 8 + len(greedy)
    assert batch["weights"].sum().item() == pytest.approx(1.0, abs=1e-5)
    assert int((batch["episode_of"] >= 0).sum()) == 8, "greedy episodes are not trained on"
    # The toy policy answers by the seed alone: a greedy episode is that of the first member.
    for episode in first:
        (other,) = [e for e in greedy if e.spec.group == episode.spec.group]
        assert other.rows[0].token_ids == episode.rows[0].token_ids
        for i in (batch["episode_of"] >= 0).nonzero().view(-1).tolist():
            ids = batch["input_ids"][i, : int(batch["attention_mask"][i].sum())].tolist()
            if ids != episode.rows[0].token_ids[: len(ids)]:
                continue
            if SHAPES[shape].get("process_norm") != "group":
                # Cut off, so that no process reward is left; the outcome is compared away.
                assert batch["advantages"][i][batch["action_mask"][i]].abs().max() < 1e-5


def test_process_rewards_remain_beside_a_baseline_that_equals_the_outcome(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, env=PAID, advantage_estimator="remax", num_generations=1, process_norm="none", max_steps=1
    )
    played, batch = rollout(trainer)
    for episode in (episode for episode in played if not episode.spec.greedy):
        i, _ = row_of(batch, episode.rows[0].token_ids)
        to_go = 0.0
        for k in reversed(range(len(episode.steps))):
            to_go += episode.steps[k].process_reward
            found = batch["advantages"][i][batch["step_of"][i] == k]
            assert found.tolist() == pytest.approx([to_go] * len(found), abs=1e-5)


class Listening(Moody):
    """Notes in which thread it is polled."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def poll(self) -> Any:
        self.threads.append(threading.current_thread().name)
        return super().poll()


REMAX: dict[str, Any] = {"advantage_estimator": "remax", "num_generations": 2, "max_steps": 3, "use_vllm": True}


def test_greedy_episodes_are_played_within_the_rollout_that_overlaps(tmp_path: Path) -> None:
    policy = Listening()
    straight = make_trainer(tmp_path / "a", policy=Moody(), **REMAX)
    ahead = make_trainer(tmp_path / "b", policy=policy, overlap=True, **REMAX)
    straight.train()
    ahead.train()
    assert distance(weights(straight.model), weights(ahead.model)) < 1e-6
    here = [name == "rollout-ahead" for name in policy.threads]
    assert here == sorted(here) and any(here), "only the first rollout is played in the main thread"
    rewards = [[log["reward"] for log in t.state.log_history if "reward" in log] for t in (straight, ahead)]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 3


class SlowMoody(Slow):
    def _write(self, request: Any) -> Any:
        seed = request.params.seed + (request.params.temperature == 0.0)
        return super()._write(replace(request, params=replace(request.params, seed=seed)))


def test_greedy_episodes_and_over_sampling(tmp_path: Path) -> None:
    data = task_dataset(ENV, split="train", tasks=16)
    options = {**REMAX, "train_dataset": data, "per_device_train_batch_size": 8}
    plain = make_trainer(tmp_path / "a", policy=SlowMoody(), **options)
    ahead = make_trainer(tmp_path / "b", policy=SlowMoody(), over_sampling=0.5, **options)
    expected, seen = watch(plain), watch(ahead)
    plain.train()
    ahead.train()
    assert [len(batch) for batch in seen] == [12] * 3, "four groups of two and a greedy one each"
    assert Counter(e for batch in seen for e in batch) == Counter(e for batch in expected for e in batch)
