"""Settings and arguments that cannot work: each message names the value, what is allowed and the cure."""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from trainer_tools import ENV, make_trainer, settings  # noqa: E402
from transformers import TrainingArguments  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.trainer.callbacks import SyncRefModelCallback  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset  # noqa: E402
from agent_gym.trainers.config import FIXED  # noqa: E402

CASES: list[tuple[dict[str, Any], str]] = [
    # TRL's names of losses say three things at once, each of which has a setting of its own here.
    ({"loss_type": "dapo"}, "'dapo' of TRL is called loss_type='clip', loss_normalization='token' here"),
    ({"loss_type": "grpo"}, "'grpo' of TRL is called loss_type='clip', loss_normalization='sequence' here"),
    (
        {"loss_type": "dr_grpo"},
        "'dr_grpo' of TRL is called advantage_estimator='dr_grpo', loss_type='clip', loss_normalization='constant'",
    ),
    ({"loss_type": "bnpo"}, "loss_type is 'bnpo'; allowed: clip, cispo"),
    ({"loss_type": "cispo"}, "epsilon_high is None; with loss_type 'cispo' it is the largest importance weight"),
    ({"loss_type": "cispo", "epsilon_high": 0.28}, r"epsilon_high is 0\.28; .* must be above 1, for example 5\.0"),
    ({"delta": 1.2, "epsilon_high": 0.28}, r"delta is 1\.2; the dual clip must lie above 1 \+ epsilon_high"),
    ({"advantage_estimator": "grop"}, "advantage_estimator is 'grop'; allowed: grpo, dr_grpo, rloo"),
    ({"loss_normalization": "row"}, "loss_normalization is 'row'; allowed: token, sequence, step, episode, constant"),
    ({"importance_sampling_level": "episode"}, "is 'episode'; allowed: token, step, sequence"),
    ({"process_norm": "mean"}, "process_norm is 'mean'; allowed: None, none, trajectory, group, batch, prime"),
    ({"outcome_weight": 0.5}, "outcome_weight weighs the outcome against process rewards: set process_norm, too"),
    ({"kl_in": "advantage"}, "kl_in is 'advantage'; allowed: loss, reward"),
    ({"minibatch_by": "groups"}, "minibatch_by is 'groups'; allowed: rows, episodes"),
    ({"keep_groups": 0.0}, r"keep_groups is 0\.0; it must be above 0 and at most 1"),
    ({"echo_trap": "yes"}, "echo_trap is 'yes'; allowed: off, warn, stop"),
    ({"gamma": 1.5}, r"gamma is 1\.5; it must be from 0 to 1"),
    ({"step_lam": -0.1}, r"step_lam is -0\.1; it must be from 0 to 1"),
    ({"max_refills": -1}, "max_refills is -1; it must not be negative"),
    ({"overlong_buffer": -1}, "overlong_buffer is -1; it must not be negative"),
    ({"overlong_buffer": 9}, "overlong_buffer is 9; it must be at most max_turn_tokens, here 8"),
    ({"turn_curriculum": "5:2"}, "the turn curriculum is .5:2.; its first step must be 0 and not 5"),
    ({"context": "windows:3"}, "context is 'windows:3'; known: append, window:TURNS"),
    ({"top_p": 0.9}, r"top_p is 0\.9; allowed: 1\.0\. Rollouts sample the full distribution"),
    ({"top_k": 50}, "top_k is 50; allowed: 0"),
    ({"min_p": 0.1}, r"min_p is 0\.1; allowed: None"),
    ({"repetition_penalty": 1.1}, r"repetition_penalty is 1\.1; allowed: 1\.0"),
    ({"generation_kwargs": {"top_h": 0.5}}, "generation_kwargs is {'top_h': 0.5}; allowed: None"),
    ({"vllm_structured_outputs_regex": "a+"}, r"vllm_structured_outputs_regex is 'a\+'; allowed: None"),
    ({"use_adaptive_entropy": True}, "use_adaptive_entropy is True; allowed: False"),
    ({"top_entropy_quantile": 0.2}, r"top_entropy_quantile is 0\.2; allowed: 1\.0"),
    ({"off_policy_mask_threshold": 0.5}, r"off_policy_mask_threshold is 0\.5; allowed: None"),
    ({"use_liger_kernel": True}, "use_liger_kernel is True; allowed: False. The loss is computed here"),
    ({"vllm_mode": "server"}, "vllm_mode is 'server'; allowed: 'colocate'"),
    ({"vllm_model_impl": "transformers"}, "vllm_model_impl is 'transformers'; allowed: 'vllm'"),
    ({"vllm_tensor_parallel_size": 2}, r"vllm_tensor_parallel_size is 2; allowed: 1\. Each process runs an engine"),
    ({"use_transformers_continuous_batching": True}, "use_transformers_continuous_batching is True; allowed: False"),
    ({"cache_implementation": "static"}, "cache_implementation is 'static'; allowed: None"),
    ({"reward_weights": [1.0]}, r"reward_weights is \[1.0\]; allowed: None. The environment owns the reward"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation is 'normalize_then_sum'"),
    ({"max_tool_calling_iterations": 3}, r"max_tool_calling_iterations is 3; .* limited by max_turns"),
    ({"scale_rewards": "groups"}, "scale_rewards is 'groups'; allowed: group, batch, none"),
    ({"vllm_importance_sampling_mode": "truncate"}, "is 'truncate'; allowed: token_truncate, token_mask, sequence_"),
    ({"temperature": 0.0}, r"temperature is 0\.0; it must be at least 0\.01: .*eval_temperature may be 0"),
    ({"eval_temperature": -1.0}, r"eval_temperature is -1\.0; it must be 0 \(greedy\) or at least 0\.01"),
    ({"micro_batch_size": 0}, "micro_batch_size is 0; it must be at least 1"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
    ({"env_workers": 0}, "env_workers is 0; it must be at least 1"),
    ({"trajectories_per_step": -1}, "trajectories_per_step is -1; it must be at least 0"),
    ({"vllm_max_model_length": 100}, r"vllm_max_model_length is 100, less than max_episode_tokens \(200\): leave it"),
    ({"max_turns": 0}, "max_turns is 0; it must be positive"),
    ({"max_turn_tokens": 0}, "max_turn_tokens is 0; it must be positive"),
    ({"max_episode_tokens": -1}, "max_tokens is -1; it must be positive"),
    ({"episode_timeout": 0.0}, r"max_seconds is 0\.0; it must be positive"),
    # One episode per task: only for estimators that do not compare, and without what compares.
    ({"num_generations": 1}, "num_generations is 1, but 'grpo' compares episodes .* raise it to 2 or more, or take"),
    ({"num_generations": 1, "advantage_estimator": "gigpo"}, "num_generations is 1, but 'gigpo' compares"),
    ({"num_generations": 1, "advantage_estimator": "remax", "max_refills": 1}, "num_generations must be above 1"),
    ({"num_generations": 1, "advantage_estimator": "remax", "keep_groups": 0.5}, "num_generations must be above 1"),
    # With a critic.
    ({"ppo": True, "critic": "tail"}, "critic is 'tail'; allowed: model, head"),
    ({"ppo": True, "critic_learning_rate": -1.0}, r"critic_learning_rate is -1\.0; it must not be negative"),
    ({"ppo": True, "critic_warmup_steps": -1}, "critic_warmup_steps is -1; it must not be negative"),
    ({"ppo": True, "vf_coef": -0.5}, r"vf_coef is -0\.5; it must not be negative"),
    ({"ppo": True, "cliprange_value": 0.0}, r"cliprange_value is 0\.0; it must be positive, or None for no limit"),
    # What TRL itself refuses comes as the same kind of error.
    ({"num_generations": 3}, r"generation_batch_size \(8\) must be divisible by num_generations \(3\)"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size is not supported"),
]


@pytest.mark.parametrize(("changes", "message"), CASES, ids=lambda case: str(case)[:40])
def test_a_setting_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes)


READ_BY_TRL: dict[str, Any] = {
    **dict.fromkeys(("trust_remote_code", "disable_dropout", "cast_lm_head_to_fp32"), GRPOTrainer.__init__),
    **dict.fromkeys(("router_aux_loss_coef", "num_generations_eval", "shuffle_dataset"), GRPOTrainer.__init__),
    **dict.fromkeys(("sync_ref_model", "log_completions_hub_repo"), GRPOTrainer.__init__),
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), SyncRefModelCallback.on_step_end),
    **dict.fromkeys(("num_completions_to_print", "log_unique_prompts"), GRPOTrainer.log),
    **dict.fromkeys(("scale_rewards", "vllm_importance_sampling_cap"), GRPOConfig.__post_init__),
}
"""Fields of TRL's that methods of TRL read which are run here, too."""


def test_every_field_of_trl_is_read_or_refused(tmp_path: Path) -> None:
    own = "".join(path.read_text() for path in Path(inspect.getfile(AgentGRPOConfig)).parent.glob("*.py"))
    fields = {f.name for f in dataclasses.fields(GRPOConfig)} - {f.name for f in dataclasses.fields(TrainingArguments)}
    read = {name for name in fields if re.search(rf"\b(args|self|trainer)\.{name}\b", own)}
    for name, method in READ_BY_TRL.items():
        assert re.search(rf"\b(args|self)\.{name}\b", inspect.getsource(method)), f"{name}: {method} no longer reads it"
    unknown = fields - read - set(READ_BY_TRL) - set(FIXED)
    assert not unknown, "new in TRL: read it, refuse it (trainers/config.py), or say which method of TRL reads it"
    assert set(FIXED) <= {field.name for field in dataclasses.fields(GRPOConfig)}, "gone from TRL"
    assert not set(FIXED) & set(READ_BY_TRL)
    for name, (allowed, _) in FIXED.items():
        assert getattr(GRPOConfig(str(tmp_path), use_cpu=True, bf16=False), name) in allowed


@pytest.mark.parametrize("name", FIXED)
def test_what_nothing_reads_is_refused_away_from_its_default(tmp_path: Path, name: str) -> None:
    tried = {field: value for changes, _ in CASES for field, value in changes.items()}
    default = FIXED[name][0][0]
    if name in tried:
        other = tried[name]
    elif isinstance(default, bool):
        other = not default
    elif isinstance(default, (int, float)):
        other = default + 1
    else:
        other = {"pad_to_multiple_of": 8, "vllm_server_host": "node1"}.get(name, {"a": 1})
    with warnings.catch_warnings(), pytest.raises(ConfigError, match=f"^{name} is .*; allowed: "):
        warnings.simplefilter("ignore", FutureWarning)  # of fields that TRL is about to drop
        settings(tmp_path, **{name: other})


def test_what_trl_reads_does_something_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    shown = []
    for count in (1, 3):
        options = {"log_completions": True, "num_completions_to_print": count, "max_steps": 1}
        make_trainer(tmp_path, **options).train()
        shown.append(capsys.readouterr().out.count("Write letters."))
    assert shown[1] == 3 * shown[0] > 0


def test_neutral_values_in_another_spelling_pass(tmp_path: Path) -> None:
    args = settings(tmp_path, top_k=-1, min_p=0.0, scale_rewards=False, generation_kwargs={})
    assert args.scale_rewards == "none"


def test_a_single_episode_per_task_where_the_estimator_allows_it(tmp_path: Path) -> None:
    for estimator in ("reinforce_pp", "remax", "gae"):
        args = settings(tmp_path, num_generations=1, advantage_estimator=estimator)
        assert (args.num_generations, type(args.num_generations), args.batch_tasks) == (1, int, 8)
    assert settings(tmp_path, ppo=True).num_generations == 1


def test_trainer_and_estimator_have_to_match(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'step_gae' needs a critic: use AgentPPOTrainer"):
        make_trainer(tmp_path, advantage_estimator="step_gae")
    with pytest.raises(ConfigError, match="'rloo' makes no use of a critic: use AgentGRPOTrainer, or one of gae"):
        make_trainer(tmp_path, ppo=True, advantage_estimator="rloo", num_generations=4)


def test_the_micro_batch_is_the_batch_unless_said(tmp_path: Path) -> None:
    assert settings(tmp_path).micro_batch_size == 8
    assert settings(tmp_path, micro_batch_size=3).micro_batch_size == 3


def test_the_budget_is_that_of_the_settings(tmp_path: Path) -> None:
    budget = settings(tmp_path, max_turns=3, episode_timeout=5.0).budget
    assert (budget.max_turn_tokens, budget.max_tokens, budget.max_turns, budget.max_seconds) == (8, 200, 3, 5.0)


def test_an_unknown_environment_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AgentR1/GSM8-v0.*AgentR1/GSM8K-v0"):
        make_trainer(tmp_path, env="AgentR1/GSM8-v0")


def test_arguments_that_the_environment_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="colour"):
        make_trainer(tmp_path, env_kwargs={"colour": "red"})


def test_neither_environment_nor_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give an environment id \(env=...\) or a train_dataset"):
        AgentGRPOTrainer("nothing", args=settings(tmp_path))


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_wrong_columns_are_named_with_those_there_are(tmp_path: Path, name: str) -> None:
    wrong = Dataset.from_dict({"prompt": ["a"], "split": ["train"]})
    with pytest.raises(ConfigError, match=f"{name} has no column 'env_id'; it has: prompt, split. Make it with task_"):
        make_trainer(tmp_path, **{name: wrong})


def test_several_evaluation_sets_are_checked_one_by_one(tmp_path: Path) -> None:
    good = task_dataset(ENV, split="test", tasks=2)
    with pytest.raises(ConfigError, match=r"eval_dataset\['bad'\] has no column 'env_kwargs'"):
        make_trainer(tmp_path, eval_dataset={"good": good, "bad": good.remove_columns("env_kwargs")})


def test_too_few_tasks(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_dataset=task_dataset(ENV, tasks=1))
    with pytest.raises(ConfigError, match="has 1 tasks, but one generation batch takes 2: add tasks"):
        trainer.train()


def test_more_tasks_than_there_are() -> None:
    with pytest.raises(ConfigError, match="65 episodes asked for, but split 'train' of Toy/Letters-v0 has 64 tasks"):
        task_dataset(ENV, tasks=65)


def test_an_unknown_split() -> None:
    with pytest.raises(ConfigError, match="unknown split 'dev'; Toy/Letters-v0 has: train, test"):
        task_dataset(ENV, split="dev")


def test_task_rows_name_everything_that_decides_an_episode() -> None:
    rows = task_dataset(ENV, {"goodbye": False}, split="test", tasks=3, seed=4)
    assert rows.column_names == ["env_id", "env_kwargs", "split", "index", "seed"]
    assert rows[2]["env_kwargs"] == '{"goodbye": false}'
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert rows["seed"] == task_dataset(ENV, split="test", tasks=3, seed=4)["seed"]
    assert rows["seed"] != task_dataset(ENV, split="test", tasks=3, seed=5)["seed"]
