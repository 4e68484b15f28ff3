"""What a trainer is given first: a class, questions, and the arguments of TRL's trainers that have no place here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from datasets import Dataset
from toy_envs import CountingEnv
from transformers import AutoTokenizer

from agent_gym import ConfigError, QuestionEnv
from agent_gym.rollout import make_env
from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer


def test_a_trainer_takes_a_class_or_a_list_of_questions(tiny_model: str, tmp_path: Path) -> None:
    def trainer(env: Any = None, **given: Any) -> Any:
        args = AgentGRPOConfig(
            str(tmp_path), max_steps=1, num_generations=2, per_device_train_batch_size=4, max_turn_tokens=4,
            max_episode_tokens=700, use_vllm=False, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        )  # fmt: skip
        return AgentGRPOTrainer(tiny_model, env, args, **given)

    questions = [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    run = trainer(train_dataset=questions)
    run.train()
    assert run.evaluate(questions[:3])["eval_episodes"] == 3
    assert run.state.global_step == 1 and run.train_dataset["env_id"][0].startswith("Local/QuestionEnv")
    assert trainer(CountingEnv).train_dataset["env_id"][0] == "Local/CountingEnv-v0"
    words = [{"Body": f"A pen and {n} pens.", "Question": "How many?", "extra": {"gold": str(n + 1)}} for n in range(4)]
    named = {"question": "Body+Question", "answer": "extra.gold"}
    run = trainer(train_dataset=words, env_kwargs={"columns": named})
    row = run.train_dataset[1]
    env = make_env(row["env_id"], json.loads(row["env_kwargs"]))
    observation, _ = env.reset(options={"split": row["split"], "index": row["index"]})
    assert observation.endswith("A pen and 1 pens. How many?") and env.step("<answer>2</answer>")[1] == 1.0
    run.train()
    assert run.evaluate(words[:2])["eval_episodes"] == 2  # by the same columns
    endless = AutoTokenizer.from_pretrained(tiny_model)
    endless.pad_token = endless.eos_token = None
    for given, message in (
        ({"env": CountingEnv, "reward_funcs": len}, "takes no reward_funcs: the environment scores"),
        ({"env": CountingEnv, "train_dataset": questions}, "leave env out"),
        ({"train_dataset": words, "columns": named}, "takes no columns: .* env_kwargs={'columns': {'question': ...,"),
        ({"train_dataset": words}, "no column 'answer'.*columns="),
        ({"train_dataset": [{"prompt": "x"}]}, "row 0: no column 'answer'"),
        ({"train_dataset": ["x"]}, "must be a data set or a list of dicts"),
        ({"train_dataset": tmp_path / "rows.jsonl"}, "must be a data set or a list of dicts"),
        ({"train_dataset": Dataset.from_list(questions).select([])}, "with at least one row"),
        ({"train_dataset": [{**run.train_dataset[0], "env_kwargs": {}}]}, "env_kwargs of the type {}; they must be"),
        ({"env": CountingEnv, "processing_class": endless}, "neither a pad_token nor an eos_token"),
        ({"env": QuestionEnv, "env_kwargs": {"questions": questions, "tools": [len]}}, "must be JSON values"),
    ):
        with pytest.raises(ConfigError, match=message):
            trainer(**given)
    with pytest.raises(ConfigError, match="eval_dataset has the columns problem, answer, and env has its own tasks"):
        trainer(CountingEnv).evaluate(questions)
