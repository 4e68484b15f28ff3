"""Several sources in one run: proportions, passes, distinct tasks, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("datasets")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.schedule import group_specs  # noqa: E402
from agent_gym.trainers.tasks import Mixture, mix_datasets, parse_mixture  # noqa: E402

GSM8K, PLAIN = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"


def mixture(sizes: list[int], weights: list[float]) -> Mixture:
    starts = itertools.accumulate(sizes, initial=0)
    sources = tuple(tuple(range(a, a + n)) for a, n in zip(starts, sizes, strict=False))
    return Mixture(sources, tuple(weight / sum(weights) for weight in weights))


def dealt(mix: Mixture, size: int, seed: int, batches: int) -> Iterator[int]:
    """The tasks of the first batches, one after the other."""
    return (task for batch in itertools.islice(mix.batches(size, seed), batches) for task in batch)


@st.composite
def mixtures(draw: Any, slack: int = 0) -> tuple[Mixture, int]:
    """A mixture and a size of batch that each source can serve, with `slack` tasks to spare."""
    weights = draw(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=4))
    batch = draw(st.integers(1, 9))
    least = [-int(-w / sum(weights) * batch // 1) + slack for w in weights]
    sizes = [need + draw(st.integers(0, 7)) for need in least]
    return mixture(sizes, weights), batch


# The text form.


def test_parse_by_hand() -> None:
    assert parse_mixture(GSM8K) == [(GSM8K, 1.0)]
    assert parse_mixture(f" {GSM8K} = 0.5 , {PLAIN}") == [(GSM8K, 0.5), (PLAIN, 1.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has a part without environment id"),
        (f"{GSM8K}=1,gsm8k=2", f"names {GSM8K} twice"),
        *[(f"A/B-v0={bad}", f"the weight of A/B-v0 is '{bad}'; it must") for bad in ("", "much", "-1", "nan")],
    ],
)
def test_bad_text_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_mixture(text)


# The data set.


def test_a_mixture_keeps_the_tasks_their_sources_and_its_proportions() -> None:
    data = mix_datasets([task_dataset(GSM8K, tasks=4), task_dataset(PLAIN, {"max_turns": 3}, tasks=2)], [3, 1])
    assert data["env_id"] == [GSM8K] * 4 + [PLAIN] * 2 and data["index"] == [0, 1, 2, 3, 0, 1]
    assert data["source"] == [0, 0, 0, 0, 1, 1] and data["weight"] == [0.75] * 4 + [0.25] * 2
    assert Mixture.of(data) == Mixture(((0, 1, 2, 3), (4, 5)), (0.75, 0.25))
    rows = [row for row in data.select([1, 5]) for _ in range(2)]
    specs = group_specs(rows, first=0, group_size=2, sampling_seed=0)
    found = [(spec.env_id, dict(spec.env_kwargs), spec.index, spec.group) for spec in specs]
    assert found == [(GSM8K, {}, 1, 0)] * 2 + [(PLAIN, {"max_turns": 3}, 1, 1)] * 2
    three = mix_datasets([task_dataset(GSM8K, {"max_turns": n}, tasks=2) for n in (2, 3, 4)], [5, 1, 3])
    assert Mixture.of(three.filter(lambda row: row["source"] != 0)) == Mixture(((0, 1), (2, 3)), (0.25, 0.75))
    one = task_dataset(GSM8K, tasks=3)
    assert Mixture.of(one) is Mixture.of(mix_datasets([one], [7])) is None


def test_bad_weights_and_sources_are_refused() -> None:
    data = task_dataset(GSM8K, tasks=2)
    for weights, words in (
        ([1], "2 data sets and 1 weights"),
        ([1, 0], "weight 1 of the mixture is 0; it must be a positive number"),
        ([1, 1], "twice, in source 0 and in source 1: .*'index': 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            mix_datasets([data, data], weights)
    with pytest.raises(ConfigError, match="source 1 of the mixture has no tasks"):
        mix_datasets([data, data.select([])], [1, 1])
    with pytest.raises(ConfigError, match=r"datasets\[0\] has no column 'seed'"):
        mix_datasets([data.remove_columns("seed")], [1])
    words = "source 1 of the mixture has 3 tasks, but its share of 0.25 makes 4 of the 16 tasks"
    with pytest.raises(ConfigError, match=words):
        mixture([50, 3], [3, 1]).check(16)
    mixture([50, 4], [3, 1]).check(16)


# The order.


def test_the_deal_by_hand() -> None:
    batches = mixture([4, 3], [2, 1]).batches(3, seed=0, shuffle=False)
    assert list(itertools.islice(batches, 5)) == [[0, 4, 1], [2, 5, 3], [0, 6, 1], [2, 4, 3], [0, 5, 1]]


@given(mixtures(), st.integers(0, 99))
def test_batches_are_distinct_and_each_pass_over_a_source_takes_every_task_once(
    case: tuple[Mixture, int], seed: int
) -> None:
    mix, size = case
    mix.check(size)
    drawn = list(dealt(mix, size, seed, 100))
    assert all(len(set(drawn[start : start + size])) == size for start in range(0, len(drawn), size))
    for tasks, share in zip(mix.sources, mix.shares, strict=True):
        mine = [task for task in drawn if task in tasks]
        for start in range(0, len(mine) - len(tasks) + 1, len(tasks)):
            assert set(mine[start : start + len(tasks)]) == set(tasks)
        # Turns that a small source had to give away come back: the debt does not grow with the run.
        assert abs(len(mine) - share * size * 100) <= 2 * len(mix.shares)


@given(mixtures(slack=2), st.integers(0, 99))
def test_the_shares_hold_at_every_moment(case: tuple[Mixture, int], seed: int) -> None:
    mix, size = case
    source = {task: s for s, tasks in enumerate(mix.sources) for task in tasks}
    counts: Counter[int] = Counter()
    for n, task in enumerate(dealt(mix, size, seed, 40), 1):
        counts[source[task]] += 1
        assert all(counts[s] < share * n + 1 + 1e-9 for s, share in enumerate(mix.shares))


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    mix = mixture([30, 30], [1, 1])
    drawn = {seed: list(dealt(mix, 4, seed, 30)) for seed in (0, 1)}
    first, second = ([task for task in drawn[0] if task < 30][part] for part in (slice(30), slice(30, None)))
    assert first != second and sorted(first) == sorted(second)
    assert [task for task in drawn[1] if task < 30][:30] != first
    assert [task - 30 for task in drawn[0] if task >= 30][:30] != first  # sources are not shuffled alike


def test_fresh_tasks_keep_the_shares_even_one_at_a_time() -> None:
    mix = mixture([50, 50], [9, 1])
    drawn = [mix.fresh_tasks([], 1, seed)[0] for seed in range(400)]
    assert 20 <= sum(task >= 50 for task in drawn) <= 60


def test_fresh_tasks_come_from_the_sources_that_have_some_left() -> None:
    mix = mixture([4, 50], [9, 1])
    assert all(len(mix.fresh_tasks(range(4), 3, seed)) == 3 for seed in range(20))
    assert mix.fresh_tasks(range(54), 3, 0) == []


@given(mixtures(), st.integers(0, 12), st.integers(0, 99))
def test_fresh_tasks_are_new_and_the_same_everywhere(case: tuple[Mixture, int], count: int, seed: int) -> None:
    mix, size = case
    taken = next(mix.batches(size, seed))
    drawn = mix.fresh_tasks(taken, count, seed)
    assert len(drawn) == len(set(drawn)) <= count and not set(drawn) & set(taken)
    assert drawn == mix.fresh_tasks(set(taken), count, seed)
