"""From episodes to tensors: the mask that TRL gets, where advantages lie, how rows are shared out and padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.rollout import Episode, EpisodeSpec, Row, Step  # noqa: E402
from agent_gym.trainers.batching import TrainingRow, balance, collate, episode_rows, take  # noqa: E402
from agent_gym.transcript import Span  # noqa: E402

CPU = torch.device("cpu")


def step(row: int, start: int, stop: int) -> Step:
    return Step(row, start, stop, "a", "o", 0.0, {}, [], {}, None, "stop", 0.0)


def make_episode(rows: Sequence[Sequence[tuple[str, int]]]) -> Episode:
    """Build an episode from the lengths of its spans, for example [[("user", 3), ("agent", 2), ("env", 4)]]."""
    episode = Episode(EpisodeSpec("Toy/None-v0"))
    for r, lengths in enumerate(rows):
        row, position = Row(), 0
        for source, n in lengths:
            spans = [Span(position, position + n, source, len(episode.steps))]  # type: ignore[arg-type]
            logprobs = [-0.5 - i for i in range(n)] if source == "agent" else []
            row.extend(range(100 * r + position, 100 * r + position + n), spans, logprobs)
            if source == "agent":
                episode.steps.append(step(r, position, position + n))
            position += n
        episode.rows.append(row)
    return episode


def rows_of(*lengths: int) -> list[TrainingRow]:
    return [TrainingRow([7] * n, [i > 0 for i in range(n)], [-1.0] * n, [1.0] * n) for n in lengths]


LENGTHS = st.lists(st.tuples(st.sampled_from(["agent", "env"]), st.integers(1, 5)), min_size=1, max_size=8)


@given(st.lists(LENGTHS.map(lambda turns: [("user", 2), ("agent", 1), *turns]), min_size=1, max_size=3))
def test_advantages_lie_on_the_sampled_tokens_of_their_step_and_nowhere_else(rows: Any) -> None:
    episode = make_episode(rows)
    values = [float(i + 1) for i in range(len(episode.steps))]
    made = episode_rows(episode, values)
    assert len(made) == len(episode.rows)
    for row, training in zip(episode.rows, made, strict=True):
        assert training.token_ids == row.token_ids
        assert training.logprobs == row.logprobs
        assert [a != 0 for a in training.advantages] == training.action_mask == row.action_mask
    for i, (this, value) in enumerate(zip(episode.steps, values, strict=True)):
        assert set(made[this.row].advantages[this.start : this.stop]) == {value}, f"step {i}"


def test_as_many_advantages_as_steps() -> None:
    with pytest.raises(ValueError):
        episode_rows(make_episode([[("user", 2), ("agent", 1)]]), [1.0, 2.0])


def test_the_mask_for_trl_is_the_mask_of_the_spans() -> None:
    episode = make_episode([[("user", 3), ("agent", 2), ("env", 4), ("agent", 1)], [("user", 1), ("agent", 4)]])
    batch = collate(episode_rows(episode, [1.0, 2.0, 3.0]), 3, 0, CPU)
    for i, row in enumerate(episode.rows):
        n = len(row.token_ids)
        mask = batch["completion_mask"][i] * batch["tool_mask"][i]  # what TRL multiplies the loss with
        # TRL's completion begins with the second token, because no token predicts the first.
        assert mask.bool().tolist() == [*row.action_mask[1:], *[False] * (10 - n)]
        assert torch.cat([batch["prompt_ids"][i], batch["completion_ids"][i]]).tolist()[:n] == row.token_ids
        attended = torch.cat([batch["prompt_mask"][i], batch["completion_mask"][i]])
        assert attended.tolist() == [1] * n + [0] * (10 - n)
        assert batch["advantages"][i, : n - 1].ne(0).tolist() == row.action_mask[1:]
        assert batch["sampling_per_token_logps"][i, : n - 1].tolist() == row.logprobs[1:]


def test_missing_rows_are_dummies_that_nothing_is_learned_from() -> None:
    batch = collate(rows_of(5, 3), 4, 9, CPU)
    assert batch["completion_ids"].shape == (4, 4)
    assert batch["prompt_ids"][2:].tolist() == [[9], [9]]
    # Two attended tokens: with none at all, the softmax of the attention would divide zero by zero.
    assert batch["prompt_mask"][2:].tolist() == [[1], [1]]
    assert batch["completion_mask"][2:].tolist() == [[1, 0, 0, 0]] * 2
    assert batch["tool_mask"][2:].sum() == 0
    assert batch["advantages"][2:].abs().sum() == 0


def test_a_process_without_rows_gets_dummies_only() -> None:
    batch = collate([], 2, 0, CPU)
    assert batch["completion_ids"].shape == (2, 1)
    assert batch["tool_mask"].sum() == 0


def test_take_drops_padding_columns_and_keeps_scalars() -> None:
    batch = {**collate(rows_of(9, 3, 4), 3, 0, CPU), "num_items_in_batch": torch.tensor(13)}
    part = take(batch, torch.tensor([2, 1]))
    assert {name: tuple(value.shape) for name, value in part.items()} == {
        "prompt_ids": (2, 1),
        "prompt_mask": (2, 1),
        "completion_ids": (2, 3),
        "completion_mask": (2, 3),
        "tool_mask": (2, 3),
        "advantages": (2, 3),
        "sampling_per_token_logps": (2, 3),
        "num_items_in_batch": (),
    }
    assert part["num_items_in_batch"] == 13
    assert part["completion_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_take_keeps_one_ratio_per_row() -> None:
    batch = {**collate(rows_of(4, 3), 2, 0, CPU), "importance_sampling_ratio": torch.tensor([[2.0], [3.0]])}
    assert take(batch, torch.tensor([1]))["importance_sampling_ratio"].tolist() == [[3.0]]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=3), max_size=20), st.integers(1, 5))
def test_every_episode_goes_whole_to_one_share(lengths: list[list[int]], n: int) -> None:
    episodes = [rows_of(*sizes) for sizes in lengths]
    shares = balance(episodes, n)
    assert len(shares) == n
    where = {id(row): share for share, rows in enumerate(shares) for row in rows}
    assert len(where) == sum(map(len, episodes))
    for rows in episodes:
        assert len({where[id(row)] for row in rows}) == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 4))
def test_shares_are_about_equal(lengths: list[int], n: int) -> None:
    loads = [sum(len(row.token_ids) for row in share) for share in balance([rows_of(x) for x in lengths], n)]
    # Graham's bound for the longest-first rule, against the trivial lower bound of the best division.
    best = max(max(lengths), sum(lengths) / n)
    assert max(loads) <= (4 / 3) * best + max(lengths)
    assert max(loads) - min(loads) <= max(lengths)
