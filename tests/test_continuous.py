"""Training without rounds: no group is lost, none comes twice, no token is older than `max_staleness`."""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch  # noqa: E402
from model_server import model_server  # noqa: E402
from trainer_tools import (  # noqa: E402
    ENV,
    RandomPolicy,
    distance,
    in_ranks,
    logged,
    make_trainer,
    model_folder,
    settings,
    weights,
)

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies import Generation  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402


class Slow(RandomPolicy):
    """Takes as many polls for a turn as it has tokens, from the weights that were there when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[int, int] = {}

    def poll(self) -> list[Generation]:
        done = []
        for request in list(self._queue.values()):
            answer = self._write(request)
            self.left[request.id] = self.left.get(request.id, len(answer.token_ids)) - 1
            if self.left[request.id] == 0:
                done.append(answer)
                del self._queue[request.id], self.left[request.id]
        return done

    def abort(self, request_id: int) -> None:
        super().abort(request_id)
        self.left.pop(request_id, None)


OPTIONS: dict[str, Any] = {"per_device_train_batch_size": 16, "max_steps": 6}  # four groups of four
SERVER: dict[str, Any] = {"layout": "server", "vllm_server_base_url": "http://not.asked"}
"""Plays in the background; the policy of these tests stands for the servers."""


def build(folder: Any, policy: Any = "slow", **options: Any) -> Any:
    policy = Slow() if policy == "slow" else policy
    data = task_dataset(ENV, options.pop("env_kwargs", None), split="train", tasks=24)
    return make_trainer(folder, policy=policy, train_dataset=data, **{**OPTIONS, **options})


def run(trainer: Any, resume: Any = None) -> list[list[tuple[int, int, int]]]:
    """Train, and return which episodes each rollout trains on: task, member, sampling seed."""
    batches: list[list[tuple[int, int, int]]] = []
    share = trainer._stage_share

    def counted(rollout: Any) -> None:
        batches.append([(e.spec.index, e.spec.member, e.spec.sampling_seed) for e in rollout.episodes])
        share(rollout)

    trainer._stage_share = counted
    trainer.train(resume_from_checkpoint=resume)
    return batches


def count(batches: Any) -> Counter[Any]:
    return Counter(episode for batch in batches for episode in batch)


@pytest.mark.parametrize(
    ("staleness", "where"),
    [(3, {}), (1, SERVER), *(pytest.param(*more, marks=pytest.mark.slow) for more in [(1, {}), (3, SERVER)])],
    ids=["3-colocate", "1-server", "1-colocate", "3-server"],
)
def test_a_run_trains_on_the_episodes_of_a_synchronous_run(
    tmp_path: Path, staleness: int, where: dict[str, Any]
) -> None:
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": task_dataset(ENV, split="test", tasks=3)}
    plain, other = build(tmp_path / "a"), build(tmp_path / "b", max_staleness=staleness, **where, **evaluation)
    seen, found = run(plain), run(other)
    assert [count([batch]) for batch in found] == [count([batch]) for batch in seen], "in the same order, too"
    assert logged(other, "eval_episodes") == [3] * 6
    oldest = logged(other, "rollout/staleness_max")
    assert oldest[0] == 0 and 1 <= max(oldest) <= staleness
    middle, most = logged(other, "rollout/staleness_p50"), logged(other, "rollout/staleness_p90")
    assert all(a <= b <= c for a, b, c in zip(middle, most, oldest, strict=True)) and 1 <= max(most)
    assert "sampling/ratio_mean" in other.state.log_history[2], "older weights are corrected for"
    assert logged(plain, "rollout/staleness_max") == [0] * 6
    assert not [thread for thread in threading.enumerate() if thread.name == "rollout"]


class LastFirst(Slow):
    """Answers what was asked last, so that later batches are over first."""

    def poll(self) -> list[Generation]:
        number = max(self._queue)
        return [self._write(self._queue.pop(number))]


def test_a_batch_waits_for_its_slowest_though_later_ones_are_done(tmp_path: Path) -> None:
    trainer = build(tmp_path / "b", LastFirst(), max_staleness=2)
    seen, found = run(build(tmp_path / "a")), run(trainer)
    assert [count([batch]) for batch in found] == [count([batch]) for batch in seen]
    assert max(logged(trainer, "rollout/staleness_max")) <= 2


def test_no_staleness_behind_a_server_is_the_synchronous_run_to_the_digit(tmp_path: Path) -> None:
    plain, server = build(tmp_path / "a", use_vllm=True), build(tmp_path / "b", **SERVER)
    assert run(plain) == run(server)
    assert distance(weights(plain.model), weights(server.model)) == 0.0


def test_a_rollout_of_several_updates_counts_them(tmp_path: Path) -> None:
    trainer = build(tmp_path, max_staleness=5, num_iterations=2, max_steps=12)
    run(trainer)
    assert trainer.args.stale_rollouts == 2 and max(logged(trainer, "rollout/staleness_max")) == 4


@pytest.mark.parametrize("where", [{}, pytest.param(SERVER, marks=pytest.mark.slow)], ids=["colocate", "server"])
def test_a_resumed_run_counts_no_episode_twice(tmp_path: Path, where: dict[str, Any]) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "max_staleness": 2, **where}
    seen = run(build(tmp_path, **saving))
    # What is in play is in no checkpoint, so that a run may go on with another staleness.
    for changes in ({}, {"max_staleness": 0}):
        rest = run(build(tmp_path, **{**saving, **changes}), str(tmp_path / "checkpoint-3"))
        assert [count([batch]) for batch in rest] == [count([batch]) for batch in seen[3:]]


@pytest.mark.slow
def test_a_checkpoint_between_two_updates_of_a_rollout(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "max_staleness": 2, "num_iterations": 2}
    seen = run(build(tmp_path, **saving))
    rest = run(build(tmp_path, **saving), str(tmp_path / "checkpoint-3"))
    assert [count([batch]) for batch in rest] == [count([batch]) for batch in seen[1:]], "its groups, played again"


def ranked(folder: str, where: dict[str, Any]) -> tuple[Any, Any]:
    trainer = build(folder, max_staleness=1, per_device_train_batch_size=8, **where)
    return run(trainer), weights(trainer.model)


@pytest.mark.parametrize("where", [pytest.param({}, marks=pytest.mark.slow), SERVER], ids=["colocate", "server"])
def test_two_ranks_play_groups_of_their_own(tmp_path: Path, where: dict[str, Any]) -> None:
    (seen, one), (seen_other, other) = in_ranks(ranked, 2, str(tmp_path / "two"), where)
    assert distance(one, other) == 0.0
    assert [len(batch) for batch in [*seen, *seen_other]] == [8] * 12
    assert count([*seen, *seen_other]) == count(run(build(tmp_path / "one")))


class Watched(Slow):
    """Records the trainer's step when it was given weights, and how often it was polled during updates.

    Between a rollout and its update it ends no turn, so that a coming batch is still in play when the update begins.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.updating = False
        self.during_updates = 0
        self.trainer: Any = None

    def sync(self, named_weights: Any) -> None:
        assert not self.pending, "an engine is given weights when nothing is in it"
        super().sync(named_weights)
        self.steps.append(self.trainer.state.global_step)

    def poll(self) -> Any:
        self.during_updates += self.updating
        rollouts, number = self.trainer.scheduler._continuous, self.trainer._rollout_number
        between = self.trainer.args.max_staleness and not rollouts._missing[number] and not self.updating
        return [] if between else super().poll()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_server_samples_during_updates_and_has_the_newest_weights(tmp_path: Path, staleness: int) -> None:
    policy = Watched()
    policy.trainer = trainer = build(tmp_path, policy, max_staleness=staleness, **SERVER)
    play, compute_loss = trainer._stage_play, trainer._compute_loss

    def played(rollout: Any) -> None:
        policy.updating = False
        play(rollout)

    def loss(*args: Any) -> Any:
        policy.updating = True
        until = time.monotonic() + 60
        in_play = trainer.scheduler._continuous._missing
        while in_play.total() and not policy.during_updates and time.monotonic() < until:
            time.sleep(0.01)
        return compute_loss(*args)

    trainer._stage_play, trainer._compute_loss = played, loss
    trainer.train()
    assert policy.steps == [*range(6)]
    assert (policy.during_updates > 0) == (staleness > 0)


class Failing(Slow):
    trainer: Any = None

    def poll(self) -> Any:
        if self.trainer.state.global_step == 2:
            raise RolloutError("the server is gone")
        return super().poll()


def test_what_playing_in_the_background_fails_with_is_raised_where_episodes_are_needed(tmp_path: Path) -> None:
    policy = Failing()
    policy.trainer = trainer = build(tmp_path, policy, max_staleness=1, **SERVER)
    with pytest.raises(RolloutError, match="the server is gone"):
        trainer.train()
    assert trainer.state.global_step in (2, 3), "the update that was under way is whole"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_staleness": -1}, "max_staleness is -1; it must be at least 0"),
        ({"max_staleness": 1, "max_refills": 1}, "does not go with max_refills"),
        ({"max_staleness": 1, "vllm_importance_sampling_correction": False}, "needs vllm_importance_sampling"),
        ({"max_staleness": 3, "num_iterations": 4}, "is 3, and a rollout is trained on in 4 optimizer steps"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes).check_staleness()


# Real engines.


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a real engine: in this process, or behind a server."""
    pytest.importorskip("vllm")
    if request.param == "colocate":
        yield {"use_vllm": True, "max_num_seqs": 20}  # fewer than are in play, so that turns begin one after the other
        return
    with model_server(Path(model_folder()), tmp_path / "log.txt") as (url, _):
        yield {"layout": "server", "vllm_server_base_url": url}


@pytest.mark.parametrize(
    "engine", ["colocate", pytest.param("server", marks=pytest.mark.slow)], indirect=True, ids=["colocate", "server"]
)
def test_each_token_has_the_logprob_of_the_weights_whose_version_it_carries(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    options = {"max_turn_tokens": 40, "max_episode_tokens": 300, "learning_rate": 3e-2, "env_kwargs": {"patient": True}}
    trainer = build(tmp_path, policy=None, max_staleness=2, max_turns=3, **options, **engine)
    weights_at: dict[int, Any] = {}
    batches: list[Any] = []
    hand_over, share = trainer.scheduler.hand_over, trainer._stage_share

    def handed_over(version: int) -> None:
        weights_at[version] = copy.deepcopy(trainer.model.state_dict())
        hand_over(version)

    def shared(rollout: Any) -> None:
        batches.append(rollout.episodes)
        share(rollout)

    trainer.scheduler.hand_over, trainer._stage_share = handed_over, shared
    trainer.train()
    trainer.scheduler.policy.close()
    seen, others, pieces = set(), [], 0
    for rollout, episodes in enumerate(batches):
        for episode in episodes:
            ids = torch.tensor([episode.rows[0].token_ids])
            scored: dict[int, torch.Tensor] = {}  # by version of the weights
            for step in episode.steps:
                place = step.start
                pieces = max(pieces, len(step.versions))
                for version, count in step.versions:
                    assert rollout - 2 <= version <= rollout
                    for of, state in weights_at.items():
                        if of not in (version, 0):
                            continue
                        if of not in scored:
                            trainer.model.load_state_dict(state)
                            with torch.no_grad():
                                scored[of] = trainer.model(input_ids=ids).logits.log_softmax(-1)
                        labels = ids[0, place : place + count, None]
                        found = scored[of][0, place - 1 : place + count - 1].gather(1, labels)
                        given = torch.tensor(episode.rows[0].logprobs[place : place + count])
                        apart = (found[:, 0] - given).abs().max().item()
                        if of == version:
                            assert apart < 2e-3, (rollout, version)
                            seen.add(rollout - version)
                        else:
                            others.append(apart)
                    place += count
    assert max(seen) > 0 and max(others) > 0.1, "old tokens, and weights that differ"
    assert pieces > 1, "turns that were interrupted"
