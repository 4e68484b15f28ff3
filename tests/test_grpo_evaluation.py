"""Evaluation, metrics and files: every task once, named numbers, trajectories that can be read and replayed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import ENV, batches_of, distance, in_ranks, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.evaluate import evaluate, wilson_interval  # noqa: E402
from agent_gym.policies import ScriptedPolicy  # noqa: E402
from agent_gym.rollout import Runner, read_trajectories, replay  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.metrics import show_on_tensorboard  # noqa: E402
from agent_gym.trainers.schedule import group_specs  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


def tasks(n: int, **options: Any) -> Any:
    return task_dataset(ENV, split="test", tasks=n, **options)


def test_evaluation_is_the_library_s_own(tmp_path: Path) -> None:
    data = tasks(7)
    trainer = make_trainer(tmp_path, policy=None, eval_dataset=data, eval_temperature=1.0)
    metrics = trainer.evaluate()
    runner = Runner(trainer.runner.policy, trainer.processing_class, trainer.args.budget)
    # The same seeds as the trainer gives: task i is position i.
    specs = [group_specs([row], first=i, group_size=1, sampling_seed=42)[0] for i, row in enumerate(data)]
    alone = evaluate(runner, specs, temperature=1.0)
    assert metrics["eval_success"] == alone.success
    assert (metrics["eval_success_low"], metrics["eval_success_high"]) == (alone.low, alone.high)
    assert metrics["eval_reward"] == pytest.approx(alone.reward)
    assert metrics["eval_episodes"] == 7
    for name, value in alone.metrics.items():
        if name == "episode/seconds":  # the machine's, and different each time
            continue
        assert metrics[f"eval_{name}"] == pytest.approx(value)


def test_evaluation_before_training_changes_nothing(tmp_path: Path) -> None:
    straight = make_trainer(tmp_path / "a")
    straight.train()
    trainer = make_trainer(tmp_path / "b", eval_dataset=tasks(3))
    before = weights(trainer.model)
    metrics = trainer.evaluate()
    assert metrics["eval_episodes"] == 3
    assert distance(before, weights(trainer.model)) == 0.0
    trainer.train()
    assert distance(weights(straight.model), weights(trainer.model)) == 0.0


def test_evaluation_while_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_dataset=tasks(5), eval_strategy="steps", eval_steps=2, max_steps=4)
    trainer.train()
    evaluations = [log for log in trainer.state.log_history if "eval_success" in log]
    assert [log["step"] for log in evaluations] == [2, 4]
    for log in evaluations:
        low, high = wilson_interval(round(5 * log["eval_success"]), 5)
        assert (log["eval_success_low"], log["eval_success_high"]) == pytest.approx((low, high))
        assert {"eval_reward/letters", "eval_episode/turns", "eval_time/rollout"} <= set(log)
    # Numbers of training do not slip into those of evaluation, nor the other way round.
    assert not any("eval_loss" in log or "loss" in log for log in evaluations)
    training = [log for log in trainer.state.log_history if "reward_std" in log]
    assert [log["step"] for log in training] == [1, 2, 3, 4]
    assert not (tmp_path / "trajectories").exists()  # trajectories_per_step is 0 here


def test_the_best_model_can_be_kept_by_its_success(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, eval_dataset=tasks(5), eval_strategy="steps", eval_steps=1, save_strategy="best",
        load_best_model_at_end=True, metric_for_best_model="eval_success", greater_is_better=True,
    )  # fmt: skip
    trainer.train()
    evaluations = [log for log in trainer.state.log_history if "eval_success" in log]
    assert trainer.state.best_metric == max(log["eval_success"] for log in evaluations)


def test_several_attempts_and_several_sets(tmp_path: Path) -> None:
    data = {"few": tasks(2), "more": tasks(3)}
    trainer = make_trainer(
        tmp_path, eval_dataset=data, num_generations_eval=4, eval_temperature=1.0, trajectories_per_step=1
    )
    metrics = trainer.evaluate()
    assert (metrics["eval_few_episodes"], metrics["eval_more_episodes"]) == (8, 12)
    files = {path.name: list(read_trajectories(path)) for path in (tmp_path / "trajectories").iterdir()}
    assert {name: len(records) for name, records in files.items()} == {
        "eval_few_000000_0.jsonl": 8, "eval_more_000000_0.jsonl": 12
    }  # fmt: skip
    members = Counter((r["spec"]["index"], r["spec"]["member"]) for r in files["eval_more_000000_0.jsonl"])
    assert members == Counter({(i, member): 1 for i in range(3) for member in range(4)})
    assert len({r["spec"]["sampling_seed"] for r in files["eval_more_000000_0.jsonl"]}) == 12


def play_once(folder: str, n: int) -> Any:
    trainer = make_trainer(folder, eval_dataset=tasks(n), trajectories_per_step=8)
    return trainer.evaluate()


@pytest.mark.parametrize("n", [5, 1])
def test_every_task_is_played_exactly_once_on_two_ranks(tmp_path: Path, n: int) -> None:
    one, other = in_ranks(play_once, 2, str(tmp_path / "two"), n)
    alone = play_once(str(tmp_path / "one"), n)
    for name in ("eval_success", "eval_success_low", "eval_reward", "eval_episodes", "eval_episode/turns"):
        assert one[name] == other[name] == pytest.approx(alone[name]), name
    files = sorted((tmp_path / "two" / "trajectories").iterdir())
    assert [path.name for path in files] == ["eval_000000_0.jsonl", "eval_000000_1.jsonl"][:n]
    played = [record["spec"]["index"] for path in files for record in read_trajectories(path)]
    assert sorted(played) == list(range(n))


# Files.


@pytest.mark.parametrize("ppo", [False, True])
def test_trajectories_carry_the_credit_of_each_sampled_token_and_can_be_replayed(tmp_path: Path, ppo: bool) -> None:
    options = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(
        tmp_path, max_steps=2, trajectories_per_step=4, env_kwargs={"fail": 9}, ppo=ppo, **options, num_generations=4
    )
    batches = batches_of(trainer)
    trainer.train()
    # NaN is no JSON: the reward of a failed episode must not reach the state as one.
    text = (tmp_path / "checkpoint-2" / "trainer_state.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in trainer_state.json"))
    files = sorted((tmp_path / "trajectories").iterdir())
    names = ["train_000000_0", "train_000000_0_1", "train_000001_0", "train_000001_0_1"]
    assert [path.stem for path in files] == names
    for path, batch in zip(files, batches, strict=True):
        records = list(read_trajectories(path))
        assert len(records) == 4 and all(r["step"] == int(path.stem.split("_")[1]) for r in records)
        rows = [row for record in records for row in record["rows"]]
        for name, laid in (("advantages", "advantages"), ("values", "old_values")):
            if name == "values" and not ppo:
                assert all(name not in row for row in rows)
                continue
            known = {round(value, 4) for value in batch[laid][batch["action_mask"]].tolist()}
            for row in (row for record in records if not record["failure"] for row in record["rows"]):
                spans = [range(start, stop) for start, stop, source, _ in row["spans"] if source == "agent"]
                inside = {i for span in spans for i in span}
                assert all(value == 0.0 for i, value in enumerate(row[name]) if i not in inside)
                assert all(min(abs(row[name][i] - other) for other in known) < 2e-4 for i in inside)
        for record in records:
            for row in record["rows"]:
                assert "".join(row["tokens"]) == trainer.processing_class.decode(row["token_ids"])
            assert record["failure"] or replay(record) == []


def test_the_table_of_completions(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    trainer = make_trainer(tmp_path, max_steps=1, log_completions=True, num_completions_to_print=0)
    trainer.train()
    table = parquet.read_table(next((tmp_path / "completions").iterdir())).to_pydict()
    assert len(table["prompt"]) == 8
    for prompt, completion in zip(table["prompt"], table["completion"], strict=True):
        assert [message["role"] for message in prompt] == ["system", "user"]
        assert completion[0]["role"] == "assistant"
    assert sum(table["advantage"]) == pytest.approx(0.0, abs=1e-3)
    assert len(table["reward"]) == 8


# Names.


def test_trackers_get_the_named_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing import event_accumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    encode = ChatRenderer(AutoTokenizer.from_pretrained(model_folder())).encode_action
    policy = ScriptedPolicy(lambda episode: episode.env.unwrapped.expert_action(), encode)
    trainer = make_trainer(
        tmp_path, policy=policy, env=GSM8K, report_to="tensorboard", max_steps=2, eval_strategy="steps", eval_steps=2,
        max_turn_tokens=200, max_episode_tokens=1500, max_turns=2, micro_batch_size=2,
        eval_dataset=task_dataset(GSM8K, split="test", tasks=4), log_completions=True, num_completions_to_print=0,
        trajectories_per_step=3,
    )  # fmt: skip
    trainer.train()
    board = event_accumulator.EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    names = set(board.Tags()["scalars"])
    expected = {
        "reward", "reward_std", "frac_reward_zero_std", "reward/answer", "reward/format", "episode/turns",
        "episode/tokens", "episode/truncated", "episode/success", "tool/calculator/calls", "tool/calculator/errors",
        "tool/calculator/latency", "rollout/tokens_per_s", "rollout/failed", "rollout/groups_kept", "rollout/repeated",
        "time/sync", "time/rollout", "time/engine", "time/env_wait", "time/rollout_overhead", "time/score",
        "time/update", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "entropy", "loss",
        "grad_norm",
    }  # fmt: skip
    assert {f"train/{name}" for name in expected} <= names, sorted(names)
    measured = {"success", "success_low", "success_high", "reward", "episodes", "failed", "tool/calculator/calls"}
    assert {f"eval/{name}" for name in measured} <= names, sorted(names)

    def last(name: str) -> float:
        return board.Scalars(name)[-1].value

    assert last("train/episode/turns") <= 2.0
    assert last("train/tool/calculator/calls") >= 1.0
    assert last("train/tool/calculator/errors") == 0.0
    assert 0.0 < last("train/tool/calculator/latency") < 1.0
    assert last("train/rollout/tokens_per_s") > 0.0
    # Where the time of a rollout went adds up to all of it.
    parts = sum(last(f"train/time/{part}") for part in ("engine", "env_wait", "rollout_overhead"))
    assert parts == pytest.approx(last("train/time/rollout"), rel=1e-3)
    # Episodes come as texts, which the other trackers get as a table.
    events = board.Tensors("episodes/text_summary")
    assert [event.step for event in events] == [1, 2]
    for step, text in ((event.step, event.tensor_proto.string_val[0].decode()) for event in events):
        assert text.count("## reward ") == 3
        (first, *_) = read_trajectories(tmp_path / "trajectories" / f"train_{step - 1:06d}_0.jsonl")
        assert text.startswith(f"## reward {first['reward']:+.3f}, mean advantage ")
        assert all(f"**{m['role']}**\n\n```\n{m['content']}\n```" in text for m in first["messages"])


@pytest.mark.parametrize("text", ["plain", "```python\nprint(1)\n```", "a ````` b"])
def test_a_text_for_tensorboard_is_one_block(text: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    callback = TensorBoardCallback(SummaryWriter(str(tmp_path)))
    image = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    messages = [{"role": "user", "content": image}, {"role": "assistant", "content": text}]
    table = {"prompt": [messages[:1]], "completion": [messages[1:]], "rewards": {"reward": [1.0]}, "advantages": [0.5]}
    show_on_tensorboard([callback], table, step=1, limit=4)
    board = event_accumulator.EventAccumulator(str(tmp_path))
    board.Reload()
    (event,) = board.Tensors("episodes/text_summary")
    shown = event.tensor_proto.string_val[0].decode()
    assert "**user**\n\n```\n[image]\nwhat is it?\n```" in shown
    block = shown.partition("**assistant**\n\n")[2]
    fence = block.partition("\n")[0]
    assert set(fence) == {"`"} and fence not in text and block == f"{fence}\n{text}\n{fence}"
