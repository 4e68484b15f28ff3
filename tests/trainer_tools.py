"""What the trainer tests share: a policy of seeded random tokens, an environment whose rewards differ, small settings.

Most questions about a trainer (do micro-batches, processes, restarts change the weights?) do not depend on what the
policy says, only on that it says the same thing again. `RandomPolicy` answers from the seed of the request alone, so
those tests are exact and spend their time in the trainer. Tests that need the true engine use it.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import tiny

from agent_gym import EnvFailure, Reply, TextEnv
from agent_gym.policies import Generation, Request

EOS, VOCABULARY = 2, 512  # <|im_end|> and the size of tests/tiny.py's tokenizer
ENV = "Toy/Letters-v0"


class LettersEnv(TextEnv):
    """Pays for letters from the first half of the alphabet; a task lasts one to three turns, answers differ in length.

    Args:
        fail: every `fail`-th distinct action breaks the machinery, whoever plays it; 0 never, 1 always.
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
        over = not self.patient and self._turn >= self.task % 3
        said = f"turn {self._turn}, " + "good " * (digest % 4) if not over or self.goodbye else ""
        return Reply(
            said,
            terms={"letters": letters, "length": len(action) / 100},
            terminated=over,
            success=letters > 0.3,
            metrics={"letters": letters},
        )

    def expert_action(self) -> str:
        return "abc"


def register() -> None:
    """Give the environment its id; calling it again changes nothing."""
    if ENV not in gymnasium.registry:
        gymnasium.register(ENV, entry_point=LettersEnv)


register()


class RandomPolicy:
    """Uniformly random tokens, decided by the seed of each request and nothing else.

    Args:
        cut: share of the turns that run into `max_tokens` instead of ending with an end of turn.
    """

    def __init__(self, cut: float = 0.2) -> None:
        self.cut = cut
        self._queue: dict[int, Request] = {}
        self.seen: list[Request] = []
        self.synced = 0

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, request: Request) -> None:
        assert request.params.seed is not None
        self._queue[request.id] = request
        self.seen.append(request)

    def poll(self) -> list[Generation]:
        requests, self._queue = list(self._queue.values()), {}
        return [self._write(request) for request in requests]

    def abort(self, request_id: int) -> None:
        self._queue.pop(request_id, None)

    def close(self) -> None:
        self._queue.clear()

    def sync(self, named_weights: Any) -> None:
        self.synced += 1

    def wake(self) -> None: ...

    def sleep(self) -> None: ...

    def _write(self, request: Request) -> Generation:
        rng = np.random.default_rng(request.params.seed)
        most = request.params.max_tokens
        if rng.random() < self.cut:
            ids, reason = rng.integers(3, VOCABULARY, most).tolist(), "length"
        else:
            ids = [*rng.integers(3, VOCABULARY, int(rng.integers(0, most))).tolist(), EOS]
            reason = "stop"
        return Generation(request.id, ids, [-float(np.log(VOCABULARY))] * len(ids), reason)


@functools.cache
def model_folder(tied: bool = True, seed: int = 0) -> str:
    """Make a tiny model once per test process and return its folder."""
    folder = tempfile.mkdtemp(prefix="agent-gym-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(tiny.make_tiny_model(folder, tied=tied, seed=seed))


def settings(folder: str | Path, **changes: Any) -> Any:
    """Settings of a short run on the CPU in float32, without anything written except on demand."""
    from agent_gym.trainers import AgentGRPOConfig

    values: dict[str, Any] = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_turn_tokens": 8,
        "max_episode_tokens": 200,
        "env_workers": 4,
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
    return AgentGRPOConfig(str(folder), **(values | changes))


def make_trainer(folder: str | Path, *, model: Any = None, policy: Any = "random", **options: Any) -> Any:
    """Build a trainer on `LettersEnv`.

    Args:
        folder: where the run writes.
        model: a model or its folder; by default a fresh tiny one, always the same.
        policy: "random" for a `RandomPolicy`, None for the engine of the settings, or a policy.
        **options: `env`, `env_kwargs`, `train_dataset`, `eval_dataset`, `processing_class`, `peft_config`, `callbacks`
            go to the trainer, the rest to `settings`.
    """
    from transformers import AutoTokenizer, PrinterCallback

    from agent_gym.trainers import AgentGRPOTrainer

    ours = ("env", "env_kwargs", "train_dataset", "eval_dataset", "processing_class", "peft_config", "callbacks")
    given = {name: options.pop(name) for name in ours if name in options}
    given.setdefault("env", ENV)
    given.setdefault("processing_class", AutoTokenizer.from_pretrained(model_folder()))
    trainer = AgentGRPOTrainer(
        model_folder() if model is None else model,
        args=settings(folder, **options),
        policy=RandomPolicy() if policy == "random" else policy,
        **given,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


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


def launch(script: str, *arguments: Any, processes: int = 1, timeout: float = 300.0) -> str:
    """Run a script of the tests' folder, on several gloo ranks if asked, and return what it printed.

    Raises:
        AssertionError: if it fails; the message has the end of its output.
    """
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    path = Path(__file__).with_name(script)
    result = subprocess.run(
        [*command, str(path), *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=environment()
    )
    assert result.returncode == 0, f"{script} failed\n{result.stdout[-2000:]}\n{result.stderr[-6000:]}"
    return result.stdout


def environment() -> dict[str, str]:
    """The environment of a test's subprocess: one thread each, no network."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
