"""Trajectories as data sets: nothing lost, filtered by flags, and read by TRL's SFTTrainer with the right mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint

datasets = pytest.importorskip("datasets")

from rollout_tools import expert, roll  # noqa: E402
from tiny import make_tiny_tokenizer  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate import make_specs  # noqa: E402
from agent_gym.rollout import Budget, Failure, read_trajectories, to_record, write_trajectories  # noqa: E402
from agent_gym.trainers.export_trajectories import FORMATS  # noqa: E402


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes: three solved, one answered wrongly without a call, one of several contexts, one that failed."""
    tokenizer = make_tiny_tokenizer()

    def act(episode: Any) -> str:
        if episode.spec.index == 3:
            return "<answer>1</answer>"
        if episode.spec.index == 4:
            return "<tool_call>{</tool_call>" if episode.asked == "act" else "nothing worked"
        return expert(episode)

    specs = make_specs("AgentR1/GSM8K-v0", {"system_prompt": "", "max_turns": 9}, split="train", episodes=6)
    episodes = roll(tokenizer, specs, act, Budget(60, 800), context="summarize")
    episodes[5].failure = Failure("EnvFailure", "the index is gone")
    # A tool of another package may let half of a surrogate pair through, which no parquet can hold.
    episodes[3].messages[-1]["content"] += "\ud800"
    episodes[3].steps[-1].observation += "\ud800"
    path = tmp_path_factory.mktemp("played") / "episodes.jsonl"
    write_trajectories(path, [to_record(episode, tokenizer, policy="expert") for episode in episodes])
    return path


def export(played: Path, out: Path, *flags: str) -> Any:
    assert main(["export", "trajectories", str(played), str(out), *flags]) == 0
    return datasets.load_dataset(str(out), split="train")


def test_what_happened_is_all_there(played: Path, tmp_path: Path) -> None:
    data = export(played, tmp_path / "out")
    records = list(read_trajectories(played))
    assert set(data.column_names) == set(FORMATS["trajectories"]) and len(data) == len(records) == 6
    for row, record in zip(data, records, strict=True):
        assert all(row[name] == record[name] for name in ("reward", "success", "failure"))
        assert json.loads(row["env_kwargs"]) == record["spec"]["env_kwargs"] and row["index"] == record["spec"]["index"]
        assert [r["token_ids"] for r in row["rows"]] == [r["token_ids"] for r in record["rows"]]
        assert [step["action"] for step in row["steps"]] == [step["action"] for step in record["steps"]]
        assert json.loads(row["steps"][0]["tool_calls"]) == record["steps"][0]["tool_calls"]
        assert json.loads(row["extra"])["policy"] == "expert" and json.loads(row["tools"]) == record["tools"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(f"- `{column}`: " in card for column in data.column_names) and "6 of 6 episodes" in card


def test_messages_for_another_tokenizer(played: Path, tmp_path: Path) -> None:
    data = export(played, tmp_path / "out", "--format", "messages")
    messages, tools = data[0]["messages"], json.loads(data[0]["tools"])
    assert len(data) == 5 and [message["role"] for message in messages][:3] == ["user", "assistant", "tool"]
    text = make_tiny_tokenizer().apply_chat_template(messages, tools=tools, tokenize=False)
    assert "calculator" in text and "<tool_response>" in text


def test_filters(played: Path, tmp_path: Path) -> None:
    assert export(played, tmp_path / "solved", "--successful")["index"][:] == [0, 1, 2]
    assert export(played, tmp_path / "paid", "--min_reward", "0")["index"][:] == [0, 1, 2, 3, 4]


def test_several_files_and_what_is_wrong(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "trajectories", str(played), str(played), str(tmp_path / "both")]) == 0
    assert capsys.readouterr().out.endswith("both: 12 rows\n")

    def wrong(*arguments: str) -> str:
        return complaint(capsys, "export", "trajectories", *arguments)

    assert "is there already" in wrong(str(played), str(tmp_path / "both"))
    assert "is one path" in wrong(str(played))
    assert "no trajectory file" in wrong("nowhere.jsonl", str(tmp_path / "new"))
    assert "none of 6 episodes is left" in wrong(str(played), str(tmp_path / "new"), "--min_reward", "9")
    assert "invalid choice" in wrong(str(played), str(tmp_path / "new"), "--format", "csv")
    assert "HF_HUB_OFFLINE is set" in wrong(str(played), str(tmp_path / "new"), "--push_to_hub", "me/data")
    assert (tmp_path / "new" / "README.md").is_file()


def test_trl_learns_the_policy_s_tokens_and_no_others(played: Path, tiny_model: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from test_sft import sft_config
    from trl import SFTTrainer

    data = export(played, tmp_path / "out", "--format", "sft", "--successful")
    settings = sft_config(tmp_path / "run", max_steps=2, per_device_train_batch_size=2, max_length=None)
    trainer = SFTTrainer(model=tiny_model, args=settings, train_dataset=data)
    seen = []
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: seen.append(collate(rows)) or seen[-1]
    trainer.train()
    masks = {tuple(row["input_ids"]): row["assistant_masks"] for row in data}
    checked = 0
    for batch in seen:
        for ids, labels, attention in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            length = int(attention.sum())
            mask = masks[tuple(ids[:length].tolist())]
            wanted = [i if kept else -100 for i, kept in zip(ids[:length].tolist(), mask, strict=True)]
            assert labels[:length].tolist() == wanted and set(labels[length:].tolist()) <= {-100}
            checked += 1
    assert checked >= 4 and trainer.state.log_history[-1]["train_loss"] > 0
