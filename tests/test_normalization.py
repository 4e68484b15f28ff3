"""What a token counts: weights that sum to 1 or are constant, however rows are cut, padded or shared out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.losses import loss_weights  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

NORMALIZATIONS = choices(AgentSettings, "loss_normalization")

# Two rows of episode 0, one row of episode 1, and a dummy; steps count through the rows of an episode.
STEPS = torch.tensor([[-1, 0, 0, 0, -1], [-1, 1, -1, 2, 2], [-1, 0, -1, -1, -1], [-1, -1, -1, -1, -1]])
EPISODES = torch.tensor([0, 0, 1, -1])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("token", [[3 / 7], [1 / 7, 2 / 7], [1 / 7]]),
        ("sequence", [[1 / 3], [1 / 9, 2 / 9], [1 / 3]]),
        ("step", [[1 / 4], [1 / 4, 1 / 4], [1 / 4]]),
        ("episode", [[1 / 4], [1 / 12, 1 / 6], [1 / 2]]),
        ("constant", [[3 / 80], [1 / 80, 2 / 80], [1 / 80]]),
    ],
)
def test_each_unit_counts_the_same(by: str, expected: list[list[float]]) -> None:
    weights = loss_weights(STEPS >= 0, STEPS, EPISODES, by, constant=80)
    for row, shares in enumerate(expected):
        steps = sorted(set(STEPS[row].tolist()) - {-1})
        found = [weights[row][STEPS[row] == step].sum().item() for step in steps]
        assert found == pytest.approx(shares)
        for step in steps:
            assert weights[row][STEPS[row] == step].unique().numel() == 1
    assert (weights[STEPS < 0] == 0).all()


ROWS = st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=6), min_size=1, max_size=6)


@given(ROWS, st.sampled_from(NORMALIZATIONS), st.data())
@settings(max_examples=200)
def test_order_padding_and_processes_change_no_weight(rows: list[list[int]], by: str, data: st.DataObject) -> None:
    n, width = len(rows), max(map(len, rows))
    steps = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])
    episodes = torch.tensor(sorted(data.draw(st.integers(0, 2)) for _ in rows))
    whole = loss_weights(steps >= 0, steps, episodes, by)
    if (steps >= 0).any() and by != "constant":
        assert whole.sum().item() == pytest.approx(1.0)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    wide = torch.nn.functional.pad(steps[order], (0, 2), value=-1)
    shuffled = loss_weights(wide >= 0, wide, episodes[order], by)
    assert torch.allclose(shuffled[:, :width], whole[order]) and (shuffled[:, width:] == 0).all()
    # Two processes, each with whole episodes and a dummy row, and the counts of both added up.
    counts: list[int] = []

    def share(part: torch.Tensor, total: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        held = torch.cat([steps[part], torch.full((1, width), -1)])
        return loss_weights(held >= 0, held, torch.cat([episodes[part], torch.tensor([-1])]), by, total)[:-1]

    parts = (episodes <= 0, episodes > 0)
    for part in parts:
        share(part, lambda count: (counts.append(int(count)), count)[1])
    for part in parts:
        assert torch.allclose(share(part, lambda count: torch.tensor(sum(counts))), whole[part])


def test_a_constant_weighs_a_token_alike_in_any_company() -> None:
    def first(by: str, companion: int) -> float:
        """The weight of a token in an episode of 20 tokens beside one of another length."""
        steps = torch.where(torch.arange(1000) < torch.tensor([[20], [companion]]), 0, -1)
        return loss_weights(steps >= 0, steps, torch.tensor([0, 1]), by, constant=2 * 1000)[0, 0].item()

    assert first("constant", 1) == first("constant", 1000) == pytest.approx(1 / 2000)
    assert first("token", 1) > 40 * first("token", 1000)


@pytest.mark.parametrize("by", NORMALIZATIONS)
def test_nothing_to_train_on(by: str) -> None:
    empty = torch.full((2, 3), -1)
    assert (loss_weights(empty >= 0, empty, torch.tensor([-1, -1]), by) == 0).all()
