"""What the trainer tests share: a policy of seeded random tokens, an environment whose rewards differ, small settings.

Most questions about a trainer (do micro-batches, processes, restarts change the weights?) do not depend on what the
policy writes, only on that it writes the same again. `RandomPolicy` answers from the seed of the request alone, so
those tests are exact and spend their time in the trainer. Tests that need the true engine use it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import gymnasium
import numpy as np
import tiny
import torch
from accelerate.utils import imports
from model_server import free_port
from rollout_tools import EOS, RandomWriter
from transformers import AutoTokenizer, PrinterCallback, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agent_gym import EnvFailure, Reply, TextEnv
from agent_gym.evaluate import cards
from agent_gym.policies import Request

# They read the metadata of a package each time, a hundred times a run.
imports._is_package_available = functools.cache(imports._is_package_available)
cards.version = functools.cache(cards.version)
# At this size of model two threads spend their time waiting for each other: ten times slower on a busy machine.
torch.set_num_threads(1)

VOCABULARY = 512  # the size of tests/tiny.py's tokenizer
ENV = "Toy/Letters-v0"
SGD = {"optim": "sgd", "learning_rate": 1e-2, "max_grad_norm": 0.0}


class LettersEnv(TextEnv):
    """Pays for letters from the first half of the alphabet; a task lasts one to three turns, answers differ in length.

    Args:
        fail: every `fail`-th distinct action breaks the machinery, 0 never, 1 always.
        goodbye: whether the world has the last word of an episode that terminates.
        patient: whether the task never ends by itself, so that a budget has to end it.
    """

    reward_weights: ClassVar[dict[str, float]] = {"letters": 1.0, "length": 0.1}
    default_system_prompt: ClassVar[str] = "Write letters."

    def __init__(self, fail: int = 0, goodbye: bool = True, patient: bool = False, **kwargs: Any) -> None:
        super().__init__({"train": range(64), "test": range(64)}, **kwargs)
        self.fail, self.goodbye, self.patient = fail, goodbye, patient

    def begin(self, task: Any) -> str:
        self.task = int(task)
        return f"Task {self.task}: " + "write " * (self.task % 5 + 1)

    def respond(self, action: str) -> Reply:
        digest = sum(action.encode())
        if self.fail and digest % self.fail == 0:
            raise EnvFailure("the machinery broke")
        letters = sum(letter in "abcdefghijklm" for letter in action.lower()) / max(1, len(action))
        over = not self.patient and self.turn >= self.task % 3
        answer = f"turn {self.turn}, " + "good " * (digest % 4) if not over or self.goodbye else ""
        return Reply(
            answer,
            terms={"letters": letters, "length": len(action) / 100},
            terminated=over,
            success=letters > 0.3,
            metrics={"letters": letters},
        )

    def expert_action(self) -> str:
        return "abc"


if ENV not in gymnasium.registry:
    gymnasium.register(ENV, entry_point=LettersEnv)


class RandomPolicy(RandomWriter):
    """Uniformly random tokens with the log-probability that they have, and the rest of an engine."""

    def __init__(self, cut: float = 0.2) -> None:
        super().__init__(cut)
        self.seen: list[Request] = []
        self.synced = 0

    def submit(self, request: Request) -> None:
        super().submit(request)
        self.seen.append(request)

    def sync(self, named_weights: Any) -> None:
        self.synced += 1

    def wake(self) -> None: ...

    def sleep(self) -> None: ...

    def logprobs(self, rng: np.random.Generator, count: int) -> list[float]:
        return [-float(np.log(VOCABULARY))] * count


@functools.cache
def model_folder(tied: bool = True, seed: int = 0) -> str:
    """Make a tiny model once per test process and return its folder."""
    folder = tempfile.mkdtemp(prefix="agent-gym-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(
        tiny.make_tiny_model(folder, tied=tied, seed=seed, hidden_size=32, num_attention_heads=1, intermediate_size=64)
    )


def mixture_of_experts(folder: str | Path) -> str:
    """Make a tiny mixture of experts, whose experts transformers holds in one parameter, and return its folder."""
    config = Qwen3MoeConfig(
        hidden_size=64, num_hidden_layers=2, intermediate_size=64, moe_intermediate_size=32, num_experts=4,
        num_experts_per_tok=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=VOCABULARY,
        tie_word_embeddings=False, eos_token_id=EOS, pad_token_id=0, bos_token_id=None, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder()).save_pretrained(folder)
    return str(folder)


def settings(folder: str | Path, *, ppo: bool = False, **changes: Any) -> Any:
    """Settings of a short run on the CPU in float32, without anything written except on demand."""
    from agent_gym.trainers import AgentGRPOConfig, AgentPPOConfig

    values: dict[str, Any] = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_turn_tokens": 8,
        "max_episode_tokens": 200,
        "env_workers": 4,
        "use_vllm": False,
        "trajectories_per_step": 0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    if ppo:
        values |= {"num_generations": 1, "critic_learning_rate": 1e-3}
    return (AgentPPOConfig if ppo else AgentGRPOConfig)(str(folder), **(values | changes))


def make_trainer(folder: str | Path, *, model: Any = None, policy: Any = "random", **options: Any) -> Any:
    """Build a trainer on `LettersEnv`.

    Args:
        folder: where the run writes.
        model: a model or its folder; by default a fresh tiny one, always the same.
        policy: "random" for a `RandomPolicy`, None for the engine of the settings, or a policy.
        **options: arguments of the trainer, and settings; `ppo=True` makes an `AgentPPOTrainer`.
    """
    from agent_gym.trainers import AgentGRPOTrainer, AgentPPOTrainer

    ours = (
        "env",
        "env_kwargs",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "peft_config",
        "callbacks",
        "hint",
        "judge",
    )
    given = {name: options.pop(name) for name in ours if name in options}
    given.setdefault("env", ENV)
    if policy == "random" or isinstance(policy, RandomWriter):  # whose logprobs are not those of the model
        options.setdefault("engine_tolerance", None)
    given.setdefault("processing_class", AutoTokenizer.from_pretrained(model_folder()))
    trainer = (AgentPPOTrainer if options.get("ppo") else AgentGRPOTrainer)(
        model_folder() if model is None else model,
        args=settings(folder, **options),
        policy=RandomPolicy() if policy == "random" else policy,
        **given,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def lora(**changes: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(**({"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": "gaussian"} | changes))


def batches_of(trainer: Any) -> list[dict[str, Any]]:
    """Keep every batch that the trainer makes, as it was then."""
    batches: list[dict[str, Any]] = []
    generate = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        batch = generate(inputs)
        batches.append({name: value.clone() for name, value in batch.items()})
        return batch

    trainer._generate_and_score_completions = keep
    return batches


def played_by(trainer: Any) -> list[Any]:
    """Keep all episodes that the trainer plays."""
    found: list[Any] = []
    play = trainer.rollout
    trainer.rollout = lambda *args: [found.append(e) or e for e in play(*args)]
    return found


def logged(trainer: Any, name: str) -> list[float]:
    """Return what the trainer logged under a name, step by step."""
    return [log[name] for log in trainer.state.log_history if name in log]


def weights(model: Any) -> dict[str, np.ndarray]:
    """Copy the weights of a model, wrapped or not."""
    inner = getattr(model, "module", model)
    return {name: parameter.detach().numpy().copy() for name, parameter in inner.named_parameters()}


def distance(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference between two sets of weights."""
    assert set(a) == set(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def train(folder: str | Path, **options: Any) -> dict[str, np.ndarray]:
    """Train and return the final weights."""
    trainer = make_trainer(folder, **options)
    trainer.train()
    return weights(trainer.model)


def trained(folder: str | Path, **options: Any) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """Train and return the trainer, its batches and the episodes that it played."""
    trainer = make_trainer(folder, **options)
    batches, episodes = batches_of(trainer), played_by(trainer)
    trainer.train()
    return trainer, batches, episodes


def in_ranks(function: Callable[..., Any], processes: int, *arguments: Any, timeout_s: float = 300.0) -> list[Any]:
    """Call a function of a test module in several gloo ranks at once, and return what each returned.

    The processes are forked from a server that has imported the trainers once, which takes longer than the tests. The
    real launcher is used by the slow tests. Fails with the traceback of a rank that failed, or if they do not end.
    """
    with tempfile.TemporaryDirectory() as folder, _ranks(folder, processes, function, arguments) as ranks:
        # A rank that failed leaves the others waiting for it.
        _wait(lambda: any(p.exitcode for p in ranks) or not any(p.is_alive() for p in ranks), timeout_s)
        assert not (failed := [path.read_text() for path in Path(folder).glob("*.failed")]), failed[0]
        results = [pickle.loads(path.read_bytes()) for path in sorted(Path(folder).glob("*.pkl"))]
    assert len(results) == processes, f"only {len(results)} of {processes} ranks ended within {timeout_s} s"
    return results


def kill_ranks(function: Callable[..., Any], processes: int, *arguments: Any, timeout_s: float = 300.0) -> None:
    """Call a function in several ranks and kill them all once each has called `ready_to_die`."""
    with tempfile.TemporaryDirectory() as folder, _ranks(folder, processes, function, arguments) as ranks:
        _wait(lambda: len(list(Path(folder).glob("*.*"))) == processes, timeout_s)
        found = {path.name: path.read_bytes() for path in Path(folder).glob("*.*")}
        assert set(found) == {f"{rank}.ready" for rank in range(processes)}, found
        for process in ranks:
            process.kill()
        for process in ranks:
            process.join()
            assert process.exitcode == -signal.SIGKILL


def ready_to_die() -> None:
    """Wait, inside a rank, to be killed by `kill_ranks`."""
    Path(os.environ["AGENT_GYM_TEST_RANK"] + ".ready").touch()
    time.sleep(600)


@functools.cache
def _server() -> Any:
    """A fork server that is not that of the environments, which knows no trainer: each rank would import them again."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["agent_gym.trainers.grpo", "transformers.models.qwen3.modeling_qwen3"])
    return server


@contextlib.contextmanager
def _ranks(folder: str, processes: int, function: Callable[..., Any], arguments: Any) -> Iterator[list[Any]]:
    context = multiprocessing.get_context("forkserver")
    port = free_port()
    ranks = [
        context.Process(target=_rank, args=(folder, rank, processes, port, function, arguments))
        for rank in range(processes)
    ]
    try:
        with mock.patch.object(forkserver, "connect_to_new_process", _server().connect_to_new_process):
            for process in ranks:
                process.start()
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _wait(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def _rank(folder: str, rank: int, processes: int, port: int, function: Callable[..., Any], arguments: Any) -> None:
    """Run one rank and leave its result in a file."""
    os.environ["AGENT_GYM_TEST_RANK"] = str(Path(folder, str(rank)))
    # What a rank leaves behind goes with the folder: it ends without cleaning up.
    tempfile.tempdir = str(Path(folder, f"{rank}"))
    os.mkdir(tempfile.tempdir)
    if processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    try:
        data, suffix = pickle.dumps(function(*arguments)), ".pkl"
    except BaseException:
        data, suffix = f"rank {rank}: {traceback.format_exc()}".encode(), ".failed"
    target = Path(folder, f"{rank}{suffix}")
    Path(folder, f"part{rank}").write_bytes(data)
    Path(folder, f"part{rank}").replace(target)
    # Neither gloo's threads nor the environments' workers are waited for.
    os._exit(int(suffix == ".failed"))
