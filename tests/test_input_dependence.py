"""The probe for template collapse: its formulas, the rows it scores, and what it says of policies that are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import EOS, distance, in_ranks, logged, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.trainers.hooks.input_dependence import PROMPTS, RESPONSES, choose, measures, probe  # noqa: E402
from agent_gym.trainers.model_probes import can_share_prefixes  # noqa: E402

P = 8
PROMPT = [[5, 100 + 3 * i, 100 + 3 * i, 7] for i in range(P)]
"""Each names a token twice, and all end alike."""
NAMES = ("probe/mutual_information", "probe/retrieval", "probe/entropy", "probe/prompts")


def by_loops(scores: list[list[float]], lengths: list[int], own: list[int]) -> dict[str, float]:
    information = retrieved = entropy = 0.0
    for row, length, i in zip(scores, lengths, own, strict=True):
        information += row[i] - math.log(sum(math.exp(score) for score in row) / len(row))
        retrieved += max(range(len(row)), key=row.__getitem__) == i
        entropy -= row[i] / length
    n = len(scores)
    return {NAMES[0]: information / n, NAMES[1]: retrieved / n, NAMES[2]: entropy / n}


def test_the_measures_are_those_of_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, lengths = -30 * torch.rand((12, 5), generator=generator), torch.randint(1, 9, (12,), generator=generator)
    own = torch.randint(5, (12,), generator=generator)
    assert measures(scores, lengths, own) == pytest.approx(by_loops(scores.tolist(), lengths.tolist(), own.tolist()))
    # Certain of its own prompt and of no other: log P, and nothing is left to chance.
    certain = measures(torch.eye(5).log().clamp(min=-500.0), torch.ones(5), torch.arange(5))
    assert certain == pytest.approx({NAMES[0]: math.log(5), NAMES[1]: 1.0, NAMES[2]: 0.0})
    # The same under all: nothing, and chance, whichever prompt the largest of rounded numbers stands at.
    same = torch.full((6, 3), -700.0) + 1e-5 * torch.rand((6, 3), generator=generator)
    assert measures(same, torch.full((6,), 7), torch.arange(6) % 3) == pytest.approx(
        {NAMES[0]: 0.0, NAMES[1]: 1 / 3, NAMES[2]: 100.0}, abs=1e-4
    )


def test_a_measurement_takes_the_first_prompts_and_responses() -> None:
    found = choose([((i % 10,), (i,)) for i in range(100)])
    assert list(found) == [(i,) for i in range(PROMPTS)]
    assert found[3,] == [(3,), (13,), (23,), (33,)] and len(found[3,]) == RESPONSES


@torch.no_grad()
def one_by_one(model: Any, responses: list[Any]) -> dict[str, float]:
    """Score each pair in a pass of its own."""
    prompts = list(dict.fromkeys(prompt for prompt, _ in responses))
    scores = []
    for _, response in responses:
        row = []
        for prompt in prompts:
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
            row.append(sum(logits.log_softmax(-1)[k, token].item() for k, token in enumerate(response)))
        scores.append(row)
    return by_loops(scores, [len(z) for _, z in responses], [prompts.index(x) for x, _ in responses])


def answers(seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (P,), generator=generator).tolist()
    drawn = [tuple(torch.randint(3, 500, (n,), generator=generator).tolist()) for n in lengths]
    return [(tuple(PROMPT[i]), drawn[i]) for i in range(P)]


@pytest.mark.parametrize("options", [{}, {"ppo": True, "critic": "head"}, {"micro_batch_tokens": 40}])
def test_a_matrix_is_that_of_single_passes(tmp_path: Path, options: dict[str, Any]) -> None:
    # Weights as they are after training: far from a start at which all tokens are alike.
    trainer = make_trainer(tmp_path, **options)
    with torch.no_grad():
        for weight in trainer.accelerator.unwrap_model(trainer.model).parameters():
            weight.mul_(3.0)
    plain = getattr(trainer.model, "policy", trainer.model)
    expected = one_by_one(plain, answers())
    trainer.model.train()
    for shares in (False, True):
        trainer.shares_prefixes = shares and can_share_prefixes(trainer)
        found = probe(trainer, answers())
        assert found.pop("probe/prompts") == P
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)
        assert trainer.model.training, "it is left as it was"
    assert trainer.shares_prefixes and abs(expected[NAMES[0]]) > 0.01
    assert probe(trainer, answers()[:1] * 3) == {}, "one prompt has nothing to be told from"


def test_a_policy_that_ignores_its_prompt_has_none_and_one_that_copies_it_all(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    copied = [(tuple(prompt), (prompt[1], prompt[1], EOS)) for prompt in PROMPT]
    rows = torch.tensor([[*prompt, *response] for prompt, response in copied])
    labels = rows.masked_fill(torch.arange(rows.size(1)) < 4, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        model(rows, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = probe(make_trainer(tmp_path / "copies", model=model), copied)
    assert found["probe/mutual_information"] == pytest.approx(math.log(P), abs=0.05)
    assert found["probe/retrieval"] == 1.0 and found["probe/entropy"] < 0.05

    # Without attention a token knows only itself, and the last one is the same in all prompts.
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    found = probe(make_trainer(tmp_path / "ignores", model=model), copied)
    assert found["probe/mutual_information"] == pytest.approx(0.0, abs=1e-4)
    assert found["probe/retrieval"] == pytest.approx(1 / P) and found["probe/entropy"] > 0.5


def play(folder: Path, **options: Any) -> tuple[dict[str, list[float]], Any]:
    trainer = make_trainer(folder, max_steps=4, learning_rate=1e-2, **options)
    trainer.train()
    return {name: logged(trainer, name) for name in NAMES}, weights(trainer.model)


def test_a_run_is_probed_every_so_often_and_is_the_same_run(tmp_path: Path) -> None:
    found, moved = play(tmp_path / "probed", probe_steps=2, per_device_train_batch_size=16)
    assert found["probe/prompts"] == [4.0, 4.0] and all(len(values) == 2 for values in found.values())
    assert all(0.0 <= value <= 1.0 for value in found["probe/retrieval"])
    assert all(value <= math.log(4) for value in found["probe/mutual_information"])
    # Its tokens are drawn from all alike.
    assert all(value == pytest.approx(math.log(512), abs=1.5) for value in found["probe/entropy"])
    without, same = play(tmp_path / "plain", per_device_train_batch_size=16)
    assert without["probe/prompts"] == [] and distance(moved, same) == 0.0


def two(folder: Path) -> dict[str, list[float]]:
    return play(folder, probe_steps=2, per_device_train_batch_size=8)[0]


def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    alone, _ = play(tmp_path / "one", probe_steps=2, per_device_train_batch_size=16)
    both = in_ranks(two, 2, tmp_path / "two")
    assert both[0]["probe/prompts"] == alone["probe/prompts"]
    for name in NAMES:
        assert both[0][name] == pytest.approx(alone[name], abs=1e-3)
