"""The warm start: demonstrations are ordinary episodes, and what is trained on is read off their spans."""

import pytest
from datasets import Dataset
from tiny import make_tiny_model
from transformers import AutoTokenizer
from trl import SFTConfig

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.policies.scripted import ScriptedPolicy
from agent_gym.rollout import Runner
from agent_gym.trainers.sft import expert_episodes, sft_dataset, train_sft

ENV = "AgentR1/GSM8K-v0"
BARE = {"system_prompt": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("sft") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def episodes(tokenizer):
    return expert_episodes(ENV, BARE, tokenizer, episodes=24)


def test_the_expert_solves_its_episodes_by_calling(episodes):
    assert len(episodes) == 24
    assert all(episode.success and len(episode.steps) >= 2 for episode in episodes)


def test_styles_are_shared_out_by_seed_and_unknown_ones_named(tokenizer):
    mixed = expert_episodes(ENV, BARE, tokenizer, episodes=200, styles={"default": 0.3, "direct": 0.7}, seed=3)
    direct = sum(len(episode.steps) == 1 for episode in mixed)
    assert 115 <= direct <= 165
    again = expert_episodes(ENV, BARE, tokenizer, episodes=200, styles={"default": 0.3, "direct": 0.7}, seed=3)
    assert [len(e.steps) for e in mixed] == [len(e.steps) for e in again]
    with pytest.raises(ConfigError, match="default, direct"):
        expert_episodes(ENV, BARE, tokenizer, episodes=2, styles={"poetic": 1.0})
    with pytest.raises(ConfigError, match="shares"):
        expert_episodes(ENV, BARE, tokenizer, episodes=2, styles={"default": 0.0})


def test_labels_stand_on_exactly_what_the_policy_has_to_write(episodes, tokenizer):
    rows = [row for episode in episodes for row in episode.rows]
    dataset = sft_dataset(rows, "policy")
    for row, ids, labels in zip(rows, dataset["input_ids"], dataset["labels"], strict=True):
        assert ids == row.token_ids
        assert labels == [i if kept else -100 for i, kept in zip(ids, row.action_mask, strict=True)]
    text = tokenizer.decode([i for i in dataset["labels"][0] if i != -100])
    assert "<tool_response>" not in text and text.count("<|im_end|>") == len(episodes[0].steps)
    assert sft_dataset(rows, "all")["labels"][0] == rows[0].token_ids
    with pytest.raises(ConfigError, match="policy, all"):
        sft_dataset(rows, "everything")
    with pytest.raises(ConfigError, match="no demonstrations"):
        sft_dataset([], "policy")


def test_a_demonstration_has_the_ids_of_a_rollout_with_the_same_texts(episodes, tokenizer):
    renderer = ChatRenderer.of(tokenizer)
    texts = {id(episode.spec): [step.action for step in episode.steps] for episode in episodes}
    specs = [episode.spec for episode in episodes]
    policy = ScriptedPolicy(lambda live: texts[id(live.spec)][len(live.steps)], renderer.encode_action)
    runner = Runner(policy, renderer, workers=2)
    replayed = runner.run(specs)
    runner.close()
    assert [e.rows[0].token_ids for e in replayed] == [e.rows[0].token_ids for e in episodes]
    assert [e.rows[0].spans for e in replayed] == [e.rows[0].spans for e in episodes]


def test_imitation_raises_the_likelihood_of_the_demonstrations(episodes, folder, tokenizer, tmp_path):
    rows = [row for episode in episodes for row in episode.rows]
    args = SFTConfig(
        str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        max_length=1024,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = train_sft(str(folder), tokenizer, rows, args)
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses[-1] < losses[0] - 1.0
    assert isinstance(trainer.train_dataset, Dataset)


def test_a_demonstration_that_would_be_cut_is_refused(episodes, folder, tokenizer, tmp_path):
    rows = [row for episode in episodes for row in episode.rows]
    args = SFTConfig(str(tmp_path), max_length=32, report_to="none", use_cpu=True, bf16=False)
    with pytest.raises(ConfigError, match=r"max_length is 32: raise it"):
        train_sft(str(folder), tokenizer, rows, args)
