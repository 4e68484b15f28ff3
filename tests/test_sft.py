"""The warm start: what is shown is what will be played, and only the policy's words are learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, distance, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.evaluate import make_specs  # noqa: E402
from agent_gym.policies import Generation, Request  # noqa: E402
from agent_gym.rollout import Budget, Episode, Row, Runner  # noqa: E402
from agent_gym.trainers.sft import expert_episodes, sft_dataset, train_sft  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


@pytest.fixture(scope="module")
def tiny_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder())


@pytest.fixture(scope="module")
def demonstrations(tiny_tokenizer: Any) -> list[Episode]:
    return expert_episodes(GSM8K, None, tiny_tokenizer, episodes=12)


def rows_of(episodes: list[Episode]) -> list[Row]:
    return [row for episode in episodes for row in episode.rows]


def sft_config(folder: Path, **changes: Any) -> SFTConfig:
    values: dict[str, Any] = {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "max_length": 2048,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    return SFTConfig(str(folder), **(values | changes))


class Playback:
    """A policy that samples what it is told, turn by turn, and keeps the prompts it was shown."""

    continuous = True

    def __init__(self, turns: dict[int, list[list[int]]]) -> None:
        self.turns, self.shown, self.queue = turns, [], []  # type: ignore[var-annotated]

    @property
    def pending(self) -> int:
        return len(self.queue)

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def poll(self) -> list[Generation]:
        queue, self.queue = self.queue, []
        finished = []
        for request in queue:
            episode: Any = request.episode
            self.shown.append((episode.spec.index, request.prompt_ids))
            ids = self.turns[episode.spec.index][len(episode.steps)]
            finished.append(Generation(request.id, ids, [-1.0] * len(ids), "stop"))
        return finished

    def abort(self, request_id: int) -> None: ...

    def close(self) -> None: ...


def test_demonstrations_are_what_a_policy_sees_that_says_the_same(
    tiny_tokenizer: Any, demonstrations: list[Episode]
) -> None:
    turns: dict[int, list[list[int]]] = {}
    for episode in demonstrations:
        (row,) = episode.rows
        assert episode.spec.index is not None
        turns[episode.spec.index] = [row.token_ids[step.start : step.stop] for step in episode.steps]
    policy = Playback(turns)
    runner = Runner(policy, tiny_tokenizer, Budget())
    played = runner.run(make_specs(GSM8K, None, split="train", episodes=12))
    runner.close()
    for again, shown in zip(played, demonstrations, strict=True):
        assert again.rows[0].token_ids == shown.rows[0].token_ids
        assert again.rows[0].spans == shown.rows[0].spans
        assert again.success
    by_index = {episode.spec.index: episode.rows[0].token_ids for episode in demonstrations}
    for index, prompt in policy.shown:
        assert by_index[index][: len(prompt)] == prompt


def test_labels_are_the_policy_s_tokens(demonstrations: list[Episode]) -> None:
    rows = rows_of(demonstrations)
    data = sft_dataset(rows)
    for row, record in zip(rows, data, strict=True):
        assert record["input_ids"] == row.token_ids
        assert [label != -100 for label in record["labels"]] == row.action_mask
        kept = [label for label in record["labels"] if label != -100]
        assert kept == [token for token, mine in zip(row.token_ids, row.action_mask, strict=True) if mine]


def test_all_tokens_can_be_trained_on(demonstrations: list[Episode]) -> None:
    data = sft_dataset(rows_of(demonstrations), train_on="all")
    assert all(record["labels"] == record["input_ids"] for record in data)


@pytest.mark.parametrize("train_on", ["policy", "all"])
def test_trl_trains_on_exactly_these_labels(
    tmp_path: Path, tiny_tokenizer: Any, demonstrations: list[Episode], train_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    stock = SFTTrainer.compute_loss
    monkeypatch.setattr(
        SFTTrainer,
        "compute_loss",
        lambda self, model, inputs, *args, **kwargs: (
            seen.append({name: value.clone() for name, value in inputs.items()}),
            stock(self, model, inputs, *args, **kwargs),
        )[1],
    )
    rows = rows_of(demonstrations)
    args = sft_config(tmp_path, max_steps=3, per_device_train_batch_size=4)
    train_sft(model_folder(), tiny_tokenizer, rows, args, train_on=train_on)
    expected = {
        tuple(row.token_ids): [
            token if mine or train_on == "all" else -100
            for token, mine in zip(row.token_ids, row.action_mask, strict=True)
        ]
        for row in rows
    }
    found = 0
    for batch in seen:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
            assert labels[mask.bool()].tolist() == expected[tuple(ids[mask.bool()].tolist())]
            assert (labels[~mask.bool()] == -100).all()
            found += 1
    assert found == 12


def test_imitation_learns(tmp_path: Path, tiny_tokenizer: Any, demonstrations: list[Episode]) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    before = weights(model)
    args = sft_config(tmp_path, max_steps=12, learning_rate=3e-3)
    trainer = train_sft(model, tiny_tokenizer, rows_of(demonstrations), args)
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses[-1] < losses[0] - 0.5
    assert distance(before, weights(model)) > 1e-3  # the model that was handed in is the one that learned


def test_imitation_in_half_precision_is_warned_of(
    tmp_path: Path, tiny_tokenizer: Any, demonstrations: list[Episode]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype="bfloat16")
    with pytest.warns(UserWarning, match="24 of 24 trained weights are bfloat16"):
        train_sft(model, tiny_tokenizer, rows_of(demonstrations), sft_config(tmp_path, bf16=True, max_steps=1))


def test_a_demonstration_that_would_be_cut_is_refused(
    tmp_path: Path, tiny_tokenizer: Any, demonstrations: list[Episode]
) -> None:
    rows = rows_of(demonstrations)
    longest = max(len(row.token_ids) for row in rows)
    with pytest.raises(ConfigError, match=f"has {longest} tokens, max_length is {longest - 1}: raise it"):
        train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, max_length=longest - 1))
    train_sft(model_folder(), tiny_tokenizer, rows, sft_config(tmp_path, max_length=longest, max_steps=1))

    model = AutoModelForCausalLM.from_pretrained(model_folder(), max_position_embeddings=longest - 1)
    with pytest.raises(ConfigError, match=f"has {longest} tokens, and the model reads {longest - 1}: take a model"):
        train_sft(model, tiny_tokenizer, rows, sft_config(tmp_path, max_length=None))


def test_styles_are_drawn_by_their_shares_and_by_the_seed(tiny_tokenizer: Any) -> None:
    styles = {"default": 0.5, "direct": 0.5}

    def calls(seed: int) -> list[int]:
        played = expert_episodes(GSM8K, None, tiny_tokenizer, episodes=40, seed=seed, styles=styles)
        return [sum(len(step.tool_calls) for step in episode.steps) for episode in played]

    first = calls(0)
    assert len(first) == 40
    assert 10 < sum(n == 0 for n in first) < 30
    assert first == calls(0)
    assert first != calls(1)


def test_only_solved_episodes_are_shown(tiny_tokenizer: Any) -> None:
    assert len(expert_episodes(ENV, None, tiny_tokenizer, episodes=6)) == 6
    assert expert_episodes(ENV, {"patient": True}, tiny_tokenizer, episodes=2, budget=Budget(max_turns=1)) == []


CASES: list[tuple[dict[str, Any], str]] = [
    ({"styles": {"default": -1.0}}, r"styles is .*shares must be positive"),
    ({"styles": {"default": 0.0}}, r"styles is .*shares must be positive"),
    ({"styles": {"loud": 1.0}}, "no style 'loud'; known: default, direct"),
    ({"split": "dev"}, "unknown split 'dev'"),
    ({"env_id": "Toy/Inline-v1"}, "Toy/Inline"),
    ({"env_id": "Toy/World-v0"}, "WorldEnv has no expert"),
    ({"env_id": ENV, "styles": {"loud": 1.0}}, "the expert of LettersEnv has no style 'loud'; known: default"),
]


@pytest.mark.parametrize(("changes", "message"), CASES, ids=lambda case: str(case)[:30])
def test_what_cannot_be_demonstrated_is_named(tiny_tokenizer: Any, changes: dict[str, Any], message: str) -> None:
    options = {"env_id": GSM8K, "episodes": 1, **changes}
    with pytest.raises(ConfigError, match=message):
        expert_episodes(options.pop("env_id"), None, tiny_tokenizer, **options)


def test_nothing_to_train_on_and_an_unknown_choice(demonstrations: list[Episode]) -> None:
    with pytest.raises(ConfigError, match="no demonstrations to train on"):
        sft_dataset([])
    with pytest.raises(ConfigError, match="train_on is 'world'; allowed: policy, all"):
        sft_dataset(rows_of(demonstrations), "world")
