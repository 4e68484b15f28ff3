"""From episodes to tensors: whose each token is, what is kept of a row, how rows are shared out, padded and packed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from estimator_tools import make_row  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from trainer_tools import distance, lora, make_trainer, model_folder, train, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MambaConfig, Qwen2Config  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.rollout import Episode, EpisodeSpec, Row, Step  # noqa: E402
from agent_gym.trainers.batch import (  # noqa: E402
    NOT_SAMPLED,
    TrainingEpisode,
    balance,
    collate,
    common_prefixes,
    micro_batches,
    select_rows,
    training_episode,
)
from agent_gym.trainers.forward import first_token_at, pack_rows, pad_rows, share_prefixes  # noqa: E402
from agent_gym.trainers.losses import loss_weights  # noqa: E402
from agent_gym.trainers.model_probes import can_share_prefixes  # noqa: E402
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
    rows = [make_row([7] * n, [NOT_SAMPLED, *[k] * (n - 1)], [-1.0] * n) for k, n in enumerate(lengths)]
    zeros = [0.0] * len(lengths)
    return TrainingEpisode(number, 0, True, rows, zeros, zeros, [0] * len(lengths))


TURNS = st.lists(st.tuples(st.sampled_from(["agent", "env"]), st.integers(1, 5)), min_size=1, max_size=8)
LENGTHS = st.lists(TURNS.map(lambda turns: [("user", 2), ("agent", 1), *turns]), min_size=1, max_size=3)


@given(LENGTHS, st.booleans())
def test_each_token_knows_its_step_and_a_row_ends_with_its_last_one(lengths: Any, truncated: bool) -> None:
    episode = make_episode(lengths, truncated=truncated)
    made = training_episode(episode, 5).rows
    for row, training in zip(episode.rows, made, strict=True):
        n = len(training.token_ids)
        assert training.token_ids.tolist() == row.token_ids[:n]
        assert training.logprobs.tolist() == np.float32(row.logprobs[:n]).tolist()
        assert [k != NOT_SAMPLED for k in training.step_of] == row.action_mask[:n]
        assert not any(row.action_mask[n:]), "no sampled token is lost"
        assert training.step_of[-1] != NOT_SAMPLED
    for k, this in enumerate(episode.steps):
        assert made[this.row].step_of[this.start : this.stop].tolist() == [k] * (this.stop - this.start)


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


def test_what_the_world_showed_before_a_summary_is_the_state_behind_it() -> None:
    episodes = []
    for said in ("room 1", "room 2"):
        episode = make_episode([[("user", 3), ("agent", 2), ("env", 4), ("agent", 2)], [("user", 5), ("agent", 2)]])
        answers = [("act", said), ("summary", ""), ("act", "over")]
        steps = [
            dataclasses.replace(step, kind=kind, observation=answer)
            for step, (kind, answer) in zip(episode.steps, answers, strict=True)
        ]
        episodes.append(dataclasses.replace(episode, steps=steps))
    one, other = (training_episode(episode, 0).anchors for episode in episodes)
    assert one[0] == other[0], "the same opening"
    assert not set(one[1:]) & set(other[1:]), "they act in different rooms"
    assert one[1] != one[2], "a summary is compared with summaries"


def test_the_tensors_of_a_batch_whose_missing_rows_are_dummies() -> None:
    spans = [[("user", 3), ("agent", 2), ("env", 4), ("agent", 1)], [("user", 1), ("agent", 4)]]
    episode = make_episode(spans)
    batch = collate([training_episode(episode, 0)], 4, 9)
    for i, row in enumerate(episode.rows):
        n = len(row.token_ids)
        assert batch["input_ids"][i].tolist() == [*row.token_ids, *[9] * (10 - n)]
        assert batch["attention_mask"][i].tolist() == [1] * n + [0] * (10 - n)
        assert batch["action_mask"][i].tolist() == [*row.action_mask, *[False] * (10 - n)]
        assert batch["engine_logps"][i].tolist() == [*row.logprobs, *[0.0] * (10 - n)]
    assert batch["step_of"][0].tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, -1, 1]
    assert batch["step_of"][1].tolist() == [-1, 2, 2, 2, 2, -1, -1, -1, -1, -1]
    assert batch["episode_of"].tolist() == [0, 0, -1, -1]
    assert batch["input_ids"][2:].tolist() == [[9] * 10] * 2
    # Two attended tokens: with none at all, the softmax of the attention would divide zero by zero.
    assert batch["attention_mask"][2:].tolist() == [[1, 1, *[0] * 8]] * 2
    assert not batch["action_mask"][2:].any() and not batch["action_mask"][:, 0].any()


def test_take_drops_padding_columns_and_keeps_numbers_of_rows() -> None:
    batch = collate([made_of(9, 3), made_of(4)], 4, 0)
    batch["engine_ratio"] = torch.tensor([[2.0], [3.0], [4.0], [5.0]])  # of whole rows, in the sequence modes
    part = select_rows(batch, torch.tensor([2, 1]))
    assert all(part[name].shape == (2, 4) for name in ("input_ids", "action_mask", "step_of", "engine_logps"))
    assert part["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert (part["episode_of"].tolist(), part["engine_ratio"].tolist()) == ([1, 0], [[4.0], [3.0]])


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=3), max_size=20), st.integers(1, 5))
def test_every_episode_goes_whole_to_one_share(lengths: list[list[int]], n: int) -> None:
    tokens = {number: made_of(*sizes, number=number).n_tokens for number, sizes in enumerate(lengths)}
    shares = balance(tokens, n)
    assert len(shares) == n
    assert sorted(number for share in shares for number in share) == list(tokens)
    # Every process computes the division for itself, from lengths that may arrive in another order.
    assert balance(dict(reversed(tokens.items())), n) == shares
    # Longest first leaves loads that differ by one episode at most (Graham, SIAM J. Appl. Math. 17, 1969).
    loads = [sum(tokens[number] for number in share) for share in shares]
    assert max(loads) - min(loads) <= max(tokens.values(), default=0)


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


@pytest.mark.parametrize(
    ("prompt", "answer", "group"),
    [
        (200, 90, 8),
        (3000, 500, 8),
        (3000, 300, 16),
        (4000, 200, 16),
        (6000, 1000, 8),
        (12000, 600, 16),
        (20000, 2000, 8),
    ],
)
def test_rows_of_a_group_compute_their_opening_once(prompt: int, answer: int, group: int) -> None:
    """Within 8,192 tokens, or a single longer row, and one row more; the counts are those of the layout itself."""
    rng = np.random.default_rng(0)
    rows = [[*question, *rng.integers(1000, size=answer)] for question in rng.integers(1000, size=(4, prompt))
            for _ in range(group)]  # fmt: skip
    order = sorted(range(len(rows)), key=rows.__getitem__)
    common = common_prefixes(rows, order)
    passes = micro_batches([len(row) for row in rows], max_tokens=8192, order=order, common=common)
    assert sorted(row for one in passes for row in one) == list(range(len(rows)))
    computed, most = [], max(8192, prompt + answer) + prompt + answer
    for one in passes:
        ids = torch.tensor([rows[i] for i in one])
        layout = share_prefixes({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        computed.append(layout.inputs["input_ids"].numel())
        assert computed[-1] <= most
        assert len(one) == 1 or ids.numel() <= 16 * most
    assert sum(computed) <= (4 * (prompt + group * answer)) / 0.9, "at least 90% of the possible sharing"


def test_rows_with_little_in_common_stay_within_the_limit() -> None:
    rows = [[1, 2, 3, *range(10 * n, 10 * n + 7)] for n in range(1, 9)]
    order = sorted(range(8), key=rows.__getitem__)
    common = common_prefixes(rows, order)
    passes = micro_batches([10] * 8, max_tokens=17, order=order, common=common)
    assert [len(one) for one in passes] == [2, 2, 2, 2]


# Rows packed into one sequence.

SIZE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.1, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": None,
}  # fmt: skip
# In some layers each token sees the eight before it only, also where a row begins.
SLIDING: dict[str, Any] = {
    "use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def build(folder: Path, config: Any, attention: str | None = None, packing: bool = True) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    made = make_trainer(folder, model=model, processing_class=tokenizer, packing=packing)
    made.current_gradient_accumulation_steps = 1
    return made


def rows_of(lengths: list[list[int]]) -> dict[str, Any]:
    """A batch of groups of rows: the lengths of a group are those of its opening and of what each row adds."""
    pairs = [(opening, opening + rest) for opening, *rests in lengths for rest in rests]
    group = [n for n, (_, *rests) in enumerate(lengths) for _ in rests]
    longest = max(length for _, length in pairs)
    column = torch.arange(longest)
    attended = column < torch.tensor([length for _, length in pairs])[:, None]
    generator = torch.Generator().manual_seed(len(pairs))
    ids = torch.randint(3, 512, attended.shape, generator=generator)
    openings = torch.randint(3, 512, (len(lengths), longest), generator=generator)
    begun = column < torch.tensor([opening for opening, _ in pairs])[:, None]
    mask = attended & ~begun & (torch.rand(attended.shape, generator=generator) < 0.7)
    mask[range(len(pairs)), [opening for opening, _ in pairs]] = True
    ids = torch.where(begun, openings[group], ids) * attended
    return {"input_ids": ids, "attention_mask": attended.long(), "action_mask": mask}


GROUPS = st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=5), min_size=1, max_size=4)


@given(GROUPS)
def test_each_layout_holds_the_rows_and_shares_what_it_may(lengths: list[list[int]]) -> None:
    batch = rows_of(lengths)
    ids = batch["input_ids"].tolist()
    batch = select_rows(batch, torch.tensor(sorted(range(len(ids)), key=lambda row: ids[row])))
    ids, attended = batch["input_ids"], batch["attention_mask"].bool()
    for layout in (pad_rows(batch), pack_rows(batch), share_prefixes(batch)):
        inputs, place = layout
        assert torch.equal(inputs["input_ids"].flatten()[place][attended], ids[attended])
        if "position_ids" in inputs:
            assert torch.equal(inputs["position_ids"].flatten()[place][attended], (attended.cumsum(1) - 1)[attended])
    # Each beginning of a row is written once, and stands at the place of the first row that has it.
    written = inputs["input_ids"].numel()
    beginnings = {tuple(row[: n + 1]) for row, k in zip(ids.tolist(), attended.sum(1), strict=True) for n in range(k)}
    assert written == len(beginnings)
    first = first_token_at(place, written)
    assert torch.equal(place.flatten()[first], torch.arange(written)) and attended.flatten()[first].all()


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (LlamaConfig(**SIZE), "sdpa"),
        (Qwen2Config(**SIZE, **SLIDING), "sdpa"),
        (Qwen2Config(**SIZE, **SLIDING), "eager"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.model_type,
)
def test_logprobs_loss_and_gradients_are_those_of_padded_rows(tmp_path: Path, config: Any, attention: str) -> None:
    batch = rows_of([[20, 9, 4, 11], [7, 2, 2], [3, 5]])
    generator, mask = torch.Generator().manual_seed(0), batch["action_mask"]
    batch["step_of"], batch["episode_of"] = mask.long() - 1, torch.arange(len(mask))
    batch["advantages"] = torch.randn(mask.shape, generator=generator) * mask
    batch["weights"] = loss_weights(mask, batch["step_of"], batch["episode_of"], "token")

    def run(layout: str) -> tuple[Any, ...]:
        trainer = build(tmp_path, config, attention, layout == "packed")
        assert trainer.model.config._attn_implementation == attention
        assert can_share_prefixes(trainer) == (config.model_type == "llama" and layout != "packed")
        trainer.shares_prefixes = layout == "shared"
        forward = trainer.plain_forward if layout == "plain" else trainer._forward
        scores = forward(trainer.model, batch)
        loss = trainer._loss(scores, batch)
        loss.backward()
        gradients = {n: p.grad.numpy() for n, p in trainer.model.named_parameters() if p.grad is not None}
        return scores.logps.detach(), scores.entropy.detach(), loss.item(), gradients

    logps, entropy, loss, gradients = run("padded")
    for layout in ("plain", "packed", "shared") if config.model_type == "llama" else ("plain", "packed"):
        other = run(layout)
        assert (other[0] - logps).abs().max() < 1e-5 and (other[1] - entropy).abs().max() < 1e-5
        assert other[2] == pytest.approx(loss, abs=1e-5) and abs(loss) > 1e-3
        assert distance(other[3], gradients) < 1e-5 < max(abs(g).max() for g in gradients.values())


@pytest.mark.parametrize(
    "run", [{"beta": 0.1, "num_iterations": 2}, {"ppo": True, "critic": "head", "critic_learning_rate": 1e-2}], ids=str
)
def test_packed_training_ends_with_the_same_weights(tmp_path: Path, run: dict[str, Any]) -> None:
    options = {**run, "optim": "sgd", "learning_rate": 1e-2, "context": "window:1"}
    padded = train(tmp_path, **options)
    assert distance(padded, train(tmp_path, **options, packing=True, micro_batch_tokens=300)) <= 1e-6
    assert distance(padded, weights(make_trainer(tmp_path, **options).model)) > 1e-4


@pytest.mark.parametrize(
    "run",
    [
        {"peft_config": lora(lora_dropout=0.0), "beta": 0.1, "num_iterations": 2},
        {"ppo": True, "critic": "model", "gradient_checkpointing": True},
    ],
    ids=lambda run: "ppo" if "ppo" in run else "lora",
)
def test_shared_training_ends_with_the_same_weights(tmp_path: Path, run: dict[str, Any]) -> None:
    options = {**run, "optim": "sgd", "learning_rate": 1e-2, "context": "window:1", "micro_batch_size": 5}
    ends = []
    for attention in ("sdpa", "eager"):  # which does not share
        init = {"dtype": "float32", "attn_implementation": attention}
        trainer = make_trainer(tmp_path, model_init_kwargs=init, **options)
        trainer.train()
        assert trainer.shares_prefixes == (attention == "sdpa")
        ends.append(weights(trainer.model))
    assert distance(*ends) <= 3e-6
    assert distance(ends[0], weights(make_trainer(tmp_path, **options).model)) > 1e-4


def test_models_that_do_not_keep_rows_apart_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    # The attention is known and its masks are not: the model gets none, and rows read each other.
    ALL_ATTENTION_FUNCTIONS.register("deaf", ALL_ATTENTION_FUNCTIONS["sdpa"])
    state_space = MambaConfig(
        vocab_size=512, hidden_size=32, state_size=4, num_hidden_layers=1, pad_token_id=0, eos_token_id=2,
        bos_token_id=2, use_cache=False,
    )  # fmt: skip
    for trainer, message in (
        (build(tmp_path, state_space), "packing does not work with 'mamba'"),
        (build(tmp_path, LlamaConfig(**SIZE), "deaf"), "'deaf': another first row moves the logprobs"),
    ):
        with pytest.raises(ConfigError, match=message):
            trainer.train()
        assert "runner" not in vars(trainer.scheduler)
