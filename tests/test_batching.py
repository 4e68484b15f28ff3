"""From episodes to tensors: whose each token is, what is kept of a row, how rows are shared out and padded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import make_row  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.rollout import Episode, EpisodeSpec, Row, Step  # noqa: E402
from agent_gym.trainers.batch import (  # noqa: E402
    WORLD,
    TrainingEpisode,
    balance,
    collate,
    micro_batches,
    step_of,
    take,
    training_episode,
)
from agent_gym.transcript import Span  # noqa: E402

CPU = torch.device("cpu")


def step(row: int, start: int, stop: int, **changes: Any) -> Step:
    return dataclasses.replace(Step(row, start, stop, "a", "o", 0.0, {}, [], {}, None, "stop", 0.0), **changes)


def make_episode(rows: Sequence[Sequence[tuple[str, int]]], *, truncated: bool = False) -> Episode:
    """Build an episode from the lengths of its spans, for example [[("user", 3), ("agent", 2), ("env", 4)]]."""
    episode = Episode(EpisodeSpec("Toy/None-v0"), truncated=truncated, terminated=not truncated)
    for r, lengths in enumerate(rows):
        row, position = Row(), 0
        for source, n in lengths:
            spans = [Span(0, n, source, len(episode.steps))]  # type: ignore[arg-type]
            logprobs = [-0.5 - i for i in range(n)] if source == "agent" else []
            row.extend(range(100 * r + position, 100 * r + position + n), spans, logprobs)
            if source == "agent":
                episode.steps.append(step(r, position, position + n))
            position += n
        episode.rows.append(row)
    return episode


def made_of(*lengths: int, number: int = 0) -> TrainingEpisode:
    """An episode with a row and a step of each length; the first token of a row is the world's."""
    rows = [make_row([7] * n, [WORLD, *[k] * (n - 1)], [-1.0] * n) for k, n in enumerate(lengths)]
    zeros = [0.0] * len(lengths)
    return TrainingEpisode(number, 0, True, rows, zeros, zeros, [0] * len(lengths))


TURNS = st.lists(st.tuples(st.sampled_from(["agent", "env"]), st.integers(1, 5)), min_size=1, max_size=8)
LENGTHS = st.lists(TURNS.map(lambda turns: [("user", 2), ("agent", 1), *turns]), min_size=1, max_size=3)


@given(LENGTHS, st.booleans())
def test_each_token_knows_the_step_that_sampled_it(lengths: Any, truncated: bool) -> None:
    episode = make_episode(lengths, truncated=truncated)
    made = training_episode(episode, 5).rows
    assert len(made) == len(episode.rows)
    for row, training in zip(episode.rows, made, strict=True):
        n = len(training.token_ids)
        assert training.token_ids == row.token_ids[:n]
        assert training.logprobs == row.logprobs[:n]
        assert [k != WORLD for k in step_of(training)] == row.action_mask[:n]
    for k, this in enumerate(episode.steps):
        assert step_of(made[this.row])[this.start : this.stop] == [k] * (this.stop - this.start)


@given(LENGTHS, st.booleans())
def test_a_row_ends_with_its_last_sampled_token_unless_it_was_cut_off_there(lengths: Any, truncated: bool) -> None:
    episode = make_episode(lengths, truncated=truncated)
    made = training_episode(episode, 0).rows
    for i, (row, training) in enumerate(zip(episode.rows, made, strict=True)):
        assert sum(row.action_mask) == sum(k != WORLD for k in step_of(training))  # no sampled token is lost
        if truncated and i == len(made) - 1:
            assert training.token_ids == row.token_ids
        else:
            assert step_of(training)[-1] != WORLD


def test_what_else_is_kept_of_an_episode() -> None:
    episode = make_episode([[("user", 2), ("agent", 1), ("env", 1), ("agent", 1), ("env", 1), ("agent", 1)]])
    episode = dataclasses.replace(
        episode,
        spec=EpisodeSpec("Toy/None-v0", group=3),
        messages=[{"role": "user", "content": "room 1"}, {"role": "assistant", "content": "go"}],
        steps=[
            dataclasses.replace(episode.steps[0], observation="room 2", reward=1.0, process_reward=0.25),
            dataclasses.replace(episode.steps[1], observation="room 1", reward=0.5),
            dataclasses.replace(episode.steps[2], observation="over", reward=2.0, process_reward=-1.0),
        ],
    )
    kept = training_episode(episode, 13)
    assert (kept.number, kept.group, kept.terminated, kept.trained) == (13, 3, True, True)
    assert (kept.outcome, kept.process) == ([0.75, 0.5, 3.0], [0.25, 0.0, -1.0])
    # A state is what the environment wrote before the step: the first and the third were taken in the same room.
    first, second, third = kept.anchors
    assert first == third != second
    assert kept.n_tokens == 7
    assert training_episode(dataclasses.replace(episode, terminated=False, truncated=True), 13).terminated is False


def test_the_tensors_of_a_batch() -> None:
    spans = [[("user", 3), ("agent", 2), ("env", 4), ("agent", 1)], [("user", 1), ("agent", 4)]]
    episode = make_episode(spans)
    batch = collate([training_episode(episode, 0)], 3, 9, CPU)
    for i, row in enumerate(episode.rows):
        n = len(row.token_ids)
        assert batch["input_ids"][i].tolist() == [*row.token_ids, *[9] * (10 - n)]
        assert batch["attention_mask"][i].tolist() == [1] * n + [0] * (10 - n)
        assert batch["action_mask"][i].tolist() == [*row.action_mask, *[False] * (10 - n)]
        assert batch["engine_logps"][i].tolist() == [*row.logprobs, *[0.0] * (10 - n)]
    assert batch["step_of"][0].tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, -1, 1]
    assert batch["step_of"][1].tolist() == [-1, 2, 2, 2, 2, -1, -1, -1, -1, -1]
    assert batch["episode_of"].tolist() == [0, 0, -1]
    assert not batch["action_mask"][:, 0].any()


def test_missing_rows_are_dummies_that_nothing_is_learned_from() -> None:
    batch = collate([made_of(5, 3)], 4, 9, CPU)
    assert batch["input_ids"].shape == (4, 5)
    assert batch["input_ids"][2:].tolist() == [[9] * 5] * 2
    # Two attended tokens: with none at all, the softmax of the attention would divide zero by zero.
    assert batch["attention_mask"][2:].tolist() == [[1, 1, 0, 0, 0]] * 2
    assert not batch["action_mask"][2:].any()
    assert batch["episode_of"].tolist() == [0, 0, -1, -1]


def test_take_drops_padding_columns_and_keeps_numbers_of_rows() -> None:
    batch = collate([made_of(9, 3), made_of(4)], 4, 0, CPU) | {
        "engine_ratio": torch.tensor([[2.0], [3.0], [4.0], [5.0]])
    }
    part = take(batch, torch.tensor([2, 1]))
    assert {name: tuple(value.shape) for name, value in part.items()} == {
        "input_ids": (2, 4),
        "attention_mask": (2, 4),
        "action_mask": (2, 4),
        "step_of": (2, 4),
        "engine_logps": (2, 4),
        "episode_of": (2,),
        "engine_ratio": (2, 1),  # of a whole row, where the correction is by sequence
    }
    assert part["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert part["episode_of"].tolist() == [1, 0]
    assert part["engine_ratio"].tolist() == [[4.0], [3.0]]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=3), max_size=20), st.integers(1, 5))
def test_every_episode_goes_whole_to_one_share(lengths: list[list[int]], n: int) -> None:
    episodes = [made_of(*sizes, number=number) for number, sizes in enumerate(lengths)]
    shares = balance(episodes, n)
    assert len(shares) == n
    assert sorted(episode.number for share in shares for episode in share) == list(range(len(episodes)))
    # Every process computes the division for itself, from episodes that may arrive in another order.
    assert balance(episodes[::-1], n) == shares
    # Longest first leaves loads that differ by one episode at most (Graham, SIAM J. Appl. Math. 17, 1969).
    loads = [sum(episode.n_tokens for episode in share) for share in shares]
    assert max(loads) - min(loads) <= max([episode.n_tokens for episode in episodes], default=0)


@given(
    st.lists(st.integers(2, 60), max_size=40),
    st.none() | st.integers(1, 8),
    st.none() | st.integers(2, 200),
    st.booleans(),
)
def test_a_pass_stays_within_its_budgets(lengths: list[int], rows: Any, tokens: Any, packed: bool) -> None:
    passes = micro_batches(lengths, max_rows=rows, max_tokens=tokens, packed=packed)
    assert sorted(row for one in passes for row in one) == list(range(len(lengths)))
    for one in passes:
        sizes = [lengths[row] for row in one]
        assert sizes == sorted(sizes, reverse=True)
        assert rows is None or len(one) <= rows
        cost = sum(sizes) if packed else max(sizes) * len(sizes)
        assert tokens is None or cost <= tokens or len(one) == 1
    if rows is None and tokens is None:
        assert len(passes) <= 1
    if packed and tokens is not None and rows is None and lengths:
        # No two passes would fit into one: as few as first fit promises, less than twice what is needed.
        fills = sorted(sum(lengths[row] for row in one) for one in passes)
        assert len(fills) < 2 or fills[0] + fills[1] > tokens


def test_passes_by_tokens_hold_more_short_rows() -> None:
    assert micro_batches([4, 100, 50, 4, 4, 45], max_tokens=100) == [[1], [2, 5], [0, 3, 4]]
    assert micro_batches([4, 100, 50, 4, 4, 45], max_tokens=100, packed=True) == [[1], [2, 5, 0], [3, 4]]
    assert micro_batches([3, 9, 3, 5], max_rows=2) == [[1, 3], [0, 2]]
