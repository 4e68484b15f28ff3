"""Settings and arguments that cannot work: each message names the value, what is allowed and the cure.

Also which engine samples: vLLM where it is installed and can serve the policy, else transformers.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from peft import IA3Config, LoraConfig, PromptTuningConfig  # noqa: E402
from trainer_tools import ENV, RandomPolicy, in_ranks, make_trainer, model_folder, settings  # noqa: E402
from transformers import AutoTokenizer, TrainingArguments  # noqa: E402
from trl import GRPOConfig, GRPOTrainer, SFTConfig  # noqa: E402
from trl.trainer.callbacks import SyncRefModelCallback  # noqa: E402

from agent_gym import Span  # noqa: E402
from agent_gym.cli.early import check_early  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies.transformers import TransformersPolicy  # noqa: E402
from agent_gym.rollout import Row  # noqa: E402
from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, AgentPPOConfig, engine, task_dataset  # noqa: E402
from agent_gym.trainers.config import FIXED, follow_new_words  # noqa: E402
from agent_gym.trainers.settings import REMOVED  # noqa: E402
from agent_gym.trainers.sft import train_sft  # noqa: E402

CASES: list[tuple[dict[str, Any], str]] = [
    # TRL's names of losses mean three things at once, each of which has a setting of its own here.
    ({"loss_type": "dapo"}, "'dapo' of TRL is called loss_type='clip', loss_normalization='token' here"),
    ({"loss_type": "cispo", "epsilon_high": 0.28}, r"epsilon_high is 0\.28; .* must be above 1, for example 5\.0"),
    ({"delta": 1.2, "epsilon_high": 0.28}, r"delta is 1\.2; the dual clip must lie above 1 \+ epsilon_high"),
    ({"process_norm": "mean"}, "process_norm is 'mean'; allowed: None, none, trajectory, group, batch, prime"),
    ({"outcome_weight": 0.5}, "outcome_weight weighs the outcome against process rewards: set process_norm, too"),
    ({"scale_rewards": "groups"}, "scale_rewards is 'groups'; allowed: group, batch, none"),
    ({"keep_groups": 0.0}, r"keep_groups is 0\.0; it must be above 0 and at most 1"),
    ({"keep_variance": 1.5}, r"keep_variance is 1\.5; it must be above 0 and at most 1, or None"),
    (
        {"keep_variance": 0.9, "keep_groups": 0.5},
        r"keep_groups 0\.5 and keep_variance 0\.9 are two rules for one choice",
    ),
    ({"num_generations": 1, "advantage_estimator": "remax", "keep_variance": 0.9}, "num_generations must be above 1"),
    ({"probe_steps": -1}, "probe_steps is -1; it must be at least 0"),
    ({"learning_rate": "1e-4"}, "learning_rate is '1e-4'; it must be a number"),
    ({"max_steps": 10.0}, r"max_steps is 10\.0; it must be a whole number"),
    ({"max_turns": "4"}, "max_turns is '4'; it must be a whole number or None"),
    ({"logging_steps": None}, "logging_steps is None; it must be a number"),
    ({"num_generations": 0}, "num_generations is 0; it must be at least 1"),
    ({"num_generations_eval": 0}, "num_generations_eval is 0; it must be at least 1"),
    ({"num_iterations": 0}, "num_iterations is 0; it must be at least 1"),
    ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
    ({"epsilon": -0.2}, r"epsilon is -0\.2; it must be at least 0"),
    ({"beta": -1.0}, r"beta is -1\.0; it must be at least 0"),
    ({"step_lam": -0.1}, r"step_lam is -0\.1; it must be from 0 to 1"),
    ({"micro_batch_tokens": 1}, "micro_batch_tokens is 1; it must be at least 2"),
    ({"overlong_buffer": 9}, "overlong_buffer is 9; it must be at most max_turn_tokens, here 8"),
    ({"context": "windows:3"}, "context is 'windows:3'; known: append, window:TURNS"),
    ({"temperature": 0.0}, r"temperature is 0\.0; it must be at least 0\.01: .*eval_temperature may be 0"),
    ({"eval_temperature": -1.0}, r"eval_temperature is -1\.0; it must be 0 \(greedy\) or at least 0\.01"),
    ({"vllm_max_model_length": 100}, r"vllm_max_model_length is 100, less than max_episode_tokens \(200\): leave it"),
    ({"max_turns": 0}, "max_turns is 0; it must be positive"),
    ({"layout": "server", "engine_process": True}, "engine_process is True, and layout 'server' has engines elsewhere"),
    # One episode per task: only for estimators that do not compare, and without what compares.
    ({"num_generations": 1}, "num_generations is 1, but 'grpo' compares episodes .* raise it to 2 or more, or take"),
    ({"num_generations": 1, "advantage_estimator": "remax", "keep_groups": 0.5}, "num_generations must be above 1"),
    # With a critic.
    ({"ppo": True, "critic": "tail"}, "critic is 'tail'; allowed: model, head"),
    ({"ppo": True, "vf_coef": -1.0}, r"vf_coef is -1\.0; it must be at least 0"),
    ({"ppo": True, "cliprange_value": 0.0}, r"cliprange_value is 0\.0; it must be positive, or None for no limit"),
    ({"ppo": True, "gamma": 1.5}, r"gamma is 1\.5; it must be from 0 to 1"),
    # What may have one value only is refused with its value and the reason.
    ({"top_k": 50}, "top_k is 50; allowed: 0"),
    ({"use_liger_kernel": True}, "use_liger_kernel is True; allowed: False. The loss is computed here"),
    # So is what transformers would read and no trainer here does.
    ({"label_smoothing_factor": 0.1}, r"label_smoothing_factor is 0\.1; allowed: 0\.0\. There are no labels"),
    ({"fp16": True}, "fp16 is True, and a CPU computes in it as in float32: leave it out, or take bf16"),
    ({"bf16_full_eval": True}, "bf16_full_eval is True; allowed: False. Evaluation has the precision of training"),
    ({"data_seed": 7}, "data_seed is 7; allowed: None. The order of tasks comes from seed"),
    ({"train_sampling_strategy": "sequential"}, "allowed: 'random'. The order of tasks comes from seed; shuffle_dat"),
    ({"per_device_eval_batch_size": 4}, "per_device_eval_batch_size is 4; allowed: 8. Evaluation plays episodes"),
    ({"include_for_metrics": ["loss"]}, r"include_for_metrics is \['loss'\]; allowed: \[\]"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size is not supported by GRPO"),
    ({"remove_unused_columns": True}, "remove_unused_columns is True; allowed: False. The columns of a row"),
    ({"do_eval": True}, "do_eval is True, and eval_strategy 'no' evaluates nothing"),
    ({"warmup_steps": 3}, "warmup_steps is 3, and lr_scheduler_type 'constant' has no warmup: .*constant_with_warmup"),
    # What TRL itself refuses comes as the same kind of error.
    ({"num_generations": 3}, r"generation_batch_size \(8\) must be divisible by num_generations \(3\)"),
]


@pytest.mark.parametrize(("changes", "message"), CASES, ids=lambda case: str(case)[:40])
def test_a_setting_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes)


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_was_removed_names_its_replacement(tmp_path: Path, name: str) -> None:
    for make in (AgentGRPOConfig, AgentPPOConfig):
        with pytest.raises(ConfigError, match=f"^the setting {name} was removed: ") as caught:
            make(str(tmp_path), **{name: "x"})
        assert REMOVED[name] in str(caught.value)
    (tmp_path / "run.yaml").write_text(f"{name}: 1\n")
    for words in ([f"--{name}", "1"], ["--config", str(tmp_path / "run.yaml")]):
        with pytest.raises(ConfigError, match=f"^the setting {name} was removed: "):
            check_early("grpo", ["AgentR1/GSM8K-v0", *words])


def test_what_stands_for_a_type_is_taken(tmp_path: Path) -> None:
    numbers = {"learning_rate": np.float32(1e-4), "seed": np.int64(3), "weight_decay": 0}
    args = settings(tmp_path, scale_rewards=False, **numbers)
    assert args.seed == 3 and args.scale_rewards == "none"


READ_BY_TRL: dict[str, Any] = {
    **dict.fromkeys(("trust_remote_code", "disable_dropout", "cast_lm_head_to_fp32"), GRPOTrainer.__init__),
    **dict.fromkeys(("router_aux_loss_coef", "num_generations_eval", "shuffle_dataset"), GRPOTrainer.__init__),
    **dict.fromkeys(("sync_ref_model", "log_completions_hub_repo"), GRPOTrainer.__init__),
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), SyncRefModelCallback.on_step_end),
    **dict.fromkeys(("num_completions_to_print", "log_unique_prompts"), GRPOTrainer.log),
    **dict.fromkeys(("scale_rewards", "vllm_importance_sampling_cap"), GRPOConfig.__post_init__),
}
"""Fields of TRL's that methods of TRL read which are run here, too."""


def test_every_field_of_trl_is_read_or_refused() -> None:
    own = "".join(path.read_text() for path in Path(inspect.getfile(AgentGRPOConfig)).parent.rglob("*.py"))
    fields = {f.name for f in dataclasses.fields(GRPOConfig)} - {f.name for f in dataclasses.fields(TrainingArguments)}
    read = {name for name in fields if re.search(rf"\b(args|self|trainer)\.{name}\b", own)}
    for name, method in READ_BY_TRL.items():
        assert re.search(rf"\b(args|self)\.{name}\b", inspect.getsource(method)), f"{name}: {method} no longer reads it"
    unknown = fields - read - set(READ_BY_TRL) - set(FIXED)
    assert not unknown, "new in TRL: read it, refuse it (trainers/config.py), or name the method of TRL that reads it"
    assert set(FIXED) <= set(GRPOConfig.__dataclass_fields__) and not set(FIXED) & set(READ_BY_TRL)


READ_BY_TRANSFORMERS = """
accelerator_config adam_beta1 adam_beta2 adam_epsilon bf16 dataloader_in_order dataloader_multiprocessing_context
dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed
disable_tqdm do_eval do_train enable_jit_checkpoint eval_delay eval_on_start eval_steps eval_strategy fp16 fsdp
fsdp_config full_determinism gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip
learning_rate load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_first_step
logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps
metric_for_best_model neftune_noise_alpha num_train_epochs optim optim_args optim_target_modules output_dir
parallelism_config per_device_train_batch_size project push_to_hub report_to
restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model save_steps
save_strategy save_total_limit seed skip_memory_metrics tf32 torch_compile torch_compile_backend torch_compile_mode
trackio_bucket_id trackio_space_id trackio_static_space_id use_cache use_cpu use_liger_kernel warmup_steps weight_decay
""".split()
"""Fields of transformers that its loop, its callbacks or accelerate read in these trainers, too."""


def test_every_field_of_transformers_is_read_or_refused() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    unknown = fields - set(READ_BY_TRANSFORMERS) - set(FIXED)
    assert not unknown, "new in transformers: say what reads it, or refuse it (trainers/config.py)"
    assert set(READ_BY_TRANSFORMERS) <= fields and not set(READ_BY_TRANSFORMERS) & (set(FIXED) - {"use_liger_kernel"})


def test_attempts_of_an_evaluation_need_no_batch_size(tmp_path: Path) -> None:
    args = settings(tmp_path, num_generations_eval=3, eval_strategy="steps", eval_steps=1)
    assert (args.num_generations_eval, args.per_device_eval_batch_size) == (3, 8)


def test_what_settings_resolve_to(tmp_path: Path) -> None:
    args = settings(tmp_path, top_k=-1, min_p=0.0, scale_rewards=False, generation_kwargs={})
    assert args.scale_rewards == "none"
    for estimator in ("reinforce_pp", "remax", "gae"):  # a single episode per task, where the estimator allows it
        args = settings(tmp_path, num_generations=1, advantage_estimator=estimator)
        assert (args.num_generations, type(args.num_generations), args.batch_tasks) == (1, int, 8)
    assert settings(tmp_path, ppo=True).num_generations == 1
    assert settings(tmp_path).micro_batch_size == 8 and settings(tmp_path, micro_batch_size=3).micro_batch_size == 3
    budget = settings(tmp_path, max_turns=3, episode_timeout=5.0).budget
    assert (budget.max_turn_tokens, budget.max_tokens, budget.max_turns, budget.max_seconds) == (8, 200, 3, 5.0)
    here = str(tmp_path)  # the defaults of Python's user, as those of the command line: a CPU computes in float32
    assert AgentGRPOConfig(here).bf16 == torch.cuda.is_available() and AgentGRPOConfig(here, use_cpu=True).bf16 is False
    assert AgentGRPOConfig(here, use_cpu=True, bf16=True).bf16 is True


@pytest.mark.parametrize(
    ("urls", "transfer", "shared"),
    [
        ("http://127.0.0.1:8010", "files", False),
        ("http://localhost:8010,http://node2:8010", "files", True),
        ("http://node2:8010", "auto", False),
        ("http://node2:8010", "broadcast", False),
    ],
)
def test_files_with_weights_are_where_the_servers_see_them(
    tmp_path: Path, urls: str, transfer: str, shared: bool
) -> None:
    args = settings(tmp_path, layout="server", vllm_server_base_url=urls, weights_transfer=transfer)
    assert args.weights_folder == (str(tmp_path) if shared else None)


def test_what_trl_reads_does_something_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    shown = []
    for count in (1, 3):
        make_trainer(tmp_path, log_completions=True, num_completions_to_print=count, max_steps=1).train()
        shown.append(capsys.readouterr().out.count("Write letters."))
    assert shown[1] == 3 * shown[0] > 0


# Arguments.

WRONG = Dataset.from_dict({"prompt": ["a"], "split": ["train"]})
COLUMNS = "has no column 'env_id'; it has: prompt, split. Make it with task_"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantage_estimator": "step_gae"}, "'step_gae' needs a critic: use AgentPPOTrainer"),
        (
            {"ppo": True, "advantage_estimator": "rloo", "num_generations": 4},
            "'rloo' makes no use of a critic: use AgentGRPOTrainer, or one of gae",
        ),
        ({"env": "AgentR1/GSM8-v0"}, "AgentR1/GSM8-v0.*AgentR1/GSM8K-v0"),
        ({"env_kwargs": {"colour": "red"}}, "colour"),
        ({"train_dataset": WRONG}, f"train_dataset {COLUMNS}"),
        ({"eval_dataset": WRONG}, f"eval_dataset {COLUMNS}"),
        ({"eval_dataset": {"good": task_dataset(ENV), "bad": WRONG}}, rf"eval_dataset\['bad'\] {COLUMNS}"),
        ({"max_staleness": 1, "max_refills": 1}, "max_staleness does not go with max_refills"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, **options)


def test_tasks_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give an environment \(env=...\) or a train_dataset"):
        AgentGRPOTrainer("nothing", args=settings(tmp_path))
    with pytest.raises(ConfigError, match="has 1 tasks, but one generation batch takes 2: add tasks"):
        make_trainer(tmp_path, train_dataset=task_dataset(ENV, tasks=1)).train()
    with pytest.raises(ConfigError, match="65 episodes asked for, but split 'train' of Toy/Letters-v0 has 64 tasks"):
        task_dataset(ENV, tasks=65)
    with pytest.raises(ConfigError, match="unknown split 'dev'; Toy/Letters-v0 has: train, test"):
        task_dataset(ENV, split="dev")


def test_task_rows_name_everything_that_decides_an_episode() -> None:
    rows = task_dataset(ENV, {"goodbye": False}, split="test", tasks=3, seed=4)
    assert rows.column_names == ["env_id", "env_kwargs", "split", "index", "seed"]
    assert rows[2]["env_kwargs"] == '{"goodbye": false}'
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert rows["seed"] == task_dataset(ENV, split="test", tasks=3, seed=4)["seed"]
    assert rows["seed"] != task_dataset(ENV, split="test", tasks=3, seed=5)["seed"]


# Which engine samples.


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: object())


def test_vllm_is_the_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = TransformersPolicy.__new__(TransformersPolicy)
    for there in (True, False):
        monkeypatch.setattr(engine, "find_spec", lambda name, there=there: object() if there else None)
        assert engine.wants_vllm(settings(tmp_path, use_vllm=None)) is there
        assert engine.wants_vllm(settings(tmp_path, use_vllm=True))
        assert not engine.wants_vllm(settings(tmp_path, use_vllm=False))
    for use_vllm, policy in ((None, None), (True, live)):  # of a model in shares
        with pytest.raises(ConfigError, match="the model is in shares .*--use_vllm true"):
            engine.check_sharded(settings(tmp_path, use_vllm=use_vllm), policy)
    engine.check_sharded(settings(tmp_path, use_vllm=None), RandomPolicy())


DORA = LoraConfig(use_dora=True, target_modules=["q_proj"])
IA3 = IA3Config(target_modules=["q_proj"], feedforward_modules=[])


@pytest.mark.parametrize("adapter", [DORA, IA3], ids=["dora", "ia3"])
def test_what_vllm_cannot_serve_is_sampled_by_transformers(installed: None, tmp_path: Path, adapter: Any) -> None:
    trainer = make_trainer(tmp_path, policy=None, use_vllm=None, peft_config=adapter)
    with pytest.warns(UserWarning, match="Sampling with transformers, which is slower"):
        assert isinstance(trainer.runner.policy, TransformersPolicy)
    assert trainer.use_vllm is False
    trainer = make_trainer(tmp_path, policy=None, use_vllm=True, peft_config=adapter)
    with pytest.raises(ConfigError, match="use plain LoRA|allowed: LORA"):
        _ = trainer.runner


PROMPT = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
TOKENS = LoraConfig(target_modules=["q_proj"], trainable_token_indices=[5, 6])


@pytest.mark.parametrize(
    ("adapter", "words"),
    [(PROMPT, "PROMPT_TUNING, which puts tokens in front of rows; allowed"), (TOKENS, "the output layer, too")],
    ids=["prompt", "tokens"],
)
def test_adapters_that_logprobs_do_not_know_are_refused(tmp_path: Path, adapter: Any, words: str) -> None:
    for ppo in (False, True):
        with pytest.raises(ConfigError, match=words):
            make_trainer(tmp_path, ppo=ppo, peft_config=adapter)
    imitation = SFTConfig(str(tmp_path), max_steps=1, use_cpu=True, bf16=False, report_to="none")
    rows = [Row([5, 6, 7], [Span(0, 1, "user", -1), Span(1, 3, "agent", 0)])]
    with pytest.raises(ConfigError, match=words):
        train_sft(model_folder(), AutoTokenizer.from_pretrained(model_folder()), rows, imitation, peft_config=adapter)


def test_a_policy_of_the_users_own_is_taken_as_it_is(installed: None, tmp_path: Path) -> None:
    policy = RandomPolicy()
    trainer = make_trainer(tmp_path, policy=policy, use_vllm=None, max_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert trainer.runner.policy is policy and trainer.use_vllm is False


def _without_vllm() -> tuple[bool, str, bool]:
    before = "vllm" in sys.modules
    from trl.trainer import grpo_trainer

    try:
        grpo_trainer.VLLMGeneration()
    except TypeError as error:
        return before, str(error), "vllm" in sys.modules
    raise AssertionError("it was made of nothing")


@pytest.mark.vllm
def test_the_trainers_import_no_vllm_and_those_of_trl_still_find_it() -> None:
    before, asked, after = in_ranks(_without_vllm, 1)[0]  # forked from a process that has imported the trainers
    assert not before and after and "VLLMGeneration.__init__() missing" in asked


def test_the_new_words_for_checkpoints_of_activations_are_followed() -> None:
    """transformers 5.24 renames them; a version without the fields is left as it is."""
    kwargs = {"use_reentrant": False}
    newer = SimpleNamespace(
        gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs,
        activation_checkpointing=None, activation_checkpointing_kwargs=None,
    )  # fmt: skip
    follow_new_words(newer)
    assert newer.activation_checkpointing is True and newer.activation_checkpointing_kwargs is kwargs
    newer.activation_checkpointing = False
    follow_new_words(newer)
    assert newer.activation_checkpointing is False, "the user's choice"
    older = SimpleNamespace(gradient_checkpointing=True, gradient_checkpointing_kwargs=None)
    follow_new_words(older)
    assert not hasattr(older, "activation_checkpointing")
