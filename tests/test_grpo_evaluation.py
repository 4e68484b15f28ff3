"""Evaluation, metrics and files: every task once, named numbers, trajectories that can be read and replayed."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import pyarrow.parquet as parquet  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from tensorboard.backend.event_processing import event_accumulator  # noqa: E402
from torch.utils.tensorboard import SummaryWriter  # noqa: E402
from trainer_tools import ENV, in_ranks, make_trainer, model_folder, trained  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from transformers.integrations import TensorBoardCallback  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.evaluate import evaluate  # noqa: E402
from agent_gym.policies import ScriptedPolicy  # noqa: E402
from agent_gym.rollout import Episode, EpisodeSpec, Failure, Runner, Step, read_trajectories, replay  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.hooks.metrics import eval_metrics, mean_metrics  # noqa: E402
from agent_gym.trainers.hooks.records import show_on_tensorboard  # noqa: E402
from agent_gym.trainers.losses import RunningMeans  # noqa: E402
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


def test_evaluation_while_training(tmp_path: Path) -> None:
    modes = []

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            modes.append(model.training)

    options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    trainer = make_trainer(tmp_path, policy=None, eval_dataset=tasks(5), callbacks=[Look()], **options)
    trainer.train()
    assert modes == [True] * 4
    evaluations = [log for log in trainer.state.log_history if "eval_success" in log]
    assert [log["step"] for log in evaluations] == [2, 4]
    assert all({"eval_reward/letters", "eval_episode/turns", "eval_time/rollout"} <= set(log) for log in evaluations)
    # Numbers of training do not slip into those of evaluation, nor the other way round.
    assert not any("eval_loss" in log or "loss" in log for log in evaluations)
    training = [log for log in trainer.state.log_history if "reward_std" in log]
    assert [log["step"] for log in training] == [1, 2, 3, 4]
    assert not (tmp_path / "trajectories").exists()  # trajectories_per_step is 0 here


def play_once(folder: str) -> Any:
    options = {"num_generations_eval": 4, "eval_temperature": 1.0, "trajectories_per_step": 1}
    return make_trainer(folder, eval_dataset={"few": tasks(1), "more": tasks(5)}, **options).evaluate()


def test_each_attempt_at_each_task_of_several_sets_is_played_exactly_once_on_one_or_two_ranks(tmp_path: Path) -> None:
    one, other = in_ranks(play_once, 2, str(tmp_path / "two"))
    alone = play_once(str(tmp_path / "one"))
    for metric in ("success", "success_low", "reward", "episodes", "episode/turns"):
        for name in (f"eval_few_{metric}", f"eval_more_{metric}"):
            assert one[name] == other[name] == pytest.approx(alone[name]), name
    for folder in ("one", "two"):
        for name, n in (("few", 1), ("more", 5)):
            files = (tmp_path / folder / "trajectories").glob(f"eval_{name}_000000_?.jsonl")
            specs = [record["spec"] for path in files for record in read_trajectories(path)]
            assert Counter((s["index"], s["member"]) for s in specs) == {(i, m): 1 for i in range(n) for m in range(4)}
            assert len({s["sampling_seed"] for s in specs}) == alone[f"eval_{name}_episodes"] == 4 * n
    assert (tmp_path / "two" / "trajectories" / "eval_more_000000_1.jsonl").exists()


# Files.


@pytest.mark.parametrize("ppo", [False, True])
def test_trajectories_carry_the_credit_of_each_sampled_token_and_can_be_replayed(tmp_path: Path, ppo: bool) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_generations": 4}
    options |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 2, "trajectories_per_step": 4}
    trainer, batches, _ = trained(tmp_path, env_kwargs={"fail": 9}, ppo=ppo, **options)
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


# Names.


def test_trackers_get_the_named_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (path, _) = sorted((tmp_path / "completions").iterdir())
    table = parquet.read_table(path).to_pydict()
    assert [len(column) for name, column in table.items() if name in ("prompt", "completion", "reward")] == [8] * 3
    for prompt, completion in zip(table["prompt"], table["completion"], strict=True):
        assert [message["role"] for message in prompt] == ["system", "user"]
        assert completion[0]["role"] == "assistant"
    assert sum(table["advantage"]) == pytest.approx(0.0, abs=1e-3)


def test_a_text_for_tensorboard_is_one_block(tmp_path: Path) -> None:
    fences = {"plain": "```", "```python\nprint(1)\n```": "````", "a ````` b": "``````"}
    image = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    prompts, completions = (
        [[{"role": "user", "content": image}]] * 3,
        [[{"role": "assistant", "content": text}] for text in fences],
    )
    table = {"prompt": prompts, "completion": completions, "rewards": {"reward": [1.0] * 3}, "advantages": [0.5] * 3}
    show_on_tensorboard([TensorBoardCallback(SummaryWriter(str(tmp_path)))], table, step=1, limit=4)
    board = event_accumulator.EventAccumulator(str(tmp_path))
    board.Reload()
    (event,) = board.Tensors("episodes/text_summary")
    shown = event.tensor_proto.string_val[0].decode()
    assert shown.count("**user**\n\n```\n[image]\nwhat is it?\n```") == 3
    assert all(f"**assistant**\n\n{fence}\n{text}\n{fence}" in shown for text, fence in fences.items())


# Metrics of several processes are those of all their episodes together.


def make_episode(turns: int, rare: bool, n_calls: int, env_id: str = "Toy/None-v0") -> Episode:
    """Build an episode with so many turns, a rare reward term or not, and so many calls in each turn."""
    calls = [{"name": "add", "arguments": {}, "error": i == 0, "seconds": 0.5 + i} for i in range(n_calls)]
    terms = {"usual": 1.0} | ({"rare": 2.0} if rare else {})
    steps = [Step(0, i, i + 1, "a", "o", 1.0, terms, calls, {}, None, "stop", 0.0) for i in range(turns)]
    tools = [{"function": {"name": "add"}}]
    return Episode(EpisodeSpec(env_id), steps=steps, tools=tools, success=rare, truncated=not rare)


def metrics_of_a_rank() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    Accelerator(cpu=True)
    rank = int(os.environ["RANK"])
    broken = make_episode(3, False, 1)
    broken.failure = Failure("EnvFailure", "gone")
    episodes = [make_episode(1, True, 0), make_episode(4, False, 2)] if rank else [broken, make_episode(1, False, 1)]
    other = [make_episode(2, True, 0, "Toy/Other-v0")] * rank
    means, accelerator = RunningMeans(), Accelerator(cpu=True)
    means.add("mean", torch.tensor([1.0 + rank, math.inf]), torch.tensor([True, False]))
    means.add("mean", torch.tensor([0.5, 1.0]), torch.tensor([True, True]))  # each token counts once, not each piece
    means.largest("most", torch.tensor([5.0 - rank, 9.0]), torch.tensor([True, False]))
    means.largest("most", torch.tensor([-9.0, 4.0]), torch.tensor([True, True]))
    mixed, found = mean_metrics(episodes + other), means.pop(accelerator)
    assert means.pop(accelerator) == {}
    return mean_metrics(episodes) | eval_metrics(episodes), mixed, found


def test_metrics_are_those_of_all_processes_and_failed_episodes_count_as_failed_only() -> None:
    one, other = in_ranks(metrics_of_a_rank, 2)
    assert one == other
    metrics, mixed, means = one
    assert (metrics["episodes"], metrics["failed"]) == (3, 1)
    assert (metrics["success"], metrics["reward"]) == (1 / 3, 2.0)
    assert 0.0 < metrics["success_low"] < 1 / 3 < metrics["success_high"] < 1.0
    assert (metrics["episode/turns"], metrics["reward/rare"], metrics["reward/usual"]) == (2.0, 2 / 3, 2.0)
    assert (metrics["tool/add/calls"], metrics["tool/add/errors"]) == (3.0, 5 / 3)
    # Per call and not per episode: one of 0.5 s, and four pairs of 0.5 s and 1.5 s.
    assert metrics["tool/add/latency"] == pytest.approx((0.5 + 4 * 2.0) / 9)
    assert not any(name.startswith("Toy") for name in metrics)
    assert mixed["episode/turns"] == 2.0
    assert {n: v for n, v in mixed.items() if n.startswith("Toy/None-v0/episode/")} == {
        f"Toy/None-v0/{name}": metrics[name] for name in metrics if name.startswith("episode/")
    }
    assert (mixed["Toy/None-v0/reward"], mixed["Toy/Other-v0/reward"], mixed["Toy/Other-v0/reward/rare"]) == (2, 2, 4)
    assert means == {"mean": 1.0, "most": 5.0}
    nothing = eval_metrics([])  # is no success, and no knowledge
    assert [nothing[name] for name in ("success", "success_low", "success_high", "episodes")] == [0, 0, 1, 0]
    assert mean_metrics([]) == {}


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_what_the_correction_did_is_logged_before_its_bounds(tmp_path: Path, mode: str) -> None:
    high, low = (1.05, 0.9) if mode.startswith("token") else (1.5, 0.5)
    bounds = {"vllm_importance_sampling_clip_max": high, "vllm_importance_sampling_clip_min": low}
    options = {"use_vllm": True, "vllm_importance_sampling_mode": mode, "num_iterations": 2, "max_steps": 1}
    trainer, (batch,), _ = trained(tmp_path, **bounds, **options)
    log, mask = trainer.state.log_history[0], batch["action_mask"]
    off = (batch["old_logps"] - batch["engine_logps"]) * mask
    ratio = (off.sum(1, keepdim=True).expand_as(off) if mode.startswith("sequence") else off).exp()[mask]
    assert log["sampling/ratio_mean"] == pytest.approx(ratio.mean().item(), rel=1e-4)
    assert log["sampling/ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-4)
    outside = ((ratio > high) | (ratio < low)).float().mean().item()
    assert log["sampling/bounded"] == pytest.approx(outside) and 0.1 < outside < 1.0
    assert log["sampling/ratio_max"] > high
    tokens = off[mask].double()
    assert log["sampling/kl"] == pytest.approx((tokens.exp() - 1 - tokens).mean().item(), rel=1e-3)
    assert log["sampling/logp_difference_max"] == pytest.approx(tokens.abs().max().item())
