"""What the tests of the estimators share: episodes as plain lists, and the slowest correct way to work with them.

The oracles in the tests never see a tensor. They walk over lists with one entry per step or token, sum up explicitly
where the product runs recursions, and know nothing of padding.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from agent_gym.trainers.batch import TrainingRow
from agent_gym.trainers.estimators import Credit, Experience


@dataclass(frozen=True)
class Step:
    """One step: a penalty and a value for each of its tokens."""

    outcome: float = 0.0
    process: float = 0.0
    penalties: tuple[float, ...] = (0.0,)
    values: tuple[float, ...] = (0.0,)
    anchor: int = 0


@dataclass(frozen=True)
class Played:
    """One episode."""

    steps: tuple[Step, ...]
    group: int = 0
    terminated: bool = True
    baseline: float = 0.0
    success: bool = False

    @property
    def n_tokens(self) -> int:
        return sum(len(step.penalties) for step in self.steps)


def pack(episodes: list[Played], extra_steps: int = 0, extra_tokens: int = 0) -> Experience:
    """Lay lists out as tensors, with more padding than necessary on request."""
    shape = (len(episodes), max([len(e.steps) for e in episodes], default=0) + extra_steps)
    width = max([e.n_tokens for e in episodes], default=0) + extra_tokens
    outcome, process = torch.zeros(shape).double(), torch.zeros(shape).double()
    step_mask, anchors = torch.zeros(shape).bool(), torch.zeros(shape).long()
    penalty, values = torch.zeros(shape[0], width).double(), torch.zeros(shape[0], width).double()
    token_mask, step_of = torch.zeros(shape[0], width).bool(), torch.zeros(shape[0], width).long()
    for n, episode in enumerate(episodes):
        t = 0
        for k, step in enumerate(episode.steps):
            outcome[n, k], process[n, k], anchors[n, k], step_mask[n, k] = step.outcome, step.process, step.anchor, True
            for number, value in zip(step.penalties, step.values, strict=True):
                penalty[n, t], values[n, t], token_mask[n, t], step_of[n, t] = number, value, True, k
                t += 1
    return Experience(
        outcome=outcome,
        process=process,
        penalty=penalty,
        step_mask=step_mask,
        token_mask=token_mask,
        step_of=step_of,
        terminated=torch.tensor([e.terminated for e in episodes], dtype=torch.bool),
        groups=torch.tensor([e.group for e in episodes], dtype=torch.long),
        values=values,
        anchors=anchors,
        baselines=torch.tensor([e.baseline for e in episodes], dtype=torch.float64),
        successes=torch.tensor([e.success for e in episodes], dtype=torch.bool),
        running_means={},
    )


def numbers(episodes: list[Played], per_token: torch.Tensor) -> list[list[float]]:
    """Cut a result back to the tokens of each episode; whatever stands in padding must be 0."""
    assert per_token.shape[0] == len(episodes)
    for row, episode in zip(per_token, episodes, strict=True):
        assert not row[episode.n_tokens :].any()
    return [row[: episode.n_tokens].tolist() for row, episode in zip(per_token, episodes, strict=True)]


def same(got: list[list[float]], expected: list[list[float]], tolerance: float = 1e-8) -> None:
    """Compare number by number."""
    assert [len(row) for row in got] == [len(row) for row in expected]
    np.testing.assert_allclose(sum(got, []), sum(expected, []), rtol=tolerance, atol=tolerance)


@st.composite
def batches(draw: st.DrawFn, min_episodes: int = 1) -> list[Played]:
    """Up to six episodes of up to four steps of up to three tokens, with shared states and groups of any size."""
    sizes = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=min_episodes, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Coarse numbers make ties, and their sums are exact.
    coarse = draw(st.booleans())
    likely = draw(st.sampled_from([0.0, 0.3, 1.0]))

    def some(n: int = 1) -> tuple[float, ...]:
        drawn = random.integers(-8, 9, n) / 8 if coarse else random.normal(0.0, 3.0, n)
        return tuple((drawn * (random.random(n) < likely)).tolist())

    episodes = []
    for lengths in sizes:
        steps = [Step(*some(2), some(length), some(length), int(random.integers(3))) for length in lengths]
        ended = bool(random.integers(2))
        episodes.append(Played(tuple(steps), int(random.integers(3)) * 7 - 5, ended, *some(), bool(random.integers(2))))
    return episodes


DISCOUNTS = st.sampled_from([0.0, 0.5, 0.75, 0.95, 1.0])
CREDITS = st.builds(
    Credit,
    gamma=DISCOUNTS,
    lam=DISCOUNTS,
    step_gamma=DISCOUNTS,
    step_lam=DISCOUNTS,
    scale=st.sampled_from(["group", "batch", "none"]),
    whiten=st.booleans(),
)


# Oracles that several tests build on.


def mean_and_std(row: list[float]) -> tuple[float, float]:
    mean = sum(row) / len(row)
    if len(row) == 1 or len(set(row)) == 1:
        return row[0], 0.0
    return mean, math.sqrt(sum((x - mean) ** 2 for x in row) / (len(row) - 1))


def whitened(row: list[float]) -> list[float]:
    if not row:
        return []
    mean, std = mean_and_std(row)
    return [(x - mean) / (std + 1e-8) for x in row]


def whitened_rows(rows: list[list[float]]) -> list[list[float]]:
    flat = iter(whitened([x for row in rows for x in row]))
    return [[next(flat) for _ in row] for row in rows]


def total(episode: Played) -> float:
    """What an episode earned without its process rewards."""
    return sum(step.outcome + sum(step.penalties) for step in episode.steps)


def step_of_tokens(episode: Played) -> list[int]:
    return [k for k, step in enumerate(episode.steps) for _ in step.penalties]


def reward_of_tokens(episode: Played) -> list[float]:
    """The reward of each step on the last token up to its end, or on the first of all; penalties where they are."""
    rewards = [penalty for step in episode.steps for penalty in step.penalties]
    for k, step in enumerate(episode.steps):
        before = [t for t, j in enumerate(step_of_tokens(episode)) if j <= k]
        if rewards:
            rewards[before[-1] if before else 0] += step.outcome + step.process
    return rewards


def value_of_tokens(episode: Played) -> list[float]:
    return [value for step in episode.steps for value in step.values]


def process_to_go(episode: Played, gamma: float) -> list[float]:
    """For each step the process rewards from it on."""
    steps = episode.steps
    return [sum(gamma ** (j - k) * steps[j].process for j in range(k, len(steps))) for k in range(len(steps))]


def explicit_gae(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """The defining sum of GAE, each advantage for itself; nothing is to come behind the last moment."""
    following = [*values[1:], 0.0][: len(values)]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    n = len(deltas)
    advantages = [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, n)) for t in range(n)]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def make_row(ids: Sequence[int], steps: Sequence[int], logprobs: Sequence[float] = ()) -> TrainingRow:
    """A row of tokens, of which each is sampled in its step, or is the environment's where that is -1."""
    known = np.zeros(len(ids), np.float32)
    known[: len(logprobs)] = logprobs
    return TrainingRow(np.array(ids, np.int32), np.array(steps, np.int32), known)


def longer(row: TrainingRow, *more: Any) -> TrainingRow:
    """A row with further tokens, given as to `make_row`."""
    other = make_row(*more)
    return TrainingRow(*(np.concatenate(pair) for pair in zip(row[:3], other[:3], strict=True)))


def everywhere(*processes: Callable[[Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """Call a function for each process at the same time, with a way to gather between them; return what they return."""
    meeting, given = threading.Barrier(len(processes)), [None] * len(processes)

    def run(rank: int) -> Any:
        def gather(mine: Any) -> list[Any]:
            given[rank] = mine
            meeting.wait(30)
            found = list(given)
            meeting.wait(30)
            return found

        try:
            return processes[rank](gather)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(run, range(len(processes))))
